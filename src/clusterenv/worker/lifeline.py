"""Ends a worker whose host is gone, and one whose env hangs, even while env code runs.

A thread does this. Long before a hang is too long, it writes the stacks to the log, and the host
tells the user. If env code holds the GIL and the thread cannot run, the kernel ends the process
when the host's end of standard input closes; faulthandler's C thread, which this one re-arms,
writes the stacks; and a kernel timer ends the process when it hangs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time

from clusterenv.lifelines import EXIT_HOST_GONE, leads_its_group
from clusterenv.memory.mailbox import Mailbox
from clusterenv.memory.pulse import STACKS_FOLLOW
from clusterenv.strays import StrayWatch
from clusterenv.worker.deadlines import Deadlines
from clusterenv.worker.kill_timer import KillTimer

EXIT_HUNG = 72
_TICK_S = 0.5
_HOST_MAY_END_IT_S = 5.0


class Lifeline(threading.Thread):
    """Watches the host's end of our standard input, and the worker's progress.

    Args:
        deadlines: The deadlines for what the worker is doing.
        mailbox: Where the host reads signs of life, and where the current slot is noted.
        slow_warning_s: How long without progress until the stacks are written.
    """

    def __init__(self, deadlines: Deadlines, mailbox: Mailbox, slow_warning_s: float) -> None:
        super().__init__(name="lifeline", daemon=True)
        self._deadlines, self._patience_s = deadlines, slow_warning_s
        self._mailbox, self._pulse = mailbox, mailbox.pulse
        self._parent = os.getppid()
        self._strays = StrayWatch()
        self._slot, self._moved_at = 0, 0.0
        self._shown_since, self._num_stacks = 0.0, 0
        self._killer: KillTimer | None = None
        with contextlib.suppress(OSError, AttributeError):
            self._killer = KillTimer()

    def run(self) -> None:
        """Tick until something ends the process."""
        while True:
            self._beat(time.monotonic())
            self._arm(self._allowed_s() + _TICK_S)
            readable, _, _ = select.select([0], [], [], _TICK_S)
            if readable and not os.read(0, 4096):
                _end("the host is gone: standard input was closed", EXIT_HOST_GONE)
            if os.getppid() != self._parent:
                _end("the process that started this worker is gone", EXIT_HOST_GONE)
            self._check_progress()
            self._strays.look(time.monotonic())

    def _arm(self, allowed_s: float) -> None:
        """Prepare for this thread being stopped: write the stacks, and finally end the process."""
        patience_s = self._patience_s + _TICK_S
        if self._killer is None or patience_s >= allowed_s:
            faulthandler.dump_traceback_later(allowed_s, exit=True, file=2)
        else:
            faulthandler.dump_traceback_later(patience_s, file=2)
        if self._killer is not None:
            # If there is a host, it ends the process first.
            self._killer.put_off(allowed_s + _HOST_MAY_END_IT_S)

    def _beat(self, now: float) -> None:
        """Give the host a sign of life, and write the stacks if there is no progress."""
        slot, since = self._mailbox.current_slot, self._deadlines.since
        if slot != self._slot:
            self._slot, self._moved_at = slot, now
        # Many slow envs, one after the other, are not stuck.
        since = None if since is None else max(since, self._moved_at)
        if since not in (None, self._shown_since) and now - since > self._patience_s:
            self._shown_since = since
            # If things simply take this long here, it need not be reported each time.
            self._patience_s *= 2
            self._num_stacks += 1
            with contextlib.suppress(OSError):
                os.write(2, f"\n{STACKS_FOLLOW} {now - since:.0f} s\n".encode())
            faulthandler.dump_traceback(file=2, all_threads=True)
        self._pulse.beat(now, since, self._num_stacks)

    def _allowed_s(self) -> float:
        """How long the GIL may be held: as long as the worker may take for its current work."""
        deadline = self._deadlines.deadline
        remaining_s = 0.0 if deadline is None else deadline - time.monotonic()
        return max(remaining_s, self._deadlines.step_timeout_s)

    def _check_progress(self) -> None:
        limits, deadline = self._deadlines, self._deadlines.deadline
        if deadline is not None and time.monotonic() > deadline:
            faulthandler.dump_traceback(file=2, all_threads=True)
            _end(
                f"no progress within step_timeout_s={limits.step_timeout_s:g} "
                f"(startup_timeout_s={limits.startup_timeout_s:g} while building envs)",
                EXIT_HUNG,
            )


def _end(reason: str, code: int) -> None:
    print(f"clusterenv worker ends: {reason}", file=sys.stderr, flush=True)
    if code == EXIT_HOST_GONE and leads_its_group():
        # What an env started ends too; nobody is left to read an exit code.
        os.killpg(0, signal.SIGKILL)
    os._exit(code)
