"""Where a worker's time goes: words in memory that it shares with its host.

The host switches it on and reads it without a message to the worker, so that measuring changes
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PARTS = ("idle", "env", "inference", "serialise", "pull", "other", "import")
IDLE, ENV, INFERENCE, SERIALISE, PULL, OTHER, IMPORT = range(len(PARTS))

_NANOSECONDS = 1e-9


class PartTimes:
    """Nanoseconds by part of a worker's work, counted while a flag is set.

    Args:
        words: As many as :attr:`SIZE` says.
        clock: Returns the time in nanoseconds, the same for all processes of a machine.
    """

    SIZE = 5 + len(PARTS)
    _ON, _PART, _SINCE, _SLOT, _ANSWERED, _COUNTS = range(6)

    def __init__(self, words: memoryview, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._words, self._clock = words, clock

    @staticmethod
    def unshared() -> PartTimes:
        """For use without a host: it is never switched on."""
        return PartTimes(memoryview(bytearray(8 * PartTimes.SIZE)).cast("q"))

    # The worker's side.

    @property
    def is_on(self) -> bool:
        """Whether to report what begins; a worker looks once per call or fragment."""
        return bool(self._words[self._ON])

    def begin(self, part: int) -> None:
        """Note that the worker begins something else; does nothing while it is off."""
        words = self._words
        if not words[self._ON]:
            return
        now = self._clock()
        words[self._COUNTS + words[self._PART]] += now - words[self._SINCE]
        words[self._PART], words[self._SINCE] = part, now

    def take_up(self, part: int) -> None:
        """Like :meth:`begin`, for a request: until its answer, the worker has none to wait with."""
        words = self._words
        if words[self._ON]:
            self.begin(part)
            words[self._ANSWERED] = 0

    def answer(self) -> None:
        """Note that the worker has answered, and is idle until it is asked again.

        Best noted before the answer goes out: the host may ask again before the worker goes on.
        """
        words = self._words
        if words[self._ON]:
            self.begin(IDLE)
            words[self._ANSWERED] = words[self._SINCE]

    def note_slots(self, first: int) -> None:
        """Note the first of the worker's slots, whether it is on or not."""
        # Zero is that of a worker that has none yet.
        self._words[self._SLOT] = first + 1

    # The host's side.

    @property
    def answered_at(self) -> int:
        """When the worker last answered while it was on; 0 while it works on the next request."""
        return int(self._words[self._ANSWERED])

    def start(self) -> None:
        """Count from now on; a worker in the middle of something counts as idle till its end."""
        words = self._words
        for place in range(self._ANSWERED, self.SIZE):
            words[place] = 0
        words[self._PART], words[self._SINCE] = IDLE, self._clock()
        words[self._ON] = 1

    def stop(self) -> dict[str, float]:
        """The seconds of each part since :meth:`start`, and ``first_slot``; empty if it was off."""
        words = self._words
        if not words[self._ON]:
            return {}
        words[self._ON] = 0
        counts = [words[self._COUNTS + part] for part in range(len(PARTS))]
        counts[words[self._PART]] += max(0, self._clock() - words[self._SINCE])
        seconds = {part: count * _NANOSECONDS for part, count in zip(PARTS, counts, strict=True)}
        if words[self._SLOT]:
            seconds["first_slot"] = float(words[self._SLOT] - 1)
        return seconds
