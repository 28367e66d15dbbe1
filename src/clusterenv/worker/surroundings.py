"""Where a worker looks for modules and files."""

from __future__ import annotations

import contextlib
import os
import sys

from clusterenv.wire.messages import Build


def settle(build: Build) -> None:
    """Look where the head looks, as far as those places are here as well."""
    here = [path for path in build.search_path if os.path.exists(path)]
    sys.path[:0] = [path for path in here if path not in sys.path]
    if build.working_directory:
        with contextlib.suppress(OSError):
            os.chdir(build.working_directory)
