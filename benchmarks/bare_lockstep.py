"""Bare loops that wait for one another after every turn: what no lockstep can be faster than."""

import mmap
import os
from collections.abc import Callable
from time import perf_counter

_WORDS_PER_LINE = 8


class Meeting:
    """Where processes that were forked from one wait until all are there, looking all the time.

    Nothing is said but that one has come, and by the first whether this was the last turn.
    """

    def __init__(self, size: int) -> None:
        lines = size + 1
        memory = mmap.mmap(-1, 8 * _WORDS_PER_LINE * lines)
        self._words = memoryview(memory).cast("q")
        self._places = range(0, _WORDS_PER_LINE * size, _WORDS_PER_LINE)
        # Two words, in turns: the first may be at the next turn before all have read this one's.
        self._over = self._words[_WORDS_PER_LINE * size :]
        self._turn = 0

    def wait(self, place: int, is_over: bool) -> bool:
        """Come to the meeting, and go when all have come; whether the first said it is over."""
        self._turn += 1
        if place == 0:
            self._over[self._turn % 2] = is_over
        words, turn = self._words, self._turn
        words[self._places[place]] = turn
        for other in self._places:
            while words[other] < turn:
                os.sched_yield()
        return bool(self._over[turn % 2])


def turns_per_second(
    turn: Callable[[], object], meeting: Meeting, place: int, seconds: float
) -> float:
    """Take turns and meet after each, for about ``seconds``."""
    turns, start = 0, perf_counter()
    is_over = False
    while not is_over:
        turn()
        turns += 1
        is_over = meeting.wait(place, perf_counter() - start >= seconds)
    return turns / (perf_counter() - start)
