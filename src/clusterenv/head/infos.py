"""What envs said besides their rows, kept until the caller takes it, merged as Gymnasium does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError
from clusterenv.plain.infos import Info, InfosByName

AddInfo = Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]]


class Infos:
    """Infos of slots, by slot or by name, in the order in which they came."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._by_slot: list[Info] = []
        self._by_name: list[InfosByName] = []

    def put(self, infos: list[Info] | InfosByName, slots: Sequence[int]) -> None:
        """Take what a worker says of its ``slots``."""
        named = infos.slots.tolist() if isinstance(infos, InfosByName) else [s for s, _ in infos]
        if not frozenset(slots).issuperset(named):
            raise ProtocolError("a reply has infos of other slots")
        if isinstance(infos, InfosByName):
            self._by_name.append(infos)
        else:
            self._by_slot.extend(infos)

    def note(self, slot: int, info: dict[str, Any]) -> None:
        """What the head itself has to say of a slot."""
        self._by_slot.append((slot, info))

    def forget(self) -> None:
        """Drop the infos of what was abandoned."""
        self._by_slot, self._by_name = [], []

    def take(self, add_info: AddInfo) -> dict[str, Any]:
        """Merge the infos so far in slot order, with ``add_info``."""
        if not (self._by_slot or self._by_name):
            return {}
        # Taken first: infos that do not fit together must not come again with the next step.
        by_slot, by_name = self._by_slot, self._by_name
        self.forget()
        is_gymnasiums = getattr(add_info, "__func__", None) is VectorEnv._add_info
        if is_gymnasiums and not by_slot and _are_alike(by_name):
            return _merge_by_name(by_name, self._num_envs, [group.slots for group in by_name])
        return _merge([*by_slot, *_spread(by_name)], add_info)

    def take_of(self, slots: Sequence[int]) -> dict[str, Any]:
        """Merge the infos of some slots (ascending), a row for each of them; keep the others."""
        if not (self._by_slot or self._by_name):
            return {}
        row_of = {slot: row for row, slot in enumerate(slots)}
        whole = [g for g in self._by_name if all(slot in row_of for slot in g.slots.tolist())]
        others = [group for group in self._by_name if group not in whole]
        by_slot = [*self._by_slot, *_spread(others)]
        wanted = [(row_of[slot], info) for slot, info in by_slot if slot in row_of]
        self._by_slot = [(slot, info) for slot, info in by_slot if slot not in row_of]
        self._by_name = []
        rows = [np.array([row_of[slot] for slot in group.slots.tolist()]) for group in whole]
        if not wanted and _are_alike(whole):
            return _merge_by_name(whole, len(slots), rows)
        wanted += [(row_of[slot], info) for slot, info in _spread(whole)]
        return _merge(wanted, _Merger(len(slots))._add_info)


def _spread(groups: Sequence[InfosByName]) -> list[Info]:
    return [info for group in groups for info in group.by_slot()]


def _merge(infos: list[Info], add_info: AddInfo) -> dict[str, Any]:
    """Into one dict, row by row: the first value decides the dtype of its array."""
    merged: dict[str, Any] = {}
    # Stable: a slot's own infos stay in the order in which they were made.
    for row, info in sorted(infos, key=lambda pair: pair[0]):
        merged = add_info(merged, info, row)
    return merged


def _are_alike(groups: Sequence[InfosByName]) -> bool:
    """Whether they have the same names, with numbers of the same kinds."""
    kinds = [{name: array.dtype for name, array in group.numbers.items()} for group in groups]
    return bool(groups) and all(kind == kinds[0] for kind in kinds)


def _merge_by_name(
    groups: Sequence[InfosByName], num_rows: int, rows: Sequence[Array]
) -> dict[str, Any]:
    """What :func:`_merge` would make of these, which are alike, with Gymnasium's ``_add_info``."""
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
