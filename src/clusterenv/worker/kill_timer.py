"""Has the kernel end this process at a time that is put off regularly.

This needs no thread of the process, so it works even if one of them holds the GIL for ever.
"""

from __future__ import annotations

import ctypes
import signal

_CLOCK_MONOTONIC = 1
_NANOSECONDS = 1_000_000_000
_LONGEST_S = 1e9


class _Event(ctypes.Structure):
    """``struct sigevent``: a signal to the process."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_byte * 48),
    )


class _Time(ctypes.Structure):
    """``struct itimerspec``."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("s", ctypes.c_long),
        ("ns", ctypes.c_long),
    )


class KillTimer:
    """A kernel timer that sends SIGKILL; OSError or AttributeError if there is none."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Event(signo=signal.SIGKILL)
        made = self._library.timer_create(
            _CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)
        )
        if made != 0:
            raise OSError(ctypes.get_errno(), "timer_create")

    def put_off(self, seconds: float) -> None:
        """Do not fire before this many seconds from now."""
        total_ns = int(min(seconds, _LONGEST_S) * _NANOSECONDS)
        at = _Time(s=total_ns // _NANOSECONDS, ns=total_ns % _NANOSECONDS)
        self._library.timer_settime(self._timer, 0, ctypes.byref(at), None)
