"""The infos of a VectorEnv: arrays with a row per env, which stay arrays throughout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError
from clusterenv.plain.values import dtype_of_plain_data, pack, unpack

Tree = dict[str, Any]
"""Arrays by name; a dict in place of an array holds more of them."""

_OTHER_LAYOUT = "a reply has infos of another layout"
# Kinds of rewards.
_NUMBERS = "biuf"


@dataclass(frozen=True, eq=False)
class BatchedInfos:
    """A VectorEnv's infos of some slots (ascending), with one row per slot in each array."""

    slots: Array
    tree: Tree
    reward_dtype: str = ""
    """The dtype of the rewards beside them, if the VectorEnv has its own."""

    def part(self, rows: Array) -> BatchedInfos:
        """The infos of some of these slots only."""
        return BatchedInfos(self.slots[rows], take_rows(self.tree, rows), self.reward_dtype)

    def by_slot(self) -> list[tuple[int, dict[str, Any]]]:
        """One dict per slot, for those who merge them in another way."""
        split = split_infos(self.tree, len(self.slots))
        return [pair for pair in zip(self.slots.tolist(), split, strict=True) if pair[1]]


def take_rows(tree: Tree, rows: Any) -> Tree:
    """Some rows of all arrays."""
    return {
        name: take_rows(value, rows) if isinstance(value, dict) else value[rows]
        for name, value in tree.items()
    }


def is_mask(name: str, tree: Tree) -> bool:
    """Whether this is the mask that says which envs have a value in another array."""
    return name.startswith("_") and name[1:] in tree


def as_if_reset_at_once(tree: Tree, has_ended: Array) -> Tree:
    """Turn the last infos of an episode into its final info, as if it were reset in the step."""
    said: Tree = {}
    for name, value in tree.items():
        if not is_mask(name, tree):
            said[name], said[f"_{name}"] = value, tree.get(f"_{name}", True) & ~has_ended
    return {**said, "final_info": tree, "_final_info": has_ended}


def as_tree(infos: dict[str, Any], num_rows: int) -> Tree:
    """The infos of a VectorEnv of this many envs, as arrays. A single value holds for all.

    ValueError if something has rows for more or fewer envs.
    """
    tree: Tree = {}
    for name, value in infos.items():
        if not isinstance(name, str):
            raise ValueError(f"the VectorEnv has an info called {name!r}: names are strings")
        tree[name] = (
            as_tree(value, num_rows) if isinstance(value, dict) else _as_rows(name, value, num_rows)
        )
    return tree


def _as_rows(name: str, value: Any, num_rows: int) -> Array:
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.ndim == 0:
        return np.full(num_rows, array)
    if len(array) != num_rows:
        raise ValueError(
            f"the VectorEnv's info {name!r} has {len(array)} rows for {num_rows} envs: "
            "give each env a row"
        )
    return array


def merge(parts: Sequence[tuple[BatchedInfos, Array]], num_rows: int) -> Tree | None:
    """Merge them as one VectorEnv of all rows would have; ``parts`` come with their rows.

    None if arrays of one name have different dtypes or shapes.
    """
    only, rows = parts[0]
    if len(parts) == 1 and len(rows) == num_rows:
        return only.tree
    return _merge([(part.tree, rows) for part, rows in parts], num_rows)


def _merge(parts: Sequence[tuple[Tree, Array]], num_rows: int) -> Tree | None:
    merged: Tree = {}
    for name in {name: None for tree, _ in parts for name in tree}:
        having = [(tree[name], rows) for tree, rows in parts if name in tree]
        is_tree = {isinstance(value, dict) for value, _ in having}
        if len(is_tree) > 1:
            return None
        joined = _merge(having, num_rows) if True in is_tree else _join(having, num_rows, name)
        if joined is None:
            return None
        merged[name] = joined
    return merged


def _join(parts: Sequence[tuple[Array, Array]], num_rows: int, name: str) -> Array | None:
    """Join into one array; rows without a value are empty, as Gymnasium leaves them."""
    first, _ = parts[0]
    kind = first.dtype, first.shape[1:]
    if any((array.dtype, array.shape[1:]) != kind for array, _ in parts):
        return None
    shape = (num_rows, *first.shape[1:])
    are_objects = first.dtype.hasobject and first.ndim == 1
    joined = np.full(shape, None) if are_objects else np.zeros(shape, first.dtype)
    if name == "env_id" and joined.shape == (num_rows,) and joined.dtype.kind in "iu":
        # The number of each row's env is always known.
        joined[:] = np.arange(num_rows)
    for array, rows in parts:
        joined[rows] = array
    return joined


def split_infos(infos: Tree, count: int) -> list[dict[str, Any]]:
    """The infos of each env, from those of a VectorEnv."""
    split: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        parts = split_infos(value, count) if isinstance(value, dict) else value
        if isinstance(parts, np.ndarray) and parts.dtype == np.bool_:
            # Gymnasium makes a bool array from bools, but an object array from numpy bools.
            parts = parts.tolist()
        for row in range(count):
            if mask is None or mask[row]:
                split[row][key] = parts[row]
    return split


def pack_batched(infos: BatchedInfos, *, allow_pickle: bool) -> bytes:
    """The infos as bytes."""
    value = (infos.slots, infos.tree, infos.reward_dtype)
    return pack(value, allow_pickle=allow_pickle)


def unpack_batched(data: bytes, *, allow_pickle: bool) -> BatchedInfos:
    """What :func:`pack_batched` packed; ProtocolError if it is anything else."""
    match unpack(data, allow_pickle=allow_pickle):
        case (np.ndarray() as slots, dict() as tree, str(reward_dtype)):
            is_ascending = slots.ndim == 1 and bool((slots[1:] > slots[:-1]).all())
            if is_ascending and slots.dtype == np.int64 and slots.size:
                _check_tree(tree, len(slots))
                _check_reward_dtype(reward_dtype)
                return BatchedInfos(slots, tree, reward_dtype)
    raise ProtocolError(_OTHER_LAYOUT)


def _check_tree(tree: Tree, num_rows: int) -> None:
    for name, value in tree.items():
        if not isinstance(name, str):
            raise ProtocolError(_OTHER_LAYOUT)
        if isinstance(value, dict):
            _check_tree(value, num_rows)
        elif not isinstance(value, np.ndarray) or value.shape[:1] != (num_rows,):
            raise ProtocolError(_OTHER_LAYOUT)


def _check_reward_dtype(name: str) -> None:
    if name and dtype_of_plain_data(name).kind not in _NUMBERS:
        raise ProtocolError(_OTHER_LAYOUT)
