"""Memory without a name: workers inherit it, and it is gone with the last process that has it.

If the system has no such thing, and workers are threads, it is a file that was removed at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

AVAILABLE = hasattr(os, "memfd_create")
_WORTH_LOOKING_BYTES = 1 << 26
_MAP_FIXED = 0x10


def create(name: str, size: int = 0) -> int:
    """A descriptor of new memory; OSError if there is not enough."""
    fd = os.memfd_create(f"clusterenv-{name}", os.MFD_CLOEXEC) if AVAILABLE else _removed_file()
    try:
        if size:
            allocate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def allocate(fd: int, size: int) -> None:
    """Give ``fd`` real pages; raise OSError now rather than SIGBUS later."""
    # Asking for more than there is would not fail: the kernel would kill processes later.
    if size > _WORTH_LOOKING_BYTES and size > (available := _available_bytes()):
        raise OSError(errno.ENOMEM, f"{size} bytes of shared memory wanted, {available} available")
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        elif size > os.fstat(fd).st_size:
            os.ftruncate(fd, size)
    except OSError as error:
        wanted = f"{size} bytes of shared memory wanted: {error.strerror}"
        raise OSError(error.errno, wanted) from None


class _Mapping(threading.local):
    """How this thread maps memory."""

    keeps_from_children = False


_mapping = _Mapping()


def map_memory(fd: int, size: int) -> memoryview:
    """The first ``size`` bytes behind ``fd``, for reading and writing.

    Unlike ``mmap.mmap(fd, size)``, the mapping holds no descriptor of its own, which would stay
    open for as long as anybody uses the memory.
    """
    if size > (there := os.fstat(fd).st_size):
        # Touching the rest of it would cause SIGBUS.
        raise ValueError(f"{size} bytes to map, which is greater than file size {there}")
    memory = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    flags = mmap.MAP_SHARED | _MAP_FIXED
    # In place of the anonymous pages; `memory` unmaps whatever is there in the end.
    if _mmap()(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size} bytes of shared memory: {os.strerror(number)}")
    if _mapping.keeps_from_children and hasattr(mmap, "MADV_DONTFORK"):
        memory.madvise(mmap.MADV_DONTFORK)
    return memoryview(memory)


@contextlib.contextmanager
def kept_from_children() -> Iterator[None]:
    """Keep what this thread maps meanwhile out of processes that are forked later.

    An env may fork, and its child may return into the worker's loop: it must not write rows or
    answers in the worker's place. A child that touches such memory ends with SIGSEGV.
    """
    before, _mapping.keeps_from_children = _mapping.keeps_from_children, True
    try:
        yield
    finally:
        _mapping.keeps_from_children = before


@functools.cache
def _mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return function


def _removed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _available_bytes() -> int:
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return sys.maxsize
