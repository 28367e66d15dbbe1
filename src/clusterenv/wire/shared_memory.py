"""Memory that head and worker share: rings for messages, an arena for the arrays of all slots.

Only workers that this process spawned get it: they inherit the descriptors. A memfd has no name,
so nothing can be left behind, and pages are allocated for real before anyone writes to them.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import platform
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from clusterenv.wire.codec import Array
from clusterenv.wire.spaces import Leaf, rows_of

AVAILABLE = hasattr(os, "memfd_create") and hasattr(os, "eventfd")

# A reader that spins sees the counter before the data on machines with weak memory ordering;
# going through the eventfd orders them everywhere.
MAY_SPIN = platform.machine() in ("x86_64", "AMD64")

_CACHE_LINE = 64
_LENGTH_BYTES = 8
_SKIP = -1
_WORTH_LOOKING_BYTES = 1 << 26


def allocate(fd: int, size: int) -> None:
    """Give ``fd`` real pages; raise OSError now rather than SIGBUS later."""
    # Asking for more than there is would not fail: it would have the kernel kill processes.
    if size > _WORTH_LOOKING_BYTES and size > (available := _available_bytes()):
        raise OSError(errno.ENOMEM, f"{size} bytes wanted, {available} available")
    os.posix_fallocate(fd, 0, size)


def _available_bytes() -> int:
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return sys.maxsize


class Ring:
    """A queue of byte strings for one writer and one reader, in shared memory.

    Positions only ever grow; their difference is what is in flight.
    """

    CAPACITY = 1 << 18
    SIZE = 2 * _CACHE_LINE + CAPACITY

    def __init__(self, memory: memoryview) -> None:
        self._positions = memory[: 2 * _CACHE_LINE].cast("q")
        self._bytes = memory[2 * _CACHE_LINE : self.SIZE]
        self._lengths = self._bytes.cast("q")
        self._written, self._read = 0, _CACHE_LINE // 8

    def push(self, message: bytes) -> bool:
        """Append ``message``; False if there is no room (it must travel another way)."""
        positions = self._positions
        start = positions[self._written]
        needed = _LENGTH_BYTES + -(-len(message) // 8) * 8
        offset = start % self.CAPACITY
        skip = self.CAPACITY - offset if offset + needed > self.CAPACITY else 0
        if start + skip + needed - positions[self._read] > self.CAPACITY:
            return False
        if skip:
            self._lengths[offset // 8] = _SKIP
            start, offset = start + skip, 0
        self._lengths[offset // 8] = len(message)
        data = offset + _LENGTH_BYTES
        self._bytes[data : data + len(message)] = message
        positions[self._written] = start + needed
        return True

    def pop(self) -> bytes | None:
        """The oldest message, or None."""
        positions = self._positions
        start = positions[self._read]
        if start == positions[self._written]:
            return None
        offset = start % self.CAPACITY
        length = self._lengths[offset // 8]
        if length == _SKIP:
            start, offset = start + self.CAPACITY - offset, 0
            length = self._lengths[0]
        data = offset + _LENGTH_BYTES
        message = bytes(self._bytes[data : data + length])
        positions[self._read] = start + _LENGTH_BYTES + -(-length // 8) * 8
        return message

    def clear(self) -> None:
        """Make it as new, once nobody else has it."""
        self._positions[self._written] = self._positions[self._read] = 0

    def is_empty(self) -> bool:
        """Whether there is nothing to pop."""
        return bool(self._positions[self._written] == self._positions[self._read])

    def wait_spinning(self, seconds: float) -> bool:
        """Look again and again for at most ``seconds``, yielding the core; whether it is filled."""
        positions, written, read = self._positions, self._written, self._read
        if positions[written] != positions[read]:
            return True
        if not MAY_SPIN:
            return False
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            if positions[written] != positions[read]:
                return True
            os.sched_yield()
        return False


class Mailbox:
    """Two rings and a note of the slot being worked on, shared by the head and one worker."""

    SIZE = mmap.PAGESIZE + 2 * Ring.SIZE
    NO_SLOT = -1

    def __init__(self, fd: int) -> None:
        memory = memoryview(mmap.mmap(fd, self.SIZE))
        self._notes = memory[: mmap.PAGESIZE].cast("q")
        self.to_worker = Ring(memory[mmap.PAGESIZE :])
        self.to_head = Ring(memory[mmap.PAGESIZE + Ring.SIZE :])

    @staticmethod
    def create() -> int:
        """A descriptor for a new mailbox; OSError if there is no memory for it."""
        fd = os.memfd_create("clusterenv-mailbox", os.MFD_CLOEXEC)
        try:
            allocate(fd, Mailbox.SIZE)
        except OSError:
            os.close(fd)
            raise
        return fd

    def clear(self) -> None:
        """Make it as new, once nobody else has it."""
        for position in range(len(self._notes)):
            self._notes[position] = 0
        self.to_worker.clear()
        self.to_head.clear()

    @property
    def frames_released(self) -> memoryview:
        """How far the head has read the worker's frame buffer."""
        return self._notes[_CACHE_LINE // 8 :]

    @property
    def notes(self) -> memoryview:
        """``notes[0] - 1`` is the slot whose env runs now: what killed a worker can be named."""
        return self._notes

    @property
    def current_slot(self) -> int:
        """The slot whose env was running last, or NO_SLOT."""
        return int(self._notes[0]) - 1


class Arena:
    """The arrays of all slots: actions, observation leaves, rewards, flags; a row per slot.

    And the last request that each slot's worker has answered, see :meth:`note_answer`.
    """

    def __init__(self, fd: int, num_envs: int, action: Leaf | None, leaves: Sequence[Leaf]) -> None:
        size = self.size_of(num_envs, action, leaves)
        self._memory = memoryview(mmap.mmap(fd, size))
        self._offset = 0
        self._num_envs = num_envs
        self._fence = threading.Lock()
        self._answered = self._take(np.dtype(np.int64), ())
        self.rewards = self._take(np.dtype(np.float64), ())
        self.terminated = self._take(np.dtype(np.bool_), ())
        self.truncated = self._take(np.dtype(np.bool_), ())
        self.observations: list[Array | None] = [
            self._take(leaf.dtype, leaf.shape) if leaf.dtype is not None else None
            for leaf in leaves
        ]
        self._action_shape = action.shape if action is not None else ()
        self._action_bytes = (
            self._take(np.dtype(np.uint8), (_action_row_bytes(action),)) if action else None
        )
        self._action_views: dict[str, Array] = {}

    def actions(self, dtype: str) -> Array:
        """The action rows seen as ``dtype``: envs get the dtype that the user passed."""
        if dtype not in self._action_views:
            assert self._action_bytes is not None
            # A slot's row begins at the same byte whatever the dtype: rows never overlap.
            width = math.prod(self._action_shape) * np.dtype(dtype).itemsize
            rows = self._action_bytes[:, :width].view(dtype)
            self._action_views[dtype] = rows.reshape(self._num_envs, *self._action_shape)
        return self._action_views[dtype]

    def note_answer(self, slots: Sequence[int], request: int) -> bool:
        """The worker of ``slots`` has answered ``request``; whether all others have as well.

        Not always to be had: True, then, which costs the head a glance too many.
        """
        self._answered[rows_of(slots)] = request
        # Two that answer at once must see each other. The lock is this process's own and keeps
        # nobody out: taking it is a memory barrier between the writing and the reading.
        with self._fence:
            return not MAY_SPIN or bool(self._answered.min() >= request)

    def expect_no_answer(self, slots: Sequence[int]) -> None:
        """The worker of ``slots`` is gone: let nobody think that it will be the last to answer."""
        # Not `rows_of`: a worker that has just come, or had to give them up, has no slots.
        self._answered[list(slots)] = np.iinfo(np.int64).max

    def _take(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        count = self._num_envs * math.prod(shape)
        array = np.ndarray(
            (self._num_envs, *shape), dtype=dtype, buffer=self._memory, offset=self._offset
        )
        self._offset += _aligned(count * dtype.itemsize)
        return array

    @staticmethod
    def size_of(num_envs: int, action: Leaf | None, leaves: Sequence[Leaf]) -> int:
        """Bytes that such an arena takes."""
        rows = [8, 8, 1, 1, *(_row_bytes(leaf) for leaf in leaves)]
        if action is not None:
            rows.append(_action_row_bytes(action))
        return sum(_aligned(num_envs * row) for row in rows)


def _row_bytes(leaf: Leaf) -> int:
    return 0 if leaf.dtype is None else math.prod(leaf.shape) * leaf.dtype.itemsize


def _action_row_bytes(leaf: Leaf) -> int:
    # Room for any number whatever the space says, see Arena.actions.
    assert leaf.dtype is not None
    return math.prod(leaf.shape) * max(16, leaf.dtype.itemsize)


def _aligned(size: int) -> int:
    return -(-size // _CACHE_LINE) * _CACHE_LINE
