"""Who goes first where a worker shares its core with the head: the head."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct

# The number of the call, which Python has no name for.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
# size, policy, flags, nice, priority, runtime, deadline, period
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_LONG_TURN_NS = 10_000_000


def let_others_go_first() -> None:
    """Let whoever wakes on this core have it at once, and never take it from others on waking.

    A worker that is woken must not push the head aside before it has woken the others. And the head
    must not wait for the end of one worker's turn on its core while it could serve another: since
    Linux 6.12 that is how it would be, but for those whose own turns are shorter.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if (number := _SCHED_SETATTR.get(platform.machine())) is not None:
            nice = os.getpriority(os.PRIO_PROCESS, 0)
            turn = _LONG_TURN_NS, 0, 0
            given = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_BATCH, 0, nice, 0, *turn)
            # Where the kernel knows of no such turns, this says what was said above.
            ctypes.CDLL(None).syscall(number, 0, given, 0)
