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
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from clusterenv.wire.codec import Array
from clusterenv.wire.marks import MAY_SPIN, Marks, barrier
from clusterenv.wire.spaces import Leaf, rows_of

AVAILABLE = hasattr(os, "memfd_create") and hasattr(os, "eventfd")

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


class Mailbox:
    """Two rings, a call to step, and a note of the slot being worked on: of head and one worker.

    A call is what a lockstep repeats all the time, in three words: no message to write and read.
    """

    SIZE = mmap.PAGESIZE + 2 * Ring.SIZE
    NO_SLOT = -1
    _FRAMES = _CACHE_LINE // 8
    _CALLED = 2 * _CACHE_LINE // 8
    _DTYPE = _CALLED + 1
    _ALONE = _CALLED + 2
    _TAKEN = 3 * _CACHE_LINE // 8
    _ASLEEP = _TAKEN + 1

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
        return self._notes[self._FRAMES :]

    def can_call(self) -> bool:
        """Whether the worker has seen the last call, and all messages before the next."""
        notes = self._notes
        return notes[self._CALLED] == notes[self._TAKEN] and self.to_worker.is_empty()

    def call(self, request: int, dtype: str, alone: bool = False) -> None:
        """Have the worker step all its slots with the actions in the arena, of this dtype.

        ``alone``: the others do something else, so that it has to wake the head itself.
        """
        self._notes[self._DTYPE], self._notes[self._ALONE] = _number_of(dtype), alone
        self._notes[self._CALLED] = request

    def take_call(self) -> tuple[int, str, bool] | None:
        """The request, the dtype and ``alone`` of a call that was not taken yet."""
        notes = self._notes
        request = notes[self._CALLED]
        if request == notes[self._TAKEN]:
            return None
        notes[self._TAKEN] = request
        return request, _dtype_of(notes[self._DTYPE]), bool(notes[self._ALONE])

    def has_mail(self) -> bool:
        """Whether there is something for the worker."""
        notes = self._notes
        return notes[self._CALLED] != notes[self._TAKEN] or not self.to_worker.is_empty()

    def wait_spinning(self, seconds: float) -> bool:
        """Look again and again for at most ``seconds``, yielding the core; whether it has mail."""
        if self.has_mail():
            return True
        if not MAY_SPIN:
            return False
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            if self.has_mail():
                return True
            os.sched_yield()
        return False

    @property
    def is_asleep(self) -> bool:
        """Whether the worker would not see a call without its doorbell."""
        return bool(self._notes[self._ASLEEP])

    def fall_asleep(self) -> bool:
        """The worker will not look again before its doorbell rings; False if it has mail."""
        self._notes[self._ASLEEP] = 1
        # Either it sees the call, or the caller sees that it is asleep.
        barrier()
        return not self.has_mail()

    def wake_up(self) -> None:
        """The worker looks again."""
        self._notes[self._ASLEEP] = 0

    @property
    def notes(self) -> memoryview:
        """``notes[0] - 1`` is the slot whose env runs now: what killed a worker can be named."""
        return self._notes

    @property
    def current_slot(self) -> int:
        """The slot whose env was running last, or NO_SLOT."""
        return int(self._notes[0]) - 1


@cache
def _number_of(dtype: str) -> int:
    """The name of a dtype as a word; those of numbers are short."""
    return int.from_bytes(dtype.encode().ljust(8), "little")


@cache
def _dtype_of(number: int) -> str:
    return number.to_bytes(8, "little").decode().rstrip()


class Arena:
    """The arrays of all slots: actions, observation leaves, rewards, flags; a row per slot.

    And the marks of the workers, who have at least a slot each. A worker may be killed while it
    writes, so what its rows said before is kept until it has answered.
    """

    def __init__(
        self,
        fd: int,
        num_envs: int,
        num_places: int,
        action: Leaf | None,
        leaves: Sequence[Leaf],
    ) -> None:
        size = self.size_of(num_envs, action, leaves)
        self._memory = memoryview(mmap.mmap(fd, size))
        self._offset = 0
        self._num_envs = num_envs
        self.marks = Marks(self._take(np.dtype(np.int64), ()).data[:num_places])
        self.rewards = self._take(np.dtype(np.float64), ())
        self.terminated = self._take(np.dtype(np.bool_), ())
        self.truncated = self._take(np.dtype(np.bool_), ())
        self.observations = self._take_leaves(leaves)
        self._before = self._take_leaves(leaves)
        self._writes = self._take(np.dtype(np.int64), ())
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

    def begin_to_write(self, slots: Sequence[int], place: int, request: int) -> None:
        """The worker in ``place`` is going to write its answer to ``request`` to these rows."""
        rows = rows_of(slots)
        for now, before in zip(self.observations, self._before, strict=True):
            if now is not None and before is not None:
                before[rows] = now[rows]
        self._writes[place] = request

    def take_back(self, slots: Sequence[int], place: int, request: int) -> None:
        """The worker is gone without an answer: the observations are those before it wrote."""
        if self._writes[place] != request:
            return
        rows = rows_of(slots)
        for now, before in zip(self.observations, self._before, strict=True):
            if now is not None and before is not None:
                now[rows] = before[rows]

    def _take_leaves(self, leaves: Sequence[Leaf]) -> list[Array | None]:
        return [
            self._take(leaf.dtype, leaf.shape) if leaf.dtype is not None else None
            for leaf in leaves
        ]

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
        rows = [8, 8, 8, 1, 1, *(2 * [_row_bytes(leaf) for leaf in leaves])]
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
