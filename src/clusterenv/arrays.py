"""The types of arrays and of the bytes they travel in."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Buffer = bytes | memoryview
