"""Large frames through shared memory: one side writes, the other reads and releases.

The buffer grows with what waits in it, which is bounded by the number of requests under way.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

from clusterenv.arrays import Buffer
from clusterenv.memory.segments import allocate, map_memory
from clusterenv.protocol.message import Message

_ALIGNMENT = 64
# Growing costs a new mapping on both sides.
_SMALLEST_BYTES = 1 << 16


class InFrames(Message):
    """A message whose frames lie in the sender's frame buffer."""

    header: bytes
    offset: int
    sizes: tuple[int, ...]
    number: int
    """The number of its extent: released when the reader's counter reaches it."""


class FrameWriter:
    """The writing end. ``released`` is a shared counter that only the reader advances."""

    def __init__(self, fd: int, released: memoryview) -> None:
        self._fd, self._released = fd, released
        self._memory = memoryview(b"")
        # Extents that were unreleased at the last look, in order of writing: number, start, stop.
        self._unread: deque[tuple[int, int, int]] = deque()
        self._count = 0

    def write(self, header: bytes, frames: Sequence[Buffer]) -> InFrames:
        """Copy ``frames`` into the buffer; OSError if there is no memory for them."""
        needed = sum(_aligned(len(frame)) for frame in frames) or _ALIGNMENT
        offset = self._find_room(needed)
        position = offset
        for frame in frames:
            self._memory[position : position + len(frame)] = frame
            position += _aligned(len(frame))
        self._count += 1
        self._unread.append((self._count, offset, offset + needed))
        return InFrames(header, offset, tuple(map(len, frames)), self._count)

    def _find_room(self, needed: int) -> int:
        unread, released = self._unread, self._released[0]
        while unread and unread[0][0] <= released:
            unread.popleft()
        last, capacity = unread[-1][2] if unread else 0, len(self._memory)
        # The limit behind the newest extent: the next one that waits, or the end of the buffer.
        after = min((start for _, start, _ in unread if start >= last), default=capacity)
        if last + needed <= after:
            return last
        if after == capacity and needed <= min((start for _, start, _ in unread), default=0):
            return 0
        return self._grow(needed)

    def _grow(self, needed: int) -> int:
        """Append to the buffer; what is in it stays where it is."""
        # Behind everything that waits, and behind the end of the buffer if that has wrapped.
        start = max((stop for _, _, stop in self._unread), default=0)
        size = max(start + needed, 2 * len(self._memory), _SMALLEST_BYTES)
        try:
            allocate(self._fd, size)
        except OSError:
            size = start + needed
            allocate(self._fd, size)
        self._memory = map_memory(self._fd, size)
        return start


class FrameReader:
    """The reading end: views of the frames, which stay unchanged until they are released."""

    def __init__(self, fd: int, released: memoryview) -> None:
        self._fd, self._released = fd, released
        self._memory = memoryview(b"")
        # Extents are released in the order of writing; those that are done early wait here.
        self._done: set[int] = set()

    def read(self, message: InFrames) -> list[Buffer]:
        """Views of the frames; call :meth:`release` with the message's number when done."""
        position = message.offset
        if position + sum(map(_aligned, message.sizes)) > len(self._memory):
            self._memory = map_memory(self._fd, os.fstat(self._fd).st_size)
        frames: list[Buffer] = []
        for size in message.sizes:
            frames.append(self._memory[position : position + size])
            position += _aligned(size)
        return frames

    def release(self, number: int) -> None:
        """Release the frames of this extent."""
        self._done.add(number)
        while self._released[0] + 1 in self._done:
            self._done.remove(self._released[0] + 1)
            self._released[0] += 1


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
