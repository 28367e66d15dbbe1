"""Observations on their way to the head in fewer bytes, where that pays. Nothing is lost.

Images that stack frames hold most of their bytes several times, and most of a frame is as it was in
the one before. A host writes each frame of a stack once (:mod:`clusterenv.wire.stacks`) and
compresses that. What is small, or does not get much smaller, travels as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from clusterenv.arrays import Array, Buffer, bytes_of
from clusterenv.errors import ProtocolError
from clusterenv.wire.compression import NOTHING, compress, decompress
from clusterenv.wire.stacks import (
    NO_STACK,
    check_axis,
    find_stack,
    most_bytes,
    read_stacks,
    write_stacks,
)

_SMALLEST_ROW_BYTES = 1024
# Coding has to save so many bytes per second of a core, or it is given up: a link of 1 Gbit/s, or a
# host's share of the head's faster one, takes as long for them.
_WORTH_BYTES_PER_S = 100e6
# And it has to leave no larger share: saving a quarter of some floats passes the rule above, but
# over a fast link it was slower than raw. That rule does not count what reading costs the head.
_LARGEST_SHARE = 0.5
_TRY_AGAIN_AFTER = 256

OBSERVATIONS, FINALS = "observations/", "finals/"


class Coding(msgspec.Struct, array_like=True, frozen=True):
    """How one array of a message was coded."""

    name: str
    compression: str
    axis: int = NO_STACK
    """Along which a stack's frames lie, where each is there once."""


class ObservationCodec:
    """Decides, array by array, whether coding pays, by what it saved and how long it took.

    Args:
        compression: What the head reads; ``NOTHING``: arrays travel as they are.
        clock: Seconds of the core that codes: those that others take from it do not count.
    """

    def __init__(self, compression: str, clock: Callable[[], float] = time.thread_time) -> None:
        self._compression, self._clock = compression, clock
        self._not_before: dict[str, int] = {}
        # The first time takes longer, and is not to count.
        if compression != NOTHING:
            compress(b"", compression)

    def write(self, name: str, array: Array) -> tuple[Coding | None, Buffer]:
        """The frame of an array, and how it was coded, if it was."""
        raw = bytes_of(array)
        if not self._is_worth_trying(name, array):
            return None, raw
        began = self._clock()
        axis = find_stack(array) if name.startswith(OBSERVATIONS) else NO_STACK
        coded = compress(write_stacks(array, axis) if axis else raw, self._compression)
        if not _is_worth(len(raw), len(coded), self._clock() - began):
            self._not_before[name] = _TRY_AGAIN_AFTER
            return None, raw
        return Coding(name, self._compression, axis), coded

    def _is_worth_trying(self, name: str, array: Array) -> bool:
        if self._compression == NOTHING or not array.size:
            return False
        prefix, _, leaf = name.partition("/")
        if f"{prefix}/" not in (OBSERVATIONS, FINALS) or not leaf.isdigit():
            return False
        leading = 2 if name.startswith(OBSERVATIONS) else 1
        if array.nbytes < _SMALLEST_ROW_BYTES * int(np.prod(array.shape[:leading])):
            return False
        wait = self._not_before.get(name, 0)
        self._not_before[name] = max(wait - 1, 0)
        return wait == 0


def _is_worth(raw_bytes: int, coded_bytes: int, seconds: float) -> bool:
    saves_enough = raw_bytes - coded_bytes >= seconds * _WORTH_BYTES_PER_S
    return saves_enough and coded_bytes <= raw_bytes * _LARGEST_SHARE


def read_coded(
    coding: Coding, shape: tuple[int, ...], dtype: np.dtype[Any], frame: Buffer
) -> Array:
    """The array that was written. ``shape`` and ``dtype`` must be what the head expects.

    ProtocolError if it is none: no more memory is taken than such an array needs.
    """
    num_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if coding.axis == NO_STACK:
        data = decompress(frame, coding.compression, num_bytes)
        if len(data) != num_bytes:
            raise ProtocolError(f"{len(data)} bytes decompressed, not {num_bytes}")
        return np.frombuffer(data, dtype).reshape(shape)
    check_axis(shape, coding.axis)
    data = decompress(frame, coding.compression, most_bytes(shape, dtype.itemsize))
    return read_stacks(data, shape, dtype, coding.axis)
