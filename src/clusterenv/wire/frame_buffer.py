"""Large frames through shared memory: the worker writes, the head reads and releases.

The buffer grows with what is sent. Where there is no room, frames take the socket instead.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from clusterenv.arrays import Buffer
from clusterenv.wire.messages import InFrameBuffer
from clusterenv.wire.shared_memory import allocate

_ALIGNMENT = 64
# Room for one message that is being read, one that waits, and one that is being written.
_MESSAGES = 3


class FrameWriter:
    """The worker's end. ``released`` is a shared counter that only the head advances."""

    def __init__(self, fd: int, released: memoryview) -> None:
        self._fd, self._released = fd, released
        self._memory: memoryview | None = None
        self._capacity = 0
        self._written = 0
        self._base = 0

    def write(self, header: bytes, frames: Sequence[Buffer]) -> InFrameBuffer | None:
        """Copy ``frames`` into the buffer; None if they do not fit."""
        needed = sum(_aligned(len(frame)) for frame in frames) or _ALIGNMENT
        if needed * _MESSAGES > self._capacity and not self._grow(needed * _MESSAGES):
            return None
        start = self._written
        offset = (start - self._base) % self._capacity
        if offset + needed > self._capacity:
            start, offset = start + self._capacity - offset, 0
        end = start + needed
        if end - self._released[0] > self._capacity:
            return None
        position = offset
        for frame in frames:
            assert self._memory is not None
            self._memory[position : position + len(frame)] = frame
            position += _aligned(len(frame))
        self._written = end
        return InFrameBuffer(header, offset, tuple(map(len, frames)), end)

    def _grow(self, capacity: int) -> bool:
        """Only while nothing waits to be read: what lies there would move."""
        if self._written != self._released[0]:
            return False
        try:
            allocate(self._fd, capacity)
        except OSError:
            return False
        self._memory = memoryview(mmap.mmap(self._fd, capacity))
        self._capacity, self._base = capacity, self._written
        return True


class FrameReader:
    """The head's end."""

    def __init__(self, fd: int, released: memoryview) -> None:
        self._fd, self._released = fd, released
        self._memory = memoryview(b"")

    def read(self, message: InFrameBuffer) -> list[Buffer]:
        """Copies of the frames, which are then released."""
        position = message.offset
        if position + sum(map(_aligned, message.sizes)) > len(self._memory):
            self._memory = memoryview(mmap.mmap(self._fd, os.fstat(self._fd).st_size))
        frames: list[Buffer] = []
        for size in message.sizes:
            frames.append(memoryview(bytearray(self._memory[position : position + size])))
            position += _aligned(size)
        self._released[0] = message.end
        return frames


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
