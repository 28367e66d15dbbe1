"""Each worker's latest answer: a word per worker, in memory shared by a host and its workers."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence

# On machines with weak memory ordering, a reader that spins may see the counter before the data;
# going through a bell orders them everywhere.
MAY_SPIN = platform.machine() in ("x86_64", "AMD64")

MOST_PARTS = 8
"""How many calls for parts of its slots a worker may have whose answers the host has not seen."""

_LOOK_EVERY = 8
_fence = threading.Lock()


def _find_core() -> Callable[[], int]:
    try:
        return ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError, TypeError):
        # Unknown: treat all as if they were on the same core.
        return lambda: 0


def _now_and_then(look: Callable[[], int]) -> Callable[[], int]:
    """Call ``look`` now and then, and repeat its last result in between."""
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
"""The core that this process uses. It seldom moves, and looking costs more than all else here."""


def barrier() -> None:
    """A full memory barrier."""
    # The lock belongs to this process and excludes nobody: taking it orders memory.
    with _fence:
        pass


class AnswerFlags:
    """In lockstep, a worker's flag is its answer, unless it has more to say than its rows.

    Args:
        words: One per worker.
        host: One more: whether the host sleeps.
        cores: One per worker: its core when it last answered. And one more: the core on which the
            host went to sleep; newer kernels mostly wake it there, even if a worker steps there.
    """

    _NOBODY = (1 << 63) - 1
    _SEVERAL = -1

    def __init__(self, words: memoryview, host: memoryview, cores: memoryview) -> None:
        self._words, self._host, self._cores = words, host, cores

    def put(self, place: int, request: int, says_more: bool) -> bool:
        """Note that the worker in ``place`` has answered; returns whether it must wake the host.

        ``says_more``: its rows are not all, and a message with the rest was sent.

        The last worker but one wakes the host, so that it is awake when the last one answers. But
        if the host would take the last one's core, that one must wake it. Any earlier, it would
        always take a core from workers still at work.
        """
        self._cores[place] = current_core()
        self._words[place] = 2 * request + says_more
        # Two workers that answer at once must see each other, and a host that is falling asleep.
        barrier()
        if not MAY_SPIN:
            return True
        if not self._host[0] or not self._is_time_to_wake(request):
            return False
        self.wake_up()  # the last one need not ring as well
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
        """The place of the only worker that has not answered yet."""
        missing, silent = self._NOBODY, 2 * request
        for place, word in enumerate(self._words):
            if word < silent:
                if missing != self._NOBODY:
                    return self._SEVERAL
                missing = place
        return missing

    def announce_sleep(self) -> None:
        """Announce sleep before a call: workers that are called after this find the host asleep."""
        self._cores[-1] = current_core()
        self._host[0] = 1

    def fall_asleep(self) -> None:
        """Let the host sleep until its bell rings; it must look once more after this."""
        self.announce_sleep()
        barrier()

    def wake_up(self) -> None:
        """Note that the host is looking again."""
        self._host[0] = 0

    def are_silent(self, places: Sequence[int], request: int) -> bool:
        """Whether the workers there have answered ``request`` with their rows alone."""
        words, silent = self._words, 2 * request
        for place in places:  # noqa: SIM110 (a generator costs more)
            if words[place] != silent:
                return False
        return True

    def look_out(self, places: Sequence[int], request: int, seconds: float) -> bool:
        """Spin, yielding the core each time, until :meth:`are_silent`.

        False if a worker says more, or if it takes longer.
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
        """Let nobody wait for the answer of this worker, which is gone."""
        self._words[place] = self._NOBODY


class PartFlags:
    """Answers to calls for parts of slots, of which a worker may have several.

    Args:
        answers: MOST_PARTS words for each worker, one after the other.
        counts: One per worker: how many answers it has given.
        host: Two more: whether the host sleeps, and at how many answers it must be woken.
    """

    _ASLEEP, _WAKE_AT = 0, 1

    def __init__(self, answers: memoryview, counts: memoryview, host: memoryview) -> None:
        self.answers, self._counts, self._host = answers, counts, host
        """By worker and number of the call: the last request that was answered with rows alone."""

    def put(self, place: int, number: int, request: int, says_more: bool) -> bool:
        """Note that the worker in ``place`` has answered a call; whether it must wake the host.

        ``says_more``: its rows are not all, and a message with the rest was sent.
        """
        if not says_more:
            self.answers[place * MOST_PARTS + number] = request
        self._counts[place] += 1
        # Two workers that answer at once must see each other, and a host that is falling asleep.
        barrier()
        if not self._host[self._ASLEEP] or self.total() < self._host[self._WAKE_AT]:
            return False
        self._host[self._ASLEEP] = 0  # others need not ring as well
        return True

    def total(self) -> int:
        """How many answers there have been from all workers."""
        return sum(self._counts)

    def fall_asleep(self, num_answers: int) -> None:
        """Let the host sleep until this many answers in all; it must look once more after this."""
        self._host[self._WAKE_AT] = num_answers
        self._host[self._ASLEEP] = 1
        barrier()

    def wake_up(self) -> None:
        """Note that the host is looking again."""
        self._host[self._ASLEEP] = 0

    def wake_at_any_answer(self) -> None:
        """Wake the host at any answer whenever it sleeps from now on."""
        self._host[self._WAKE_AT] = 0
