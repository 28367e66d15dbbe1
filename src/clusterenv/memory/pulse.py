"""A worker's signs of life: words in memory that it shares with its host.

Another thread of the worker than the one that works writes them now and then. Where code holds the
GIL and that thread cannot run, they stop.
"""

from __future__ import annotations

STACKS_FOLLOW = "clusterenv worker: no progress for"
"""So begins the line in a worker's log that stands before its stacks."""
_NANOSECONDS = 1e9


class Pulse:
    """When a worker was last seen alive, and since when it makes no progress.

    Times are those of the monotonic clock, which all processes of a machine share.

    Args:
        words: So many as :attr:`SIZE` says.
    """

    SIZE = 3
    _ALIVE_AT, _BUSY_SINCE, _NUM_STACKS = range(3)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def beat(self, now: float, busy_since: float | None, num_stacks: int) -> None:
        """The worker lives, makes no progress since then, and has shown its stacks so often."""
        self._words[self._NUM_STACKS] = num_stacks
        self._words[self._BUSY_SINCE] = 0 if busy_since is None else int(busy_since * _NANOSECONDS)
        self._words[self._ALIVE_AT] = int(now * _NANOSECONDS)

    @property
    def alive_at(self) -> float:
        """When there was the last sign of life; 0 before the first."""
        return float(self._words[self._ALIVE_AT]) / _NANOSECONDS

    @property
    def busy_since(self) -> float:
        """Since when it made no progress then; 0 if it had nothing to do."""
        return float(self._words[self._BUSY_SINCE]) / _NANOSECONDS

    @property
    def num_stacks(self) -> int:
        """How often the worker has shown its stacks in its log, since it made no progress."""
        return int(self._words[self._NUM_STACKS])
