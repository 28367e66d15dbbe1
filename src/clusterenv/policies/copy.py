"""Weights as one flat vector, and a policy copy that knows which version it holds."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from clusterenv.errors import ProtocolError
from clusterenv.policies.base import Policy
from clusterenv.wire.codec import Array, Buffer
from clusterenv.wire.values import dtype_of_plain_data

Layout = tuple[tuple[str, str, tuple[int, ...]], ...]


def layout_of(weights: Mapping[str, Array]) -> Layout:
    """Name, dtype and shape of each array, in order."""
    return tuple((name, array.dtype.str, array.shape) for name, array in weights.items())


@dataclass(frozen=True)
class Snapshot:
    """The weights of one version, immutable."""

    version: int
    layout: Layout
    vector: bytes

    @staticmethod
    def take(version: int, weights: Mapping[str, Array]) -> Snapshot:
        """Copy ``weights`` once, into one flat buffer."""
        arrays = {name: np.asarray(array) for name, array in weights.items()}
        vector = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
        return Snapshot(version, layout_of(arrays), vector)

    @property
    def checksum(self) -> int:
        """Of the vector, for the receiver to compare."""
        return zlib.crc32(self.vector)


class PolicyCopy:
    """A policy on a worker; its weights change only as a whole, after a check."""

    def __init__(self, policy: Policy, layout: bytes) -> None:
        self.policy = policy
        self.version = 0
        self._layout = msgspec.msgpack.decode(layout, type=Layout)

    def load(self, version: int, vector: Buffer, checksum: int) -> None:
        """Take the weights of ``version``; ProtocolError if they are damaged."""
        if zlib.crc32(vector) != checksum:
            raise ProtocolError(f"the weights of version {version} are damaged")
        self.policy.load(_split(self._layout, bytes(vector)))
        self.version = version


def _split(layout: Layout, vector: bytes) -> dict[str, Array]:
    arrays, offset = {}, 0
    for name, dtype_name, shape in layout:
        dtype = dtype_of_plain_data(dtype_name)
        arrays[name] = np.ndarray(shape, dtype, buffer=vector, offset=offset)
        offset += math.prod(shape) * dtype.itemsize
    if offset != len(vector):
        raise ProtocolError(f"weights of {len(vector)} bytes, the layout takes {offset}")
    return arrays
