"""The infos of a rollout: an array [T, n, …] per name, made on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.protocol.fragment_infos import InfoColumn

# Values up to this size are stacked into [T, n, …] even if few rows have one.
_LARGEST_STACKED_BYTES = 4096
_MOST_SHOWN = 12


class StepInfos(Mapping[str, Any]):
    """The envs' infos of each step, in the form of Gymnasium's vector infos, with a time axis.

    ``infos[name]`` is an array [T, n] of numbers, [T, n, …] of arrays up to 4 KiB each, or else an
    object array [T, n] with None where there is no value; a dict of the env is another such
    mapping. ``infos["_" + name]`` is the mask [T, n] of the rows that have it. Nothing is copied
    until a name is asked for.
    """

    def __init__(
        self, num_steps: int, slots: Array, columns: Sequence[InfoColumn], depth: int = 0
    ) -> None:
        self._num_steps, self._slots, self._depth = num_steps, slots, depth
        self._by_name: dict[str, list[InfoColumn]] = {}
        for column in columns:
            name = column.path[depth] if depth < len(column.path) else ""
            self._by_name.setdefault(name, []).append(column)
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        masks = (f"_{name}" for name in self._by_name)
        return iter(dict.fromkeys([*self._by_name, *masks]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"StepInfos({self.outline()})"

    def outline(self) -> str:
        """The names, and the kinds of their arrays; if there are many, the first ones."""
        kinds = [self._kind_of(name) for name in islice(self._by_name, _MOST_SHOWN)]
        if len(self._by_name) > _MOST_SHOWN:
            kinds.append(f"… ({len(self._by_name)} names)")
        return f"{{{', '.join(kinds)}}}"

    def _kind_of(self, name: str) -> str:
        value = self[name]
        if isinstance(value, StepInfos):
            return f"{name}: {value.outline()}"
        return f"{name}: {value.dtype} {value.shape}"

    def _make(self, name: str) -> Any:
        # As in Gymnasium's infos, the mask wins over an info that happens to have its name.
        if name[:1] == "_" and name[1:] in self._by_name:
            return self._mask(self._by_name[name[1:]])
        columns = self._by_name[name]
        if any(len(column.path) > self._depth + 1 for column in columns):
            # If some envs have a dict and others a value of that name, the values are under "".
            return StepInfos(self._num_steps, self._slots, columns, self._depth + 1)
        shapes = {_shape_of(column) for column in columns}
        if len(shapes) == 1 and (shape := shapes.pop()) is not None:
            return self._stack(columns, shape)
        return self._gather(columns)

    def _rows_of(self, column: InfoColumn) -> tuple[Array, Array]:
        return column.steps, np.searchsorted(self._slots, column.slots)

    def _mask(self, columns: Sequence[InfoColumn]) -> Array:
        mask = np.zeros((self._num_steps, len(self._slots)), np.bool_)
        for column in columns:
            mask[self._rows_of(column)] = True
        return mask

    def _stack(self, columns: Sequence[InfoColumn], shape: tuple[int, ...]) -> Array:
        dtype = np.result_type(*[np.asarray(column.values).dtype for column in columns])
        array = np.zeros((self._num_steps, len(self._slots), *shape), dtype)
        for column in columns:
            array[self._rows_of(column)] = column.values
        return array

    def _gather(self, columns: Sequence[InfoColumn]) -> Array:
        array = np.full((self._num_steps, len(self._slots)), None, object)
        for column in columns:
            steps, places = self._rows_of(column)
            rows = zip(steps.tolist(), places.tolist(), column.values, strict=True)
            for step, place, value in rows:
                array[step, place] = value.copy() if isinstance(value, np.ndarray) else value
        return array


def _shape_of(column: InfoColumn) -> tuple[int, ...] | None:
    """The shape of each value, if they may become one array."""
    values = column.values
    if isinstance(values, list) or values[:1].nbytes > _LARGEST_STACKED_BYTES:
        return None
    _, *shape = values.shape
    return tuple(shape)
