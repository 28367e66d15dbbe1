"""Weights as one flat vector, and a policy copy that knows which version it holds."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from functools import cached_property

import msgspec
import numpy as np

from clusterenv.arrays import Array, Buffer
from clusterenv.errors import ProtocolError
from clusterenv.plain.values import dtype_of_plain_data
from clusterenv.policies.base import Policy
from clusterenv.policies.encoding import Layout, decode, round_to_bf16


def layout_of(weights: Mapping[str, Array]) -> Layout:
    """Name, dtype and shape of each array, in order."""
    return tuple((name, array.dtype.str, array.shape) for name, array in weights.items())


def encode_layout(layout: Layout) -> bytes:
    """The layout as it travels, once per policy."""
    return msgspec.msgpack.encode(layout)


class Snapshot:
    """The weights of one version: one flat vector that is never written to again."""

    def __init__(self, weights: Mapping[str, Array], encoding: str = "raw") -> None:
        self.layout = layout_of(weights)
        self.vector = bytearray(sum(array.nbytes for array in weights.values()))
        for name, part in split_vector(self.layout, self.vector).items():
            np.copyto(part, weights[name])
            _refuse_not_a_number(name, part)
        if encoding != "raw":
            round_to_bf16(self.vector, self.layout)

    @cached_property
    def checksum(self) -> int:
        """The vector's, for the receiver to compare. Slow: not for the learner's thread."""
        return zlib.crc32(self.vector)


def _refuse_not_a_number(name: str, array: Array) -> None:
    # One dot product is much cheaper than checking every number; it is finite only if all are.
    if array.dtype.kind in "fc":
        flat = array.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.dot(flat, flat)):
                return
        if not np.isfinite(array).all():
            raise ValueError(
                f"the weights {name!r} hold NaN or infinity: training has diverged; nothing was "
                "published"
            )


class PolicyCopy:
    """A policy whose weights change only as a whole."""

    def __init__(self, policy: Policy, layout: bytes) -> None:
        self.policy = policy
        self.version = 0
        self._layout = decode_layout(layout)

    def take(self, version: int, vector: Buffer | bytearray) -> None:
        """Act with a copy of ``vector`` from now on; a copy, because a policy may write to it."""
        self.policy.load(split_vector(self._layout, bytearray(vector)))
        self.version = version


class Received:
    """Weights that arrive through a socket: decoded, checked, and kept for the next delta."""

    def __init__(self) -> None:
        self._version, self._vector = 0, bytearray()

    def decode(
        self, layout: bytes, version: int, encoding: str, base: int, checksum: int, data: Buffer
    ) -> bytearray:
        """The vector of a version; ProtocolError if it is damaged."""
        before = self._vector if base and base == self._version else None
        vector = decode(encoding, data, decode_layout(layout), before)
        if zlib.crc32(vector) != checksum:
            raise ProtocolError(f"the weights of version {version} are damaged (checksum mismatch)")
        self._version, self._vector = version, vector
        return vector


def decode_layout(data: bytes) -> Layout:
    """What :func:`encode_layout` made."""
    layout: Layout = msgspec.msgpack.decode(data, type=Layout)
    return layout


def split_vector(layout: Layout, vector: bytearray) -> dict[str, Array]:
    """The arrays that lie in ``vector``, without a copy."""
    arrays, offset = {}, 0
    for name, dtype_name, shape in layout:
        dtype = dtype_of_plain_data(dtype_name)
        count = math.prod(shape)
        part = np.frombuffer(vector, np.uint8, count * dtype.itemsize, offset)
        arrays[name] = part.view(dtype).reshape(shape)
        offset += part.nbytes
    if offset != len(vector):
        raise ProtocolError(f"weights of {len(vector)} bytes, the layout takes {offset}")
    return arrays
