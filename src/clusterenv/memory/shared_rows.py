"""The rows of a host's slots, in memory that the host and all its workers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clusterenv.arrays import Array, Buffer
from clusterenv.errors import ProtocolError
from clusterenv.memory.answer_flags import MOST_PARTS, AnswerFlags, PartFlags
from clusterenv.memory.segments import map_memory
from clusterenv.plain.row_layout import RowLayout, aligned
from clusterenv.plain.spaces import Leaf, rows_of
from clusterenv.plain.values import dtype_of_plain_data

_WORDS_PER_SLOT = (1, 2, 2, MOST_PARTS, 1, 1)


class SharedRows:
    """Actions and results of a host's slots, one row each, and the flags of its workers.

    A worker may be killed while it writes, so the previous contents of its rows are kept until it
    has answered.

    Args:
        fd: The memory, of at least :meth:`size_of` bytes.
        slots: The slots of the host, which are consecutive. Each worker has at least one.
        num_workers: How many workers share the memory.
        action: The leaf of the action space, if that is a single array.
        leaves: The leaves of the observation space.
    """

    def __init__(
        self,
        fd: int,
        slots: range,
        num_workers: int,
        action: Leaf | None,
        leaves: Sequence[Leaf],
    ) -> None:
        self.slots, count = slots, len(slots)
        self._first, self._count = slots.start, count
        self._memory = map_memory(fd, self.size_of(count, action, leaves))
        self._offset = 0
        # Only the first rows of these are needed.
        words, host = self._take_words(1)[:num_workers], self._take_words(2)[:2]
        self.flags = AnswerFlags(words, host, self._take_words(2)[: num_workers + 1])
        answers, counts = self._take_words(MOST_PARTS), self._take_words(1)[:num_workers]
        self.part_flags = PartFlags(answers, counts, host)
        self._writes = self._take_words(1)
        self._layout = layout = RowLayout(leaves)
        self.memory = self._take_bytes(layout.size(count))
        """All results in one piece."""
        self.results = layout.view(self.memory, count)
        before = layout.view(self._take_bytes(layout.size(count)), count)
        self.now_and_before = [
            (now, then)
            for now, then in zip(self.results.observations, before.observations, strict=True)
            if now is not None and then is not None
        ]
        self._action_shape = action.shape if action is not None else ()
        self._action_bytes = self._take_actions(action)
        self._action_views: dict[str, Array] = {}
        # The dtype of the last actions; mostly the next ones have the same.
        self._dtype: np.dtype[Any] | None = None
        self._dtype_name = ""

    def put_actions(self, actions: Array, slots: Sequence[int] | None = None) -> str:
        """Write a row for each of these slots (ascending), or all; returns the dtype's name."""
        if actions.dtype is not self._dtype:
            # Assembling its name each time costs more than writing the actions.
            self._dtype, self._dtype_name = actions.dtype, actions.dtype.str
            self.actions(self._dtype_name)
        rows = ... if slots is None else self.rows_of(slots)
        self._action_views[self._dtype_name][rows] = actions
        return self._dtype_name

    def rows_of(self, slots: Sequence[int]) -> slice | list[int]:
        """An index of the rows of ``slots`` (ascending)."""
        return rows_of(slots, self._first)

    def actions(self, dtype: str) -> Array:
        """The action rows seen as ``dtype``: envs get the dtype that the user passed."""
        if dtype not in self._action_views:
            assert self._action_bytes is not None
            # A slot's row begins at the same byte whatever the dtype: rows never overlap.
            width = math.prod(self._action_shape) * np.dtype(dtype).itemsize
            rows = self._action_bytes[:, :width].view(dtype)
            self._action_views[dtype] = rows.reshape(self._count, *self._action_shape)
        return self._action_views[dtype]

    def copy_actions(self, dtype: str, slots: Sequence[int]) -> Any:
        """A copy for envs, which may keep an action and write to it."""
        return self.actions(dtype)[self.rows_of(slots)].copy()

    def read_actions(self, dtype: str, count: int, frame: Buffer) -> Array:
        """The actions of this many slots, from bytes that came from elsewhere."""
        kind = dtype_of_plain_data(dtype)
        shape = (count, *self._action_shape)
        if math.prod(shape) * kind.itemsize != len(frame) or self._action_bytes is None:
            raise ProtocolError(f"{len(frame)} bytes are no actions of shape {shape} of {dtype}")
        return np.frombuffer(frame, kind).reshape(shape)

    def copy_of(self, slots: Sequence[int]) -> memoryview:
        """The results of these slots (ascending) only, in one piece."""
        memory = bytearray(self._layout.size(len(slots)))
        rows, copy = self.rows_of(slots), self._layout.view(memory, len(slots))
        for target, source in zip(copy.arrays, self.results.arrays, strict=True):
            target[...] = source[rows]
        return memoryview(memory)

    def expect_no_answer(self, worker: int) -> None:
        """Let nobody wait for the flag of a worker that is gone."""
        self.flags.expect_no_answer(worker)

    def begin_to_write(self, slots: Sequence[int], worker: int, request: int) -> None:
        """Back up these rows before a worker writes its answer to ``request`` there."""
        rows = self.rows_of(slots)
        for now, before in self.now_and_before:
            before[rows] = now[rows]
        self.note_write(worker, request)

    def note_write(self, worker: int, request: int) -> None:
        """Note that the worker writes its answer to ``request``, and its rows are backed up."""
        self._writes[worker] = request

    def take_back(self, slots: Sequence[int], worker: int, request: int) -> None:
        """Restore the observations from before the write of a worker that is gone unanswered."""
        if self._writes[worker] != request:
            return
        rows = self.rows_of(slots)
        for now, before in self.now_and_before:
            now[rows] = before[rows]

    def _take_words(self, per_slot: int) -> memoryview:
        return self._take_bytes(8 * per_slot * self._count).cast("q")

    def _take_actions(self, action: Leaf | None) -> Array | None:
        if action is None:
            return None
        width = _action_row_bytes(action)
        memory = self._take_bytes(width * self._count)
        return np.ndarray((self._count, width), np.uint8, memory)

    def _take_bytes(self, size: int) -> memoryview:
        start, self._offset = self._offset, self._offset + aligned(size)
        return self._memory[start : start + size]

    @staticmethod
    def size_of(num_slots: int, action: Leaf | None, leaves: Sequence[Leaf]) -> int:
        """How many bytes this many rows take."""
        words = sum(aligned(8 * count * num_slots) for count in _WORDS_PER_SLOT)
        results = 2 * RowLayout(leaves).size(num_slots)
        actions = 0 if action is None else aligned(_action_row_bytes(action) * num_slots)
        return words + results + actions


class RowRange:
    """The rows of consecutive slots, as views of the arrays of all rows."""

    def __init__(self, shared: SharedRows, slots: Sequence[int]) -> None:
        rows = shared.rows_of(slots)
        results = shared.results
        self.rewards = results.rewards[rows]
        self.terminated, self.truncated = results.terminated[rows], results.truncated[rows]
        self.observations = [None if a is None else a[rows] for a in results.observations]
        self._now_and_before = [(now[rows], before[rows]) for now, before in shared.now_and_before]
        self._shared, self._rows = shared, rows
        self._actions: dict[str, Array] = {}

    def copy_actions(self, dtype: str) -> Array:
        """Like :meth:`SharedRows.copy_actions`."""
        actions = self._actions.get(dtype)
        if actions is None:
            actions = self._actions[dtype] = self._shared.actions(dtype)[self._rows]
        return actions.copy()

    def keep(self) -> None:
        """Back these rows up, in case their worker is killed while it writes."""
        for now, before in self._now_and_before:
            np.copyto(before, now)


def _action_row_bytes(leaf: Leaf) -> int:
    # Room for any number, whatever the space says; see SharedRows.actions.
    assert leaf.dtype is not None
    return math.prod(leaf.shape) * max(16, leaf.dtype.itemsize)
