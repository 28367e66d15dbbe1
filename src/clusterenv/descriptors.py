"""Room for file descriptors: the limit is looked at before something fails halfway.

libzmq ends the process where it cannot open one, and other errors say nothing but "too many".
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource

PER_WORKER = 12
"""What a host needs for a worker: pipes, bells, memory and a log; some only to start it."""
PER_HOST = 8
"""What the head needs for a host that it starts, or that connects to it."""
FOR_SOCKETS = 48
"""What libzmq needs for its threads and sockets, with some to spare."""


def make_room(wanted: int, what: str) -> None:
    """See to it that so many more descriptors can be opened; OSError with numbers if they cannot.

    The soft limit of this process is raised where it is too low and the hard limit allows it.

    Args:
        wanted: How many.
        what: What they are for, for the error.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    # Reading the directory needs one itself; if there is not even that, there are `soft` of them.
    num_open = soft
    with contextlib.suppress(OSError):
        num_open = len(os.listdir("/proc/self/fd")) - 1
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
