"""What envs say besides their rows ⇄ bytes.

Most envs that say something in every step say the same things with other numbers. Then an array per
name travels, instead of a dict per slot: packing and merging dicts costs more than many an env.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusterenv.errors import ProtocolError
from clusterenv.wire.codec import Array
from clusterenv.wire.values import pack, unpack

Info = tuple[int, dict[str, Any]]
"""A slot, and what its env said."""

_PYTHONS_OWN = (int, float, bool)


@dataclass(frozen=True, eq=False)
class InfosByName:
    """The infos of some slots, ascending, that have the same names; a number per slot for each."""

    slots: Array
    numbers: dict[str, Array]
    pythons_own: tuple[str, ...]
    """The names whose numbers are Python's, not NumPy's."""

    @staticmethod
    def of(infos: Sequence[Info]) -> InfosByName | None:
        """``infos``, if they are alike."""
        slots = [slot for slot, _ in infos]
        names = infos[0][1].keys()
        alike = all(info.keys() == names for _, info in infos) and slots == sorted(set(slots))
        if not alike or any(_has_a_meaning(name) for name in names):
            return None
        numbers = {name: _column([info[name] for _, info in infos]) for name in names}
        if any(column is None for column in numbers.values()):
            return None
        first = infos[0][1]
        own = tuple(name for name in names if type(first[name]) in _PYTHONS_OWN)
        return InfosByName(np.array(slots), numbers, own)  # type: ignore[arg-type]

    def by_slot(self) -> list[Info]:
        """As the envs made them."""
        columns = [
            array.tolist() if name in self.pythons_own else list(array)
            for name, array in self.numbers.items()
        ]
        rows = zip(*columns, strict=True)
        return [
            (slot, dict(zip(self.numbers, row, strict=True)))
            for slot, row in zip(self.slots.tolist(), rows, strict=True)
        ]


def _has_a_meaning(name: Any) -> bool:
    """Whether merging treats it differently: a mask's name, say, or no name at all."""
    return type(name) is not str or name.startswith("_") or name == "final_obs"


def _column(values: list[Any]) -> Array | None:
    """An array of numbers of one type; None where that would change any of them."""
    kind = type(values[0])
    if kind not in _PYTHONS_OWN and not issubclass(kind, np.number):
        return None
    if any(type(value) is not kind for value in values):
        return None
    try:
        return np.array(values, kind)
    except OverflowError:
        return None


def pack_infos(infos: Sequence[Info], *, allow_pickle: bool) -> bytes:
    """Infos of slots, which may be named twice, in this order; empty if there are none."""
    if not infos:
        return b""
    by_name = InfosByName.of(infos)
    if by_name is None:
        return pack(list(infos), allow_pickle=allow_pickle)
    parts = (by_name.slots, by_name.numbers, by_name.pythons_own)
    return pack(parts, allow_pickle=False)


def unpack_infos(data: bytes, *, allow_pickle: bool) -> list[Info] | InfosByName:
    """What :func:`pack_infos` packed; ProtocolError if it is anything else."""
    match unpack(data, allow_pickle=allow_pickle):
        case list(infos) if all(_is_info(info) for info in infos):
            return infos
        case (np.ndarray() as slots, dict(numbers), tuple(own)) if _fit(slots, numbers):
            return InfosByName(slots, numbers, own)
    raise ProtocolError("a reply has infos of another layout")


def _is_info(info: Any) -> bool:
    match info:
        case (int(), dict()):
            return True
    return False


def _fit(slots: Array, numbers: dict[Any, Any]) -> bool:
    if slots.ndim != 1 or not slots.size or slots.dtype != np.int64 or not numbers:
        return False
    return all(
        type(name) is str
        and isinstance(column, np.ndarray)
        and column.shape == slots.shape
        and column.dtype.kind in "biufc"
        for name, column in numbers.items()
    )
