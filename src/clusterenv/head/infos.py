"""Infos of envs, kept until the caller takes them, and merged as Gymnasium does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError
from clusterenv.plain.batched_infos import BatchedInfos, merge
from clusterenv.plain.infos import Info, InfosByName

AddInfo = Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]]


class Infos:
    """Infos by slot, by name or in arrays, in order of arrival.

    Infos that do not fit together are an error, as in Gymnasium. If hosts are not ``trusted``, one
    of them could cause this error for all, and nobody could tell which; there, infos that do not
    fit become arrays of objects.
    """

    def __init__(self, num_envs: int, trusted: bool = True) -> None:
        self._num_envs, self._trusted = num_envs, trusted
        self._by_slot: list[Info] = []
        self._by_name: list[InfosByName] = []
        self._batched: list[BatchedInfos] = []
        self.reward_dtype: np.dtype[Any] | None = None
        """The dtype of the VectorEnvs' rewards, if it is not float64."""

    def put(self, infos: list[Info] | InfosByName | BatchedInfos, slots: Sequence[int]) -> None:
        """Take a worker's infos of its ``slots``."""
        if not _are_of(infos, slots):
            raise ProtocolError("a reply has infos of other slots")
        if isinstance(infos, BatchedInfos):
            self._put_batched(infos)
        elif isinstance(infos, InfosByName):
            self._by_name.append(infos)
        else:
            self._by_slot.extend(infos)

    def _put_batched(self, infos: BatchedInfos) -> None:
        if infos.reward_dtype:
            self.reward_dtype = np.dtype(infos.reward_dtype)
        if infos.tree:
            self._batched.append(infos)

    def note(self, slot: int, info: dict[str, Any]) -> None:
        """Add an info of the head's own for a slot."""
        self._by_slot.append((slot, info))

    def forget(self) -> None:
        """Drop the infos of abandoned requests."""
        self._by_slot, self._by_name, self._batched = [], [], []

    def take(self, add_info: AddInfo) -> dict[str, Any]:
        """Merge the infos so far, in slot order, with ``add_info``."""
        if not (self._by_slot or self._by_name or self._batched):
            return {}
        # Taken first: infos that do not fit together must not come back at the next step.
        by_slot, by_name, batched = self._by_slot, self._by_name, self._batched
        self.forget()
        is_gymnasiums = getattr(add_info, "__func__", None) is VectorEnv._add_info
        if is_gymnasiums and not by_slot and not batched and _are_alike(by_name):
            return _merge_by_name(by_name, self._num_envs, [group.slots for group in by_name])
        merged: dict[str, Any] | None = {}
        if batched:
            parts = [(part, part.slots) for part in batched]
            merged = _add_batched(parts, by_slot, self._num_envs) if is_gymnasiums else None
        others = [*by_slot, *_spread(by_name)]
        if merged is None:
            return self._merge([*others, *_spread(batched)], add_info, self._num_envs)
        return self._merge(others, add_info, self._num_envs, merged)

    def take_of(self, slots: Sequence[int]) -> dict[str, Any]:
        """Merge the infos of some slots (ascending), one row each; keep the others."""
        if not (self._by_slot or self._by_name or self._batched):
            return {}
        batched = self._take_batched(np.asarray(slots)) if self._batched else []
        wanted, whole = self._take_others(slots)
        row_of = {slot: row for row, slot in enumerate(slots)} if wanted or whole else {}
        rows = [np.array([row_of[slot] for slot in group.slots.tolist()]) for group in whole]
        if not wanted and not batched and _are_alike(whole):
            return _merge_by_name(whole, len(slots), rows)
        wanted += _spread(whole)
        by_row = [(row_of[slot], info) for slot, info in wanted]
        merged = _add_batched(batched, by_row, len(slots)) if batched else {}
        if merged is None:
            spread = [pair for part, rows in batched for pair in _by_row(part, rows)]
            by_row, merged = [*by_row, *spread], {}
        return self._merge(by_row, _Merger(len(slots))._add_info, len(slots), merged)

    def _take_others(self, slots: Sequence[int]) -> tuple[list[Info], list[InfosByName]]:
        """The wanted infos by slot and by name; those of other slots stay."""
        if not (self._by_slot or self._by_name):
            return [], []
        ours = frozenset(slots)
        whole = [group for group in self._by_name if ours.issuperset(group.slots.tolist())]
        others = [group for group in self._by_name if group not in whole]
        by_slot = [*self._by_slot, *_spread(others)]
        self._by_slot = [(slot, info) for slot, info in by_slot if slot not in ours]
        self._by_name = []
        return [(slot, info) for slot, info in by_slot if slot in ours], whole

    def _merge(
        self,
        infos: list[Info],
        add_info: AddInfo,
        num_rows: int,
        merged: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        if self._trusted:
            return _merge(infos, add_info, merged)
        try:
            return _merge(infos, add_info, dict(merged or {}))
        except Exception:
            return {**(merged or {}), **merge_by_force(infos, num_rows)}

    def _take_batched(self, slots: Array) -> list[tuple[BatchedInfos, Array]]:
        """The VectorEnvs' infos of these slots, with their rows; those of other slots stay."""
        taken, kept = [], []
        for part in self._batched:
            rows = np.searchsorted(slots, part.slots)
            is_wanted = slots.take(rows, mode="clip") == part.slots
            if not is_wanted.all():
                kept.append(part.part(np.flatnonzero(~is_wanted)))
                taken.append((part.part(np.flatnonzero(is_wanted)), rows[is_wanted]))
            else:
                taken.append((part, rows))
        self._batched = [part for part in kept if part.slots.size]
        return [(part, rows) for part, rows in taken if part.slots.size]


def _are_of(infos: list[Info] | InfosByName | BatchedInfos, slots: Sequence[int]) -> bool:
    """Whether they are infos of these slots (ascending) only."""
    if isinstance(infos, list):
        return frozenset(slots).issuperset(slot for slot, _ in infos)
    first, last = slots[0], slots[-1]
    if last - first + 1 == len(slots):
        return bool(first <= infos.slots.min() and infos.slots.max() <= last)
    return frozenset(slots).issuperset(infos.slots.tolist())


def _add_batched(
    parts: Sequence[tuple[BatchedInfos, Array]], others: Sequence[Info], num_rows: int
) -> dict[str, Any] | None:
    """Merge the VectorEnvs' infos, for ``others`` to be added; None if they do not fit together.

    Infos that share a name have to be merged row by row.
    """
    merged = merge(parts, num_rows)
    names = {name for _, info in others for name in info}
    return None if merged is None or not names.isdisjoint(merged) else merged


def _by_row(part: BatchedInfos, rows: Array) -> list[Info]:
    row_of = dict(zip(part.slots.tolist(), rows.tolist(), strict=True))
    return [(row_of[slot], info) for slot, info in part.by_slot()]


def _spread(groups: Sequence[InfosByName] | Sequence[BatchedInfos]) -> list[Info]:
    return [info for group in groups for info in group.by_slot()]


def _merge(
    infos: list[Info], add_info: AddInfo, merged: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Merge into one dict, row by row: the first value decides the dtype of its array."""
    merged = {} if merged is None else merged
    # Stable: infos of the same slot stay in the order in which they were made.
    for row, info in sorted(infos, key=lambda pair: pair[0]):
        merged = add_info(merged, info, row)
    return merged


def merge_by_force(infos: Sequence[Info], num_rows: int) -> dict[str, Any]:
    """Merge as Gymnasium does, name by name; what does not fit becomes an array of objects."""
    by_name: dict[str, list[tuple[int, Any]]] = {}
    for row, info in sorted(infos, key=lambda pair: pair[0]):
        for name, value in info.items():
            by_name.setdefault(_as_name(name), []).append((row, value))
    merged: dict[str, Any] = {}
    for name, values in by_name.items():
        if name.startswith("_") and name[1:] in by_name:
            continue  # the mask of the other name goes there
        try:
            alone = _merge([(row, {name: value}) for row, value in values], _add(num_rows))
        except Exception:
            alone = _as_objects(name, values, num_rows)
        merged |= alone
    return merged


def _as_name(name: Any) -> str:
    return name if type(name) is str else f"{name!r:.80}"


def _as_objects(name: str, values: Sequence[tuple[int, Any]], num_rows: int) -> dict[str, Any]:
    objects, has_it = np.full(num_rows, None, dtype=object), np.zeros(num_rows, np.bool_)
    for row, value in values:
        objects[row], has_it[row] = value, True
    return {name: objects, f"_{name}": has_it}


def _add(num_rows: int) -> AddInfo:
    return _Merger(num_rows)._add_info


def _are_alike(groups: Sequence[InfosByName]) -> bool:
    """Whether they have the same names, with numbers of the same kinds."""
    kinds = [{name: array.dtype for name, array in group.numbers.items()} for group in groups]
    return bool(groups) and all(kind == kinds[0] for kind in kinds)


def _merge_by_name(
    groups: Sequence[InfosByName], num_rows: int, rows: Sequence[Array]
) -> dict[str, Any]:
    """What :func:`_merge` with Gymnasium's ``_add_info`` would make of these groups, all alike."""
    merged: dict[str, Any] = {}
    has_it = np.zeros(num_rows, np.bool_)
    has_it[np.concatenate(rows)] = True
    first = min(groups, key=lambda group: int(group.slots[0]))
    for name, numbers in first.numbers.items():
        merged[name] = np.zeros(num_rows, numbers.dtype)
        for group, own in zip(groups, rows, strict=True):
            merged[name][own] = group.numbers[name]
        merged[f"_{name}"] = has_it.copy()
    return merged


class _Merger(VectorEnv[Any, Any, Any]):
    """Gymnasium's ``_add_info`` for a batch of another size."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
