"""Who has answered what last: a word per worker, in memory that a host and its workers share."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence

# A reader that spins sees the counter before the data on machines with weak memory ordering;
# going through a bell orders them everywhere.
MAY_SPIN = platform.machine() in ("x86_64", "AMD64")

MOST_PARTS = 8
"""How many calls for parts of its slots a worker may have that the host has seen no answer to."""

_LOOK_EVERY = 8
_fence = threading.Lock()


def _find_core() -> Callable[[], int]:
    try:
        return ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError):
        # Nobody knows: it is as if all had the same one.
        return lambda: 0


def _now_and_then(look: Callable[[], int]) -> Callable[[], int]:
    """What ``look`` said this time, or one of the last few."""
    calls_left, seen = 0, 0

    def remember() -> int:
        nonlocal calls_left, seen
        if calls_left:
            calls_left -= 1
        else:
            calls_left, seen = _LOOK_EVERY - 1, look()
        return seen

    return remember


current_core = _now_and_then(_find_core())
"""Which core this process uses. It seldom moves, and to look costs more than all around it."""


def barrier() -> None:
    """A full memory barrier."""
    # The lock is this process's own and excludes nobody: taking it orders memory.
    with _fence:
        pass


class AnswerFlags:
    """In lockstep a worker's flag is its answer, unless it has more to say than its rows.

    Args:
        words: One per place of the run.
        host: One more: whether the host sleeps.
        cores: One per place: where the worker was when it answered last. And one more: where the
            host went to sleep; newer kernels mostly wake it there, whoever steps there.
    """

    _NOBODY = (1 << 63) - 1
    _SEVERAL = -1

    def __init__(self, words: memoryview, host: memoryview, cores: memoryview) -> None:
        self._words, self._host, self._cores = words, host, cores

    def put(self, place: int, request: int, says_more: bool) -> bool:
        """The worker in ``place`` has answered ``request``; whether it has to wake the host.

        ``says_more``: its rows are not all, a message was sent with the rest.

        The last but one wakes it, so that it is awake when the last answers; but not where it would
        take its core from that one, who then has to wake it. Earlier it would always take a core
        from those still at work.
        """
        self._cores[place] = current_core()
        self._words[place] = 2 * request + says_more
        # Two that answer at once must see each other, and the host that falls asleep.
        barrier()
        if not MAY_SPIN:
            return True
        if not self._host[0] or not self._is_time_to_wake(request):
            return False
        self.wake_up()  # the last need not ring as well
        return True

    def _is_time_to_wake(self, request: int) -> bool:
        missing = self._find_missing(request)
        if missing in (self._NOBODY, self._SEVERAL):
            return missing == self._NOBODY
        return bool(self._cores[missing] != self._cores[-1])

    def are_several_missing(self, request: int) -> bool:
        """Whether more than one worker has not answered ``request`` yet."""
        return self._find_missing(request) == self._SEVERAL

    def _find_missing(self, request: int) -> int:
        """The place of the only one that has not answered yet."""
        missing, silent = self._NOBODY, 2 * request
        for place, word in enumerate(self._words):
            if word < silent:
                if missing != self._NOBODY:
                    return self._SEVERAL
                missing = place
        return missing

    def announce_sleep(self) -> None:
        """The host will sleep when it has called: whoever is called after this finds it asleep."""
        self._cores[-1] = current_core()
        self._host[0] = 1

    def fall_asleep(self) -> None:
        """The host will not look again before its bell rings: look once more after this."""
        self.announce_sleep()
        barrier()

    def wake_up(self) -> None:
        """The host looks again."""
        self._host[0] = 0

    def are_silent(self, places: Sequence[int], request: int) -> bool:
        """Whether the workers there have answered ``request``, with their rows alone."""
        words, silent = self._words, 2 * request
        for place in places:  # noqa: SIM110 (a generator costs more)
            if words[place] != silent:
                return False
        return True

    def look_out(self, places: Sequence[int], request: int, seconds: float) -> bool:
        """Look again and again, yielding the core, until :meth:`are_silent`.

        False if somebody says more, or it takes longer.
        """
        words, silent = self._words, 2 * request
        deadline = time.perf_counter() + seconds
        while True:
            for place in places:
                if words[place] != silent:
                    break
            else:
                return True
            if words[place] > silent or time.perf_counter() > deadline:
                return False
            os.sched_yield()

    def expect_no_answer(self, place: int) -> None:
        """Its worker is gone: let nobody think that its answer is still missing."""
        self._words[place] = self._NOBODY


class PartFlags:
    """Who has answered calls for parts of its slots: a worker may have several.

    Args:
        answers: MOST_PARTS words for each place of the run, one after the other.
        counts: One per place: how many answers there were.
        host: Two more: whether the host sleeps, and from how many answers on it is to be woken.
    """

    _ASLEEP, _WAKE_AT = 0, 1

    def __init__(self, answers: memoryview, counts: memoryview, host: memoryview) -> None:
        self.answers, self._counts, self._host = answers, counts, host
        """By place and number of the call: the last request that was answered with rows alone."""

    def put(self, place: int, number: int, request: int, says_more: bool) -> bool:
        """The worker in ``place`` has answered a call; whether it has to wake the host.

        ``says_more``: its rows are not all, a message was sent with the rest.
        """
        if not says_more:
            self.answers[place * MOST_PARTS + number] = request
        self._counts[place] += 1
        # Two that answer at once must see each other, and the host that falls asleep.
        barrier()
        if not self._host[self._ASLEEP] or self.total() < self._host[self._WAKE_AT]:
            return False
        self._host[self._ASLEEP] = 0  # others need not ring as well
        return True

    def total(self) -> int:
        """How many answers there were, of all workers."""
        return sum(self._counts)

    def fall_asleep(self, num_answers: int) -> None:
        """The host looks again when there were so many in all: look once more after this."""
        self._host[self._WAKE_AT] = num_answers
        self._host[self._ASLEEP] = 1
        barrier()

    def wake_up(self) -> None:
        """The host looks again."""
        self._host[self._ASLEEP] = 0

    def wake_at_any_answer(self) -> None:
        """Whenever it sleeps from now on."""
        self._host[self._WAKE_AT] = 0
