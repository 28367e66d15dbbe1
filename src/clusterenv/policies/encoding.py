"""Weights as they travel: raw, rounded to bf16, or as the difference from what the host has.

All work on the flat vector of :class:`~clusterenv.policies.copy.Snapshot`. With ``bf16`` and
``delta`` a version *is* the rounded vector: head and hosts hold the same bytes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np

from clusterenv.arrays import Array, Buffer
from clusterenv.errors import ProtocolError

Encoding = Literal["raw", "bf16", "delta"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)
Layout = tuple[tuple[str, str, tuple[int, ...]], ...]
_FLOAT32 = "<f4"


def check_encoding(encoding: str) -> str:
    """Return ``encoding``; ValueError if there is no such encoding."""
    if encoding not in ENCODINGS:
        raise ValueError(f"encoding={encoding!r} must be one of {', '.join(ENCODINGS)}")
    return encoding


def round_to_bf16(vector: bytearray, layout: Layout) -> None:
    """Round every float32 in ``vector`` to the nearest bf16, in place."""
    for part, is_float in _parts(vector, layout):
        if is_float:
            bits = part.view(np.uint32)
            bits += 0x7FFF + (bits >> 16 & 1)
            bits &= 0xFFFF0000


def encode(
    vector: bytearray, layout: Layout, encoding: str, base: bytearray | None
) -> tuple[str, Buffer]:
    """Encode ``vector`` for a host that holds ``base``: the encoding used, and the bytes."""
    if encoding == "raw":
        return "raw", memoryview(vector)
    codes, rest = _split(vector, layout)
    if encoding == "delta" and base is not None:
        delta = _compress(_difference(codes, _split(base, layout)[0]))
        if len(delta) < codes.nbytes:
            return "delta", memoryview(delta + rest)
    return "bf16", memoryview(codes.tobytes() + rest)


def decode(encoding: str, data: Buffer, layout: Layout, base: bytearray | None) -> bytearray:
    """The vector; ProtocolError if ``data`` does not fit the layout."""
    if encoding == "raw":
        return bytearray(data)
    count = sum(math.prod(shape) for _, dtype, shape in layout if dtype == _FLOAT32)
    if encoding == "delta":
        if base is None:
            raise ProtocolError("a weight delta whose base version is not here")
        changes, rest = _decompress(data, count)
        codes = _apply(changes, _split(base, layout)[0])
    elif len(data) < 2 * count:
        raise ProtocolError(f"{len(data)} bytes cannot hold {count} bf16 weights")
    else:
        codes, rest = np.frombuffer(data[: 2 * count], np.uint16), bytes(data[2 * count :])
    return _join(codes, rest, layout)


def _parts(vector: bytearray, layout: Layout) -> Iterator[tuple[Array, bool]]:
    """The bytes of each array in ``vector``, and whether they are float32."""
    offset = 0
    for _, dtype, shape in layout:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        yield np.frombuffer(vector, np.uint8, size, offset), dtype == _FLOAT32
        offset += size


def _split(vector: bytearray, layout: Layout) -> tuple[Array, bytes]:
    """The upper halves of all float32, and the bytes of everything else."""
    codes, rest = [np.empty(0, np.uint16)], b""
    for part, is_float in _parts(vector, layout):
        if is_float:
            codes.append(part.view(np.uint16)[1::2])
        else:
            rest += part.tobytes()
    return np.concatenate(codes), rest


def _join(codes: Array, rest: bytes, layout: Layout) -> bytearray:
    size = sum(math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in layout)
    if size != 4 * len(codes) + len(rest):
        raise ProtocolError(f"{len(codes)} rounded weights do not fit the layout")
    vector = bytearray(size)
    taken = used = 0
    for part, is_float in _parts(vector, layout):
        if is_float:
            halves = part.view(np.uint16)[1::2]
            halves[:] = codes[taken : taken + len(halves)]
            taken += len(halves)
        else:
            part[:] = np.frombuffer(rest, np.uint8, len(part), used)
            used += len(part)
    return vector


def _in_order(codes: Array) -> Array:
    """bf16 as integers in numerical order: neighbours differ by 1."""
    return np.asarray(np.where(codes & 0x8000, ~codes, codes | 0x8000))


def _difference(codes: Array, base: Array) -> Array:
    """Steps from one bf16 to the other, with the sign in the last bit: small steps stay small."""
    steps: Array = (_in_order(codes) - _in_order(base)).view(np.int16)
    folded = np.asarray((steps << 1) ^ (steps >> 15))
    unsigned: Array = folded.view(np.uint16)
    return unsigned


def _apply(changes: Array, base: Array) -> Array:
    steps = (changes >> 1) ^ (0 - (changes & 1))
    ordered = _in_order(base) + steps
    return np.asarray(np.where(ordered & 0x8000, ordered & 0x7FFF, ~ordered))


def _compress(changes: Array) -> bytes:
    """All upper bytes, which are mostly zero, then all lower ones."""
    halves = changes.view(np.uint8)
    packer = zlib.compressobj(1, strategy=zlib.Z_RLE)
    shuffled = np.concatenate([halves[1::2], halves[0::2]]).tobytes()
    return packer.compress(shuffled) + packer.flush()


def _decompress(data: Buffer, count: int) -> tuple[Array, bytes]:
    """The ``count`` changes, and what follows them."""
    unpacker = zlib.decompressobj()
    try:
        halves = np.frombuffer(unpacker.decompress(data, 2 * count), np.uint8)
        # The end mark may not have been read yet.
        beyond = unpacker.decompress(unpacker.unconsumed_tail, 1)
    except zlib.error as error:
        raise ProtocolError(f"damaged weights: {error}") from error
    if len(halves) != 2 * count or beyond or not unpacker.eof:
        raise ProtocolError("a weight delta of the wrong length")
    changes = np.empty(2 * count, np.uint8)
    changes[1::2], changes[0::2] = halves[:count], halves[count:]
    return changes.view(np.uint16), unpacker.unused_data
