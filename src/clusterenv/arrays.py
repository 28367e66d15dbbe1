"""The types of arrays and of the bytes they travel in."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Buffer = bytes | memoryview


def bytes_of(array: Array) -> memoryview:
    """The bytes of ``array`` without a copy (with one if it is not contiguous)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
