"""Reports of lost workers and hosts to the user, as they happen: in the log and in the ledger.

They are records of the logger ``clusterenv`` at level WARNING, which Python prints by default.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from clusterenv.host.events import Lost, WorkerWarned
from clusterenv.sync.ledger import Ledger

_log = logging.getLogger("clusterenv")
_MOST_PER_MINUTE = 10
_WINDOW_S = 60.0
_MOST_LINES = 20
_LONGEST_LINE = 500


class LossReports:
    """One warning for each loss; if there are many, only the first few are printed.

    Args:
        ledger: Where every loss is recorded.
        clock: Returns the time.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._clock = ledger, clock
        self._told: deque[float] = deque()
        self._num_untold = 0
        self._spent_by: set[int] = set()

    def note(self, host: str, lost: Lost) -> None:
        """Report that a worker of this host was lost, or the host itself."""
        if not lost.who:
            return  # it was reported before
        worker = "" if lost.who == host else lost.who
        self._ledger.record_loss(host, worker, lost.slots, lost.slot, harmless(lost.reason))
        if not lost.error:
            # Otherwise the user gets an error with all of it, or is told who takes over.
            self.warn(host, lost.obituary, "; its slots start over in a replacement")

    def is_to_blame(self, slot: int | None) -> bool:
        """Judge the env of this slot, which ran when a worker with no restarts left was lost.

        Returns:
            Whether that happened before, on another host. Then it is the env's fault, and trying a
            third host is pointless.
        """
        if slot is None:
            return False
        is_known = slot in self._spent_by
        self._spent_by.add(slot)
        return is_known

    def warn(self, host: str, text: str, then: str = "") -> None:
        """Warn the user, unless there were too many warnings within the last minute.

        Args:
            host: The host that the warning is about.
            text: A line that says what happened, perhaps followed by the end of a log.
            then: Appended to that line.
        """
        self._ledger.record_warning(_clean(host, text, then))
        now = self._clock()
        while self._told and now > self._told[0] + _WINDOW_S:
            self._told.popleft()
        if len(self._told) >= _MOST_PER_MINUTE:
            self._num_untold += 1
            return
        self._told.append(now)
        _log.warning("%s", _clean(host, text, f"{then}{self._untold()}"))

    def keep(self, warned: WorkerWarned) -> None:
        """Record a worker's warning, which the user gets in another way."""
        self._ledger.record_warning(_clean(warned.worker, warned.text))

    def _untold(self) -> str:
        """A note about warnings that were, or may be, left out."""
        num_untold, self._num_untold = self._num_untold, 0
        before = f" ({num_untold} warnings before this one were left out)" if num_untold else ""
        if len(self._told) < _MOST_PER_MINUTE:
            return before
        return f"{before} (more of these within a minute are left out: see envs.ledger.losses)"


def _clean(who: str, text: str, then: str = "") -> str:
    """The host, what happened, and below it the end of the log."""
    what, _, log = text.partition("\n")
    where = "" if what.startswith(who) else f"{who}: "
    return "\n".join([f"{where}{_cut(what, 4 * _LONGEST_LINE)}{then}", *_last_lines(log)])


def _last_lines(log: str) -> list[str]:
    """The log's heading and last lines."""
    heading, *lines = log.splitlines() or [""]
    kept = [heading, *lines[-_MOST_LINES:]] if heading else []
    return [_cut(line, _LONGEST_LINE) for line in kept]


def harmless(text: str) -> str:
    """A host's text, line by line, without terminal control characters."""
    return "\n".join(_cut(line, len(line)) for line in text.split("\n"))


def _cut(line: str, length: int) -> str:
    """The beginning of a line, without terminal control characters."""
    return "".join(c if c.isprintable() or c == "\t" else "?" for c in line[:length])
