"""Where a thread's time goes: every moment belongs to exactly one name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Stopwatch:
    """Times the methods it is attached to, of objects that do not know of it.

    Nothing is timed, and nothing costs anything, where it is not attached. Of calls within calls
    each gets its own time only.

    Args:
        base: The name for the time outside of all timed methods.
        clock: What tells the time.
    """

    def __init__(self, base: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {base: 0.0}
        self._clock, self._name, self._since = clock, base, clock()
        self._thread = threading.get_ident()
        self._absorbed: frozenset[str] = frozenset()
        self._attached: list[tuple[Any, str]] = []

    def attach(self, owner: Any, method: str, name: str, absorbs: Sequence[str] = ()) -> None:
        """Count the time in ``owner.method`` for ``name``, and what ``absorbs`` names within it."""
        self.replace(owner, method, self.around(name, getattr(owner, method), absorbs))

    def replace(self, owner: Any, method: str, by: Callable[..., Any]) -> None:
        """Have ``owner.method`` be another function, until :meth:`stop`."""
        setattr(owner, method, by)
        self._attached.append((owner, method))

    def around(
        self, name: str, function: Callable[..., Any], absorbs: Sequence[str] = ()
    ) -> Callable[..., Any]:
        """``function``, timed where it is called by the thread that made this stopwatch."""

        absorbed = frozenset(absorbs)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if name in self._absorbed or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            outer, around = self._switch(name), self._absorbed
            self._absorbed = absorbed
            try:
                return function(*args, **kwargs)
            finally:
                self._absorbed = around
                self._switch(outer)

        return timed

    def over(self, name: str, items: Iterator[Any]) -> Iterator[Any]:
        """``items``, whose making is timed, and the time between them is not."""
        advance = self.around(name, items.__next__)
        try:
            while True:
                try:
                    item = advance()
                except StopIteration:
                    return
                yield item
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _switch(self, name: str) -> str:
        now, outer = self._clock(), self._name
        self.seconds[outer] = self.seconds.get(outer, 0.0) + now - self._since
        self._name, self._since = name, now
        return outer

    def stop(self) -> dict[str, float]:
        """Detach from everything; the seconds of each name."""
        self._switch(self._name)
        for owner, method in reversed(self._attached):
            vars(owner).pop(method, None)
        self._attached.clear()
        return self.seconds
