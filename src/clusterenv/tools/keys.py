"""Keys pressed in the terminal while something is shown there."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator

_QUIT = b"qQ"


@contextlib.contextmanager
def key_by_key() -> Iterator[bool]:
    """Make the terminal deliver each key at once; yields whether there is a terminal."""
    fd = _terminal()
    if fd is None:
        yield False
        return
    import termios  # not on every platform: see platforms.py
    import tty

    before = termios.tcgetattr(fd)
    try:
        # Ctrl-C still interrupts.
        tty.setcbreak(fd, termios.TCSANOW)
        yield True
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


def wait_for_quit(timeout_s: float, has_keys: bool) -> bool:
    """Wait ``timeout_s``, or until ``q`` is pressed; returns whether it was."""
    deadline = time.monotonic() + timeout_s
    while has_keys and (remaining_s := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], remaining_s)[0]:
            keys = os.read(sys.stdin.fileno(), 64)
            if any(key in _QUIT for key in keys):
                return True
            # End of input: nobody types there any more.
            has_keys = bool(keys)
    time.sleep(max(0.0, deadline - time.monotonic()))
    return False


def _terminal() -> int | None:
    """The terminal of standard input, if this process is in its foreground."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        fd = sys.stdin.fileno()
        if os.tcgetpgrp(fd) == os.getpgrp():
            return fd
    return None
