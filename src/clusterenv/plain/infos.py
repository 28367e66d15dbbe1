"""Infos of envs ⇄ bytes.

Most envs with infos in every step report the same names with other numbers. Then one array per name
travels instead of one dict per slot: packing and merging dicts costs more than many an env.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import ge, itemgetter
from typing import Any

import msgspec
import numpy as np

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError
from clusterenv.plain.batched_infos import BatchedInfos, pack_batched, unpack_batched
from clusterenv.plain.values import check_bools, dtype_of_plain_data, pack, unpack

Info = tuple[int, dict[str, Any]]
"""A slot, and the info of its env."""

_PYTHONS_OWN = (int, float, bool)
_OTHER_LAYOUT = "a reply has infos of another layout"


@dataclass(frozen=True, eq=False)
class InfosByName:
    """Infos of some slots (ascending) that have the same names, with a number per slot for each."""

    slots: Array
    numbers: dict[str, Array]
    pythons_own: tuple[str, ...]
    """The names whose numbers are Python's and not NumPy's."""

    @staticmethod
    def of(infos: Sequence[Info]) -> InfosByName | None:
        """``infos`` by name, if they are alike."""
        slots, dicts = zip(*infos, strict=True)
        first, own = dicts[0], []
        if set(map(len, dicts)) != {len(first)} or any(map(ge, slots, slots[1:])):
            return None
        numbers: dict[str, Array] = {}
        for name, value in first.items():
            column = None if _has_a_meaning(name) else _column(name, dicts)
            if column is None:
                return None
            numbers[name] = column
            if type(value) in _PYTHONS_OWN:
                own.append(name)
        return InfosByName(np.array(slots), numbers, tuple(own))

    def by_slot(self) -> list[Info]:
        """The infos as the envs made them."""
        columns = [
            array.tolist() if name in self.pythons_own else list(array)
            for name, array in self.numbers.items()
        ]
        rows = zip(*columns, strict=True)
        return [
            (slot, dict(zip(self.numbers, row, strict=True)))
            for slot, row in zip(self.slots.tolist(), rows, strict=True)
        ]


@lru_cache(maxsize=256, typed=True)
def _has_a_meaning(name: Any) -> bool:
    """Whether merging treats the name differently, or it may not even be text."""
    if type(name) is not str or not name.isascii():
        return True
    return name.startswith("_") or name == "final_obs"


def _column(name: str, dicts: Sequence[dict[str, Any]]) -> Array | None:
    """An array of numbers of one type; None if that would change any, or if one is missing."""
    try:
        values = list(map(itemgetter(name), dicts))
        (kind,) = set(map(type, values))
        is_number = kind in _PYTHONS_OWN or issubclass(kind, np.number)
        return np.array(values, kind) if is_number else None
    except (KeyError, ValueError, OverflowError):
        return None


class _Packed(msgspec.Struct, array_like=True):
    """Infos by name, as they travel."""

    slots: bytes
    columns: dict[str, tuple[str, bytes]]
    """The dtype and the numbers of each name."""
    pythons_own: tuple[str, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode
# The first byte says what the others are.
_BY_NAME, _BY_SLOT, _BATCHED = b"n", b"s", b"b"


def pack_infos(infos: Sequence[Info] | BatchedInfos, *, allow_pickle: bool) -> bytes:
    """Infos by slot, in this order; a slot may be named twice. Empty if there are none."""
    if not infos:
        return b""
    if isinstance(infos, BatchedInfos):
        return _BATCHED + pack_batched(infos, allow_pickle=allow_pickle)
    by_name = InfosByName.of(infos)
    if by_name is None:
        return _BY_SLOT + pack(list(infos), allow_pickle=allow_pickle)
    numbers = by_name.numbers.items()
    columns = {name: (array.dtype.str, array.tobytes()) for name, array in numbers}
    return _BY_NAME + _encode(_Packed(by_name.slots.tobytes(), columns, by_name.pythons_own))


def unpack_infos(data: bytes, *, allow_pickle: bool) -> list[Info] | InfosByName | BatchedInfos:
    """What :func:`pack_infos` packed; ProtocolError if it is anything else."""
    if data[:1] == _BATCHED:
        return unpack_batched(data[1:], allow_pickle=allow_pickle)
    if data[:1] == _BY_NAME:
        return _read_by_name(data[1:])
    if data[:1] == _BY_SLOT:
        infos = unpack(data[1:], allow_pickle=allow_pickle)
        if isinstance(infos, list) and all(_is_info(info) for info in infos):
            return infos
    raise ProtocolError(_OTHER_LAYOUT)


def _read_by_name(data: bytes) -> InfosByName:
    try:
        packed = _decode(data)
        slots = np.frombuffer(packed.slots, np.int64)
        numbers = {
            name: np.frombuffer(column, dtype_of_plain_data(dtype))
            for name, (dtype, column) in packed.columns.items()
        }
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"{_OTHER_LAYOUT}: {error!s:.300}") from error
    shape = slots.shape
    if not slots.size or not numbers:
        raise ProtocolError(_OTHER_LAYOUT)
    for column in numbers.values():
        if column.shape != shape or column.dtype.kind not in "biufc":
            raise ProtocolError(_OTHER_LAYOUT)
        check_bools(column, "an info")
    return InfosByName(slots, numbers, packed.pythons_own)


def _is_info(info: Any) -> bool:
    match info:
        case (int(), dict()):
            return True
    return False
