"""Memory that the head and all its workers share: the arrays of all slots, a row for each."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.plain.spaces import Leaf, rows_of
from clusterenv.wire.marks import MOST_PARTS, Marks, PartMarks

_CACHE_LINE = 64


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
        # Of these only the first rows are needed.
        words, head = self._take_words(1)[:num_places], self._take_words(2)[:2]
        self.marks = Marks(words, head, self._take_words(2)[: num_places + 1])
        answers, counts = self._take_words(MOST_PARTS), self._take_words(1)[:num_places]
        self.part_marks = PartMarks(answers, counts, head)
        self.rewards = self._take(np.dtype(np.float64), ())
        self.terminated = self._take(np.dtype(np.bool_), ())
        self.truncated = self._take(np.dtype(np.bool_), ())
        self.observations = self._take_leaves(leaves)
        self.now_and_before = [
            (now, before)
            for now, before in zip(self.observations, self._take_leaves(leaves), strict=True)
            if now is not None and before is not None
        ]
        self._writes = self._take_words(1)
        self._action_shape = action.shape if action is not None else ()
        self._action_bytes = (
            self._take(np.dtype(np.uint8), (_action_row_bytes(action),)) if action else None
        )
        self._action_views: dict[str, Array] = {}
        # Of the actions that were put last; mostly the next are alike.
        self._dtype: np.dtype[Any] | None = None
        self._dtype_name = ""

    def put_actions(self, actions: Array, slots: Sequence[int] | None = None) -> str:
        """Write a row for each of these slots (ascending), or all; the dtype to read them with."""
        if actions.dtype is not self._dtype:
            # To put its name together each time costs more than to write the actions.
            self._dtype, self._dtype_name = actions.dtype, actions.dtype.str
            self.actions(self._dtype_name)
        rows = ... if slots is None else rows_of(slots)
        self._action_views[self._dtype_name][rows] = actions
        return self._dtype_name

    def actions(self, dtype: str) -> Array:
        """The action rows seen as ``dtype``: envs get the dtype that the user passed."""
        if dtype not in self._action_views:
            assert self._action_bytes is not None
            # A slot's row begins at the same byte whatever the dtype: rows never overlap.
            width = math.prod(self._action_shape) * np.dtype(dtype).itemsize
            rows = self._action_bytes[:, :width].view(dtype)
            self._action_views[dtype] = rows.reshape(self._num_envs, *self._action_shape)
        return self._action_views[dtype]

    def copy_actions(self, dtype: str, slots: Sequence[int]) -> Any:
        """For envs, which may keep an action, and may write to it."""
        return self.actions(dtype)[rows_of(slots)].copy()

    def begin_to_write(self, slots: Sequence[int], place: int, request: int) -> None:
        """The worker in ``place`` is going to write its answer to ``request`` to these rows."""
        rows = rows_of(slots)
        for now, before in self.now_and_before:
            before[rows] = now[rows]
        self.note_write(place, request)

    def note_write(self, place: int, request: int) -> None:
        """What these rows said before is in safety."""
        self._writes[place] = request

    def take_back(self, slots: Sequence[int], place: int, request: int) -> None:
        """The worker is gone without an answer: the observations are those before it wrote."""
        if self._writes[place] != request:
            return
        rows = rows_of(slots)
        for now, before in self.now_and_before:
            now[rows] = before[rows]

    def _take_leaves(self, leaves: Sequence[Leaf]) -> list[Array | None]:
        return [
            self._take(leaf.dtype, leaf.shape) if leaf.dtype is not None else None
            for leaf in leaves
        ]

    def _take_words(self, per_slot: int) -> memoryview:
        return self._take(np.dtype(np.int64), (per_slot,)).reshape(-1).data

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
        words = [1, 2, 2, MOST_PARTS, 1, 1]
        rows = [
            *(8 * count for count in words),
            8,
            1,
            1,
            *(2 * [_row_bytes(leaf) for leaf in leaves]),
        ]
        if action is not None:
            rows.append(_action_row_bytes(action))
        return sum(_aligned(num_envs * row) for row in rows)


class Window:
    """The rows of slots that are neighbours: the arena's arrays, but only these rows."""

    def __init__(self, arena: Arena, rows: slice) -> None:
        self.rewards = arena.rewards[rows]
        self.terminated, self.truncated = arena.terminated[rows], arena.truncated[rows]
        self.observations = [None if a is None else a[rows] for a in arena.observations]
        self._now_and_before = [(now[rows], before[rows]) for now, before in arena.now_and_before]
        self._arena, self._rows = arena, rows
        self._actions: dict[str, Array] = {}

    def copy_actions(self, dtype: str) -> Array:
        """As :meth:`Arena.copy_actions`."""
        actions = self._actions.get(dtype)
        if actions is None:
            actions = self._actions[dtype] = self._arena.actions(dtype)[self._rows]
        return actions.copy()

    def keep(self) -> None:
        """Keep what these rows say, for the case that their worker is killed while it writes."""
        for now, before in self._now_and_before:
            np.copyto(before, now)


def _row_bytes(leaf: Leaf) -> int:
    return 0 if leaf.dtype is None else math.prod(leaf.shape) * leaf.dtype.itemsize


def _action_row_bytes(leaf: Leaf) -> int:
    # Room for any number whatever the space says, see Arena.actions.
    assert leaf.dtype is not None
    return math.prod(leaf.shape) * max(16, leaf.dtype.itemsize)


def _aligned(size: int) -> int:
    return -(-size // _CACHE_LINE) * _CACHE_LINE
