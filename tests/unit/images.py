"""What a value is, down to types, dtypes and bits: equal images mean equal values."""

import struct

import numpy as np


def image_of(value):
    """A nested tuple that differs wherever two values differ, NaNs and key order included."""
    kind = type(value)
    match value:
        case np.ndarray() if value.dtype.hasobject:
            return kind, value.dtype, value.shape, tuple(image_of(item) for item in value.flat)
        case np.ndarray() | np.generic():
            return kind, value.dtype, value.shape, value.tobytes()
        case float():
            return kind, struct.pack("d", value)
        case complex():
            return kind, struct.pack("dd", value.real, value.imag)
        case dict():
            return kind, tuple((image_of(key), image_of(item)) for key, item in value.items())
        case set() | frozenset():
            return kind, frozenset(image_of(item) for item in value)
        case list() | tuple():
            return kind, tuple(image_of(item) for item in value)
        case _:
            return kind, value
