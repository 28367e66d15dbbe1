"""The infos of envs while a fragment is collected, kept by name.

Envs that report the same names in every step, with other numbers, cost an array per name and step;
everything else is packed at once, since an env may change it in its next step.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.plain.batched_infos import BatchedInfos, Tree, is_mask, take_rows
from clusterenv.plain.values import pack
from clusterenv.protocol.fragment_infos import (
    DEEPEST,
    MOST_COLUMNS,
    PREFIX,
    PackedColumn,
    pack_columns,
)
from clusterenv.worker.rows import Outcome

Path = tuple[str, ...]
_NUMBERS = (int, float, bool, np.bool_)
# Final observations are in the table of finals.
_LEFT_OUT = "final_obs"


class InfoRecord:
    """The infos of one fragment.

    Args:
        slots: The worker's slots.
        trusted: Whether objects may be pickled.
    """

    def __init__(self, slots: Sequence[int], trusted: bool) -> None:
        self._slots, self._trusted = tuple(slots), trusted
        self._column = {slot: column for column, slot in enumerate(slots)}
        # By name and type: the rows of each step, and all numbers. Arrays are made only at the end.
        self._numbers: dict[tuple[Path, type], tuple[list[Array], list[Any]]] = {}
        # By name, dtype and shape: (rows, values) of each step.
        self._arrays: dict[tuple[Path, str, tuple[int, ...]], list[tuple[Array, Array]]] = {}
        self._objects: dict[Path, list[tuple[int, bytes]]] = {}
        self._cannot_travel: set[Path] = set()

    def add(self, step: int, outcome: Outcome) -> None:
        """Add the infos of a step; a slot may be named twice."""
        if isinstance(outcome.infos, BatchedInfos):
            first, count = step * len(self._slots), len(self._slots)
            self._add_tree((), np.arange(first, first + count, dtype=np.int32), outcome.infos.tree)
            return
        dicts: Sequence[dict[str, Any]]
        slots, dicts = zip(*outcome.infos, strict=True)
        first = step * len(self._slots)
        if slots == self._slots:
            rows = np.arange(first, first + len(slots), dtype=np.int32)
        else:
            rows = np.array([first + self._column[slot] for slot in slots], np.int32)
        if not outcome.none_ended:
            dicts = [_without_final(info) for info in dicts]
        self._add_dicts((), rows, dicts)

    def arrays(self, num_steps: int) -> dict[str, Array]:
        """The infos as they travel with the fragment; empty if there are none."""
        for (path, kind), (rows, values) in self._numbers.items():
            self._take_numbers(path, np.concatenate(rows), kind, values)
        columns = [
            _column_of(path, dtype, shape, chunks, num_steps * len(self._slots))
            for (path, dtype, shape), chunks in self._arrays.items()
        ]
        for path, said in self._objects.items():
            row_numbers, packed = zip(*said, strict=True)
            places = np.array(row_numbers, np.int32).tobytes()
            columns.append(PackedColumn(path, places, objects=packed))
        if not columns:
            return {}
        return {f"{PREFIX}{self._slots[0]}": pack_columns(self._slots, columns[:MOST_COLUMNS])}

    def _take_numbers(self, path: Path, rows: Array, kind: type, values: list[Any]) -> None:
        try:
            self._add_array(path, rows, np.array(values, kind))
        except OverflowError:
            self._add_objects(path, rows, values)

    def _add_tree(self, path: Path, rows: Array, tree: Tree) -> None:
        """Add a VectorEnv's infos, which are arrays with a row for each of its envs."""
        for name, value in tree.items():
            if name == _LEFT_OUT or is_mask(name, tree):
                continue
            mask = tree.get(f"_{name}")
            said = slice(None) if mask is None else np.flatnonzero(mask)
            own, own_rows = (*path, name), rows[said]
            if isinstance(value, dict):
                self._add_tree(own, own_rows, take_rows(value, said))
            elif own_rows.size:
                # The VectorEnv may reuse its arrays in the next step.
                self._add_rows(own, own_rows, np.array(value[said]))

    def _add_rows(self, path: Path, rows: Array, values: Array) -> None:
        if values.dtype.hasobject:
            self._add(path, rows, values.tolist())
        elif _are_numbers(values.dtype, values.shape[1:]):
            self._add_array(path, rows, values)
        else:
            self._add_objects(path, rows, list(values))

    def _add_dicts(self, path: Path, rows: Array, dicts: Sequence[dict[Any, Any]]) -> None:
        """Add dicts in the same place, one per row."""
        try:
            if len(set(map(len, dicts))) > 1:
                raise KeyError
            columns = [(name, [one[name] for one in dicts]) for name in dicts[0]]
        except KeyError:
            for alike in _grouped(map(tuple, dicts)):
                self._add_dicts(path, rows[alike], [dicts[i] for i in alike])
            return
        for name, values in columns:
            self._add((*path, _text(name)), rows, values)

    def _add(self, path: Path, rows: Array, values: Sequence[Any]) -> None:
        """Add values of one name, one per row."""
        if not values:
            return
        kinds = set(map(type, values))
        if len(kinds) > 1:
            for alike in _grouped(map(type, values)):
                self._add(path, rows[alike], [values[i] for i in alike])
            return
        (kind,) = kinds
        if kind in _NUMBERS or _is_number(kind):
            all_rows, numbers = self._numbers.setdefault((path, kind), ([], []))
            all_rows.append(rows)
            numbers += values
        elif kind is dict and len(path) < DEEPEST:
            self._add_dicts(path, rows, values)
        elif kind is np.ndarray and _are_alike(values):
            self._add_array(path, rows, np.array(values))
        else:
            self._add_objects(path, rows, values)

    def _add_array(self, path: Path, rows: Array, values: Array) -> None:
        key = path, values.dtype.str, values.shape[1:]
        self._arrays.setdefault(key, []).append((rows, values))

    def _add_objects(self, path: Path, rows: Array, values: Sequence[Any]) -> None:
        for row, value in zip(rows.tolist(), values, strict=True):
            self._add_object(path, row, value)

    def _add_object(self, path: Path, row: int, value: Any) -> None:
        try:
            packed = pack(value, allow_pickle=self._trusted)
        except Exception as error:
            # A policy can act without it, so this is no reason to stop.
            if path not in self._cannot_travel:
                self._cannot_travel.add(path)
                warnings.warn(
                    f"info {'.'.join(path)!r} cannot travel, and is left out of this fragment: "
                    f"{error}; pass infos=False to rollout() or stream() if you need no infos",
                    stacklevel=2,
                )
            return
        self._objects.setdefault(path, []).append((row, packed))


def _without_final(info: dict[str, Any]) -> dict[str, Any]:
    if _LEFT_OUT not in info:
        return info
    return {name: value for name, value in info.items() if name != _LEFT_OUT}


def _are_alike(arrays: Sequence[Array]) -> bool:
    """Whether these are numbers of one dtype and shape."""
    (dtype, shape), *others = {(one.dtype, one.shape) for one in arrays}
    return not others and _are_numbers(dtype, shape)


def _are_numbers(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Whether such values travel as one array; others travel one by one."""
    return dtype.kind in "biufc" and 0 not in shape and len(shape) <= DEEPEST


def _column_of(
    path: Path,
    dtype: str,
    shape: tuple[int, ...],
    chunks: Sequence[tuple[Array, Array]],
    num_rows: int,
) -> PackedColumn:
    rows = np.concatenate([rows for rows, _ in chunks])
    values = np.concatenate([values for _, values in chunks])
    is_all = len(rows) == num_rows and bool((rows == np.arange(num_rows)).all())
    return PackedColumn(path, b"" if is_all else rows.tobytes(), dtype, shape, values.tobytes())


def _grouped(keys: Any) -> list[list[int]]:
    """The positions of equal keys."""
    groups: dict[Any, list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, []).append(place)
    return list(groups.values())


@lru_cache(maxsize=1024, typed=True)
def _text(name: Any) -> str:
    return str(name).encode("utf-8", "backslashreplace").decode()


def _is_number(kind: type) -> bool:
    # NumPy counts durations as numbers too.
    return issubclass(kind, np.number) and not issubclass(kind, np.timedelta64)
