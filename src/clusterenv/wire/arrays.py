"""Array frames of a peer, checked before they are used."""

from __future__ import annotations

import math

import numpy as np

from clusterenv.arrays import Array, Buffer
from clusterenv.errors import ProtocolError
from clusterenv.plain.values import dtype_of_plain_data

_MOST_DIMENSIONS = 64


def read_array(dtype_name: str, shape: tuple[int, ...], frame: Buffer) -> Array:
    """A read-only view of ``frame``, after checking that it is what was announced."""
    dtype = dtype_of_plain_data(dtype_name)
    if len(shape) > _MOST_DIMENSIONS:
        # Checked before multiplying: the product of very many would take very long.
        raise ProtocolError(f"no array has {len(shape)} dimensions")
    expected = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or expected != len(frame):
        raise ProtocolError(
            f"an array frame of {len(frame)} bytes was announced as shape {shape} of "
            f"{dtype_name}, which takes {expected}"
        )
    try:
        array: Array = np.ndarray(shape, dtype=dtype, buffer=frame)
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"no array has shape {shape!r:.80}: {error}") from error
    array.flags.writeable = False
    return array
