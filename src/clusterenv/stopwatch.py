"""Where a thread's time goes: every moment belongs to exactly one part."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

LEARNER, HEAD, WAIT, INFERENCE = "learner", "head", "wait", "inference"
"""What the user's thread does: its own work; ours, within a call; waiting there; and its forward
pass, if it says so."""
LOST = "lost"
"""Waiting for the replacement of a worker or a host."""
# Nobody is replaced faster, and shorter waits are many.
_LONG_WAIT_S = 0.01

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def nobody_is_lost() -> bool:
    """No replacement is awaited."""
    return False


class Stopwatch:
    """Counts what the user's thread does while it is on.

    Code that begins another part says so if it :attr:`is_on`; otherwise the only cost is a look at
    this flag.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.is_on = False
        self.is_outside = False
        """Whether it is on and the thread is in none of our calls."""
        self.calls: set[str] = set()
        """The methods that were called meanwhile."""
        self._clock, self._part, self._since = clock, LEARNER, 0.0
        self._seconds: dict[str, float] = {}
        self._thread = 0
        self._is_lost, self._lost_in_call = nobody_is_lost, False

    def start(self, is_lost: Callable[[], bool] = nobody_is_lost) -> None:
        """Count what this thread, which is outside all calls, does from now on.

        ``is_lost`` is asked after long waits whether a replacement is awaited. Once it is, it is
        until the call ends: the replacement has to do the work again.
        """
        self._is_lost, self._lost_in_call = is_lost, False
        self._seconds, self._since = {}, self._clock()
        self.calls, self._part, self._thread = set(), LEARNER, threading.get_ident()
        self.is_on = self.is_outside = True

    def stop(self) -> dict[str, float]:
        """Stop counting; returns the seconds of each part since :meth:`start`."""
        self.begin(self._part)
        self.is_on = self.is_outside = False
        return self._seconds

    def begin(self, part: str) -> str:
        """Begin another part; returns the one before."""
        now, last = self._clock(), self._part
        spent, name = now - self._since, last
        if last == WAIT and self._waited_for_replacement(spent):
            name = LOST
        self._seconds[name] = self._seconds.get(name, 0.0) + spent
        self._part, self._since, self.is_outside = part, now, part == LEARNER
        if self.is_outside:
            self._lost_in_call = False
        return last

    def _waited_for_replacement(self, waited_s: float) -> bool:
        if not self._lost_in_call and waited_s >= _LONG_WAIT_S:
            self._lost_in_call = self._is_lost()
        return self._lost_in_call

    def call(
        self,
        name: str,
        function: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """Call one of our methods, with this name, from outside."""
        self.calls.add(name)
        self.begin(HEAD)
        try:
            return function(*args, **kwargs)
        finally:
            # If it was stopped meanwhile, nothing must be counted any more.
            if self.is_on:
                self.begin(LEARNER)

    def times_this_thread(self) -> bool:
        """Whether a call by this thread counts now as one from outside."""
        return self.is_outside and threading.get_ident() == self._thread


class _Watched(Protocol):
    _stopwatch: Stopwatch


_Owner = TypeVar("_Owner", bound=_Watched)


def timed(
    method: Callable[Concatenate[_Owner, _Arguments], _Result],
) -> Callable[Concatenate[_Owner, _Arguments], _Result]:
    """Count ``method`` as a call with its object's stopwatch."""

    @functools.wraps(method)
    def call(self: _Owner, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        watch = self._stopwatch
        if not watch.times_this_thread():
            return method(self, *args, **kwargs)
        return watch.call(method.__name__, method, self, *args, **kwargs)

    return call
