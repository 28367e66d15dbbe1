"""Makes room for file descriptors, and checks the limit before something fails halfway.

libzmq ends the process if it cannot open one, and other errors say only "too many".
"""

from __future__ import annotations

import contextlib
import errno
import os

PER_WORKER = 12
"""How many a host needs per worker: pipes, bells, memory and a log; some only to start it."""
PER_HOST = 8
"""How many the head needs for a host that it starts or that connects to it."""
FOR_SOCKETS = 48
"""How many libzmq needs for its threads and sockets, with some to spare."""


def make_room(wanted: int, what: str) -> None:
    """Make sure that ``wanted`` more descriptors can be opened; otherwise OSError with numbers.

    The soft limit of this process is raised if it is too low and the hard limit allows it.

    Args:
        wanted: How many.
        what: What they are for, for the error.
    """
    import resource  # not on every platform: see platforms.py

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    # Reading the directory needs one itself; if there is none left, `soft` of them are open.
    num_open = soft
    # Not every container has the first, and only Linux has the second.
    for folder in ("/dev/fd", "/proc/self/fd"):
        with contextlib.suppress(OSError):
            num_open = len(os.listdir(folder)) - 1
    needed = num_open + wanted
    if needed <= soft:
        return
    if hard == resource.RLIM_INFINITY or needed <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    raise OSError(
        errno.EMFILE,
        f"{wanted} more file descriptors are wanted for {what}, but {num_open} of at most {hard} "
        "are open: close files, use fewer workers, or raise the hard limit (ulimit -Hn)",
    )
