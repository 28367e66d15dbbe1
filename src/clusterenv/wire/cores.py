"""Which core a thread runs on, and how it gets to another."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable

UNKNOWN = -1


def _find() -> Callable[[], int]:
    try:
        get: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError, TypeError):
        return lambda: UNKNOWN
    return get


current_core = _find()
"""The core that the calling thread runs on, or UNKNOWN."""


def move_to(core: int) -> None:
    """Have the calling thread go on there, if it may run there; it is not bound to it."""
    if core in (UNKNOWN, current_core()):
        return
    # Some sandboxes forbid it; the thread then goes on where it is.
    with contextlib.suppress(OSError):
        allowed = os.sched_getaffinity(0)
        if core in allowed:
            os.sched_setaffinity(0, {core})
            os.sched_setaffinity(0, allowed)
