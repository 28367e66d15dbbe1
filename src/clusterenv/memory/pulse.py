"""A worker's signs of life: words in memory that it shares with its host.

They are written regularly by another thread than the one that works. If code holds the GIL and
that thread cannot run, they stop.
"""

from __future__ import annotations

STACKS_FOLLOW = "clusterenv worker: no progress for"
"""The beginning of the line in a worker's log that precedes its stacks."""
_NANOSECONDS = 1e9


class Pulse:
    """When a worker was last seen alive, and since when it makes no progress.

    Times are those of the monotonic clock, which all processes of a machine share.

    Args:
        words: As many as :attr:`SIZE` says.
    """

    SIZE = 3
    _ALIVE_AT, _BUSY_SINCE, _NUM_STACKS = range(3)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def beat(self, now: float, busy_since: float | None, num_stacks: int) -> None:
        """Note that the worker lives, since when it is stuck, and how often it wrote stacks."""
        self._words[self._NUM_STACKS] = num_stacks
        self._words[self._BUSY_SINCE] = 0 if busy_since is None else int(busy_since * _NANOSECONDS)
        self._words[self._ALIVE_AT] = int(now * _NANOSECONDS)

    @property
    def alive_at(self) -> float:
        """The last sign of life; 0 before the first."""
        return float(self._words[self._ALIVE_AT]) / _NANOSECONDS

    @property
    def busy_since(self) -> float:
        """Since when it had made no progress at that time; 0 if it had nothing to do."""
        return float(self._words[self._BUSY_SINCE]) / _NANOSECONDS

    @property
    def num_stacks(self) -> int:
        """How often the worker has written its stacks to its log for lack of progress."""
        return int(self._words[self._NUM_STACKS])
