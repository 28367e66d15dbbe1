"""Messages ⇄ frames: a msgpack header, then raw arrays.

Everything is checked before it is believed: the header against the message types, each array
header against the length of its frame.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from clusterenv.arrays import Array, Buffer
from clusterenv.errors import ProtocolError
from clusterenv.plain.values import dtype_of_plain_data
from clusterenv.wire.messages import AnyMessage, ArrayHeader, Message

_MOST_DIMENSIONS = 64
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """The header frame of ``message``."""
    return _encoder.encode(message)


def decode(header: Buffer) -> Any:
    """The message in a header frame; ProtocolError if it is none."""
    try:
        return _decoder.decode(header)
    # Text that is no UTF-8 and bottomless nesting have errors of their own.
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"not a message of this protocol: {error!s:.300}") from error


def header_of(array: Array) -> ArrayHeader:
    """How the receiver is to read ``array``."""
    return ArrayHeader(array.dtype.str, array.shape)


def frame_of(array: Array) -> memoryview:
    """The bytes of ``array`` without a copy (with one if it is not contiguous)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def read_array(header: ArrayHeader, frame: Buffer) -> Array:
    """A read-only view of ``frame``, after checking that it is what ``header`` says."""
    dtype = dtype_of_plain_data(header.dtype)
    if len(header.shape) > _MOST_DIMENSIONS:
        # Before they are multiplied: the product of very many would take very long.
        raise ProtocolError(f"no array has {len(header.shape)} dimensions")
    expected = math.prod(header.shape) * dtype.itemsize
    if any(size < 0 for size in header.shape) or expected != len(frame):
        raise ProtocolError(
            f"an array frame of {len(frame)} bytes was announced as shape {header.shape} of "
            f"{header.dtype}, which takes {expected}"
        )
    try:
        array: Array = np.ndarray(header.shape, dtype=dtype, buffer=frame)
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"no array has shape {header.shape!r:.80}: {error}") from error
    array.flags.writeable = False
    return array


def read_arrays(headers: Sequence[ArrayHeader], frames: Sequence[Buffer]) -> list[Array]:
    """One array per header; ProtocolError if their number differs from that of the frames."""
    if len(headers) != len(frames):
        raise ProtocolError(f"{len(headers)} arrays were announced, {len(frames)} frames came")
    return [read_array(header, frame) for header, frame in zip(headers, frames, strict=True)]
