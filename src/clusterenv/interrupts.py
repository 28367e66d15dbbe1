"""Ctrl-C must not cut a message in half: it waits until the end of a block."""

from __future__ import annotations

import signal
import sys
import threading
import time

# `signal.signal` also converts enumerations, which takes ten times as long as the rest.
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable
from typing import Any

_SIGINT = int(signal.SIGINT)
_PATIENCE_S = 1.0


class Uninterrupted:
    """Inside its ``with`` blocks, Ctrl-C takes effect only at the end of the outermost block.

    The current handler of SIGINT is called then, so nothing is lost. If something in the block
    hangs, another Ctrl-C a second later takes effect at once. Python handles signals only in the
    main thread; blocks in other threads do nothing.

    Args:
        wake: Ends a wait inside the block.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._depth = 0
        self._handler: Any = None
        self._came_at: float | None = None

    def __enter__(self) -> Uninterrupted:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Enter a block."""
        if threading.get_ident() != threading.main_thread().ident:
            return
        if not self._depth:
            self._take_over()
        self._depth += 1

    def _take_over(self) -> None:
        self._handler, self._came_at = None, None
        handler = getsignal(_SIGINT)
        # Not callable: ignored, or ends the process. If it is ours, a block around this one waits.
        if callable(handler) and not isinstance(getattr(handler, "__self__", None), Uninterrupted):
            # If Ctrl-C came a moment ago, this call runs the old handler first, and may raise.
            set_handler(_SIGINT, self._note)
            self._handler = handler

    def end(self) -> None:
        """Leave a block; raises what Ctrl-C raises if it came meanwhile."""
        if threading.get_ident() != threading.main_thread().ident:
            return
        self._depth -= 1
        if self._depth or self._handler is None:
            return
        set_handler(_SIGINT, self._handler)
        if self._came_at is not None:
            self._came_at = None
            self._handler(_SIGINT, sys._getframe())

    def _note(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self._came_at is None:
            self._came_at = now
            self._wake()
        elif now > self._came_at + _PATIENCE_S:
            self._handler(number, frame)
