"""Ends a process when the one that started it is gone: its standard input closes then."""

from __future__ import annotations

import os
import select

EXIT_HOST_GONE = 71


def end_with_input() -> None:
    """Have the kernel send SIGIO, which ends a process, when standard input closes."""
    import fcntl  # not on every platform: see platforms.py

    if hasattr(os, "O_ASYNC"):
        if not leads_its_group():
            # What an env starts must end with this process, and nothing else must.
            os.setpgid(0, 0)
        fcntl.fcntl(0, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0] and not os.read(0, 1):
        raise SystemExit(EXIT_HOST_GONE)


def leads_its_group() -> bool:
    """Whether this process leads its process group."""
    return os.getpgrp() == os.getpid()
