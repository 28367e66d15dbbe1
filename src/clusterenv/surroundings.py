"""Where a host or worker looks for the user's modules and files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence


def settle(search_path: Sequence[str], working_directory: str) -> None:
    """Look where the head looks, as far as those places exist here."""
    here = [path for path in search_path if os.path.exists(path)]
    sys.path[:0] = [path for path in here if path not in sys.path]
    if working_directory:
        with contextlib.suppress(OSError):
            os.chdir(working_directory)
