"""Memory without a name: inherited by workers, gone with the last process that has it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
import threading
from collections.abc import Iterator

AVAILABLE = hasattr(os, "memfd_create")
_WORTH_LOOKING_BYTES = 1 << 26
_MAP_FIXED = 0x10
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


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


class _Mapping(threading.local):
    """How this thread maps memory."""

    keeps_from_children = False


_mapping = _Mapping()


def map_memory(fd: int, size: int) -> memoryview:
    """The first ``size`` bytes behind ``fd``, for reading and writing.

    Unlike that of ``mmap.mmap(fd, size)``, the mapping holds no descriptor of its own, which would
    stay open for as long as anybody looks at the memory.
    """
    if size > (there := os.fstat(fd).st_size):
        # Whoever touched the rest of it would get SIGBUS.
        raise ValueError(f"{size} bytes to map, which is greater than file size {there}")
    memory = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    flags = mmap.MAP_SHARED | _MAP_FIXED
    # In place of the anonymous pages, which `memory` unmaps in the end, whatever they are.
    if _mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size} bytes of shared memory: {os.strerror(number)}")
    if _mapping.keeps_from_children:
        memory.madvise(mmap.MADV_DONTFORK)
    return memoryview(memory)


@contextlib.contextmanager
def kept_from_children() -> Iterator[None]:
    """What this thread maps meanwhile is not there in processes that are forked later.

    An env may fork, and its child may return into the worker's loop: it must not write rows or
    answers that the worker itself is going to write. Whoever touches such memory ends with SIGSEGV.
    """
    before, _mapping.keeps_from_children = _mapping.keeps_from_children, True
    try:
        yield
    finally:
        _mapping.keeps_from_children = before


def _available_bytes() -> int:
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return sys.maxsize
