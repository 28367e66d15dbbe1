"""The layout of a step's results in one piece of memory: rewards, flags, observation leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusterenv.arrays import Array, Buffer
from clusterenv.plain.spaces import Leaf

CACHE_LINE = 64


@dataclass(frozen=True, eq=False)
class ResultRows:
    """Results of some slots, one row each, as views of one piece of memory."""

    rewards: Array
    terminated: Array
    truncated: Array
    observations: list[Array | None]
    """By leaf; None for a leaf that is not an array."""

    @property
    def arrays(self) -> list[Array]:
        """All of them."""
        leaves = [array for array in self.observations if array is not None]
        return [self.rewards, self.terminated, self.truncated, *leaves]


class RowLayout:
    """The layout of results, the same in shared memory and on the wire."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = tuple(leaves)
        self.has_objects = not all(leaf.is_array for leaf in leaves)
        """Whether an observation has parts that are not arrays, which are not stored here."""
        self._sizes: dict[int, int] = {}

    def size(self, num_rows: int) -> int:
        """How many bytes this many rows take."""
        size = self._sizes.get(num_rows)
        if size is None:
            size = sum(aligned(num_rows * row) for row in self._row_bytes())
            self._sizes[num_rows] = size
        return size

    def _row_bytes(self) -> list[int]:
        return [8, 1, 1, *(row_bytes(leaf) for leaf in self._leaves)]

    def view(self, memory: Buffer | bytearray, num_rows: int) -> ResultRows:
        """The rows that lie in ``memory``, which has :meth:`size` bytes."""
        offset = 0

        def take(dtype: Any, shape: tuple[int, ...]) -> Array:
            nonlocal offset
            array: Array = np.ndarray((num_rows, *shape), dtype, memory, offset)
            offset += aligned(array.nbytes)
            return array

        return ResultRows(
            take(np.float64, ()),
            take(np.bool_, ()),
            take(np.bool_, ()),
            [take(leaf.dtype, leaf.shape) if leaf.is_array else None for leaf in self._leaves],
        )


def row_bytes(leaf: Leaf) -> int:
    """Bytes of one row of this leaf; 0 if it is not an array."""
    return 0 if leaf.dtype is None else math.prod(leaf.shape) * leaf.dtype.itemsize


def aligned(size: int) -> int:
    """``size``, rounded up to whole cache lines."""
    return -(-size // CACHE_LINE) * CACHE_LINE
