"""Infos of a fragment ⇄ bytes: a column per name, with the rows that have it.

Numbers and arrays of numbers travel as they lie in memory; everything else is packed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from clusterenv.arrays import Array, Buffer
from clusterenv.errors import ProtocolError
from clusterenv.plain.values import dtype_of_plain_data, unpack

PREFIX = "infos/"
"""Arrays of a fragment whose names begin with this are made by :func:`pack_columns`."""
MOST_COLUMNS = 10_000
DEEPEST = 16
"""A dict nested in this many others is one object."""

_ROWS = np.dtype(np.int32)
_LARGEST_SIDE = 2**31


class PackedColumn(msgspec.Struct, array_like=True, frozen=True):
    """One name: either numbers of one dtype and shape, or packed objects."""

    path: tuple[str, ...]
    """The names of the dicts that it is in, and its own."""
    rows: bytes = b""
    """``step * len(slots) + column`` of each value; empty if every row has one, in order."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    values: bytes = b""
    objects: tuple[bytes, ...] = ()


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    slots: tuple[int, ...]
    columns: tuple[PackedColumn, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


@dataclass(frozen=True, eq=False)
class InfoColumn:
    """The values of one name: ``values[i]`` is from ``slots[i]`` in ``steps[i]``."""

    path: tuple[str, ...]
    steps: Array
    slots: Array
    values: Array | list[Any]
    """An array with a row per value, or a list of objects."""
    unread: str = ""
    """For objects that could not be unpickled here and are left out: one slot, and the reason."""


def pack_columns(slots: Sequence[int], columns: Iterable[PackedColumn]) -> Array:
    """The infos of a worker's envs, as bytes."""
    return np.frombuffer(_encode(_Packed(tuple(slots), tuple(columns))), np.uint8)


def read_columns(
    data: Buffer, num_steps: int, slots: Sequence[int], *, allow_pickle: bool
) -> list[InfoColumn]:
    """What :func:`pack_columns` packed, for some of these slots; otherwise ProtocolError."""
    try:
        packed = _decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"infos of another layout: {error!s:.300}") from error
    if not packed.slots or not set(packed.slots).issubset(slots):
        raise ProtocolError("infos of slots that are not in the fragment")
    if len(packed.columns) > MOST_COLUMNS:
        raise ProtocolError(f"{len(packed.columns)} infos; {MOST_COLUMNS} are allowed")
    return [_read(one, num_steps, packed.slots, allow_pickle) for one in packed.columns]


def _read(
    packed: PackedColumn, num_steps: int, slots: Sequence[int], allow_pickle: bool
) -> InfoColumn:
    if not 1 <= len(packed.path) <= DEEPEST:
        raise ProtocolError(f"an info within {len(packed.path)} dicts")
    rows = _read_rows(packed.rows, num_steps * len(slots))
    count = len(rows)
    if not packed.dtype and len(packed.objects) != count:
        raise ProtocolError(f"{len(packed.objects)} values of {count} infos")
    values: Array | list[Any]
    kept: Any = slice(None)
    unread: dict[int, ProtocolError] = {}
    if packed.dtype:
        values = _read_numbers(packed, count)
    else:
        objects, unread = _read_objects(packed, allow_pickle)
        kept, values = list(objects), list(objects.values())
    steps, columns = np.divmod(rows, len(slots))
    said_by = np.array(slots)[columns]
    why = "".join([f"slot {said_by[i]}: {error}" for i, error in unread.items()][:1])
    return InfoColumn(packed.path, steps[kept], said_by[kept], values, why)


def _read_objects(
    packed: PackedColumn, allow_pickle: bool
) -> tuple[dict[int, Any], dict[int, ProtocolError]]:
    """By number: the objects, and the errors of those that cannot be unpickled."""
    objects: dict[int, Any] = {}
    unread: dict[int, ProtocolError] = {}
    for number, one in enumerate(packed.objects):
        try:
            objects[number] = unpack(one, allow_pickle=allow_pickle)
        except ProtocolError as error:
            if not allow_pickle:
                name = ".".join(packed.path)
                raise ProtocolError(f"the info {name!r:.200} cannot be read: {error}") from error
            # The rest of the fragment is good.
            unread[number] = error
    return objects, unread


def _read_rows(data: bytes, count: int) -> Array:
    if not data:
        return np.arange(count)
    if len(data) % _ROWS.itemsize:
        raise ProtocolError("rows of infos that are no numbers")
    rows = np.frombuffer(data, _ROWS)
    if rows.min() < 0 or rows.max() >= count:
        raise ProtocolError("infos of steps that are not in the fragment")
    return rows


def _read_numbers(packed: PackedColumn, count: int) -> Array:
    dtype, shape = dtype_of_plain_data(packed.dtype), packed.shape
    if dtype.kind not in "biufc" or not all(0 < side < _LARGEST_SIDE for side in shape):
        raise ProtocolError(f"infos of {dtype} and shape {shape!r:.80}")
    if len(shape) > DEEPEST or len(packed.values) != count * dtype.itemsize * math.prod(shape):
        raise ProtocolError(f"{len(packed.values)} bytes of {count} infos")
    return np.frombuffer(packed.values, dtype).reshape(count, *shape)
