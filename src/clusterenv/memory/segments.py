"""Memory without a name: inherited by workers, gone with the last process that has it."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys

AVAILABLE = hasattr(os, "memfd_create")
_WORTH_LOOKING_BYTES = 1 << 26


def create(name: str, size: int = 0) -> int:
    """A descriptor of new memory; OSError if there is not so much of it."""
    fd = os.memfd_create(f"clusterenv-{name}", os.MFD_CLOEXEC)
    try:
        if size:
            allocate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def allocate(fd: int, size: int) -> None:
    """Give ``fd`` real pages; raise OSError now rather than SIGBUS later."""
    # Asking for more than there is would not fail: it would have the kernel kill processes.
    if size > _WORTH_LOOKING_BYTES and size > (available := _available_bytes()):
        raise OSError(errno.ENOMEM, f"{size} bytes of shared memory wanted, {available} available")
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        wanted = f"{size} bytes of shared memory wanted: {error.strerror}"
        raise OSError(error.errno, wanted) from None


def map_memory(fd: int, size: int) -> memoryview:
    """The first ``size`` bytes behind ``fd``, for reading and writing."""
    return memoryview(mmap.mmap(fd, size))


def _available_bytes() -> int:
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return sys.maxsize
