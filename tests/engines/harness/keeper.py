"""Waits until a run's owner has ended, however that was, and clears up what it left."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from tests.engines.harness.runs import Run, clear, start_time


def main() -> None:
    """Keep the run whose folder is the argument."""
    run = Run.of(Path(sys.argv[1]))
    _wait_for_end(run)
    clear(run)


def _wait_for_end(run: Run) -> None:
    try:
        owner = os.pidfd_open(run.owner)
    except ProcessLookupError:
        return
    if start_time(run.owner) == run.owner_start:
        select.select([owner], [], [])


if __name__ == "__main__":
    main()
