"""Workers as processes on this machine: the default."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from clusterenv.launchers.base import ONE_THREAD
from clusterenv.launchers.processes import ProcessLauncher


class LocalLauncher(ProcessLauncher):
    """One process per worker, started with ``python -m clusterenv worker``.

    Args:
        log_dir: Where each worker's output goes (``worker-0.0.log`` …). By default it goes to
            files without a name, of which errors show the end.
        environment: Environment variables for the workers, on top of this process's own.
    """

    towards = "127.0.0.1"
    spawns_here = True
    shares_memory = True

    def __init__(
        self, log_dir: str | Path | None = None, environment: dict[str, str] | None = None
    ) -> None:
        super().__init__(log_dir)
        self._environment = environment or {}

    def command(self, worker: str) -> list[str]:
        """What to run for this worker."""
        return [sys.executable, "-m", "clusterenv", "worker"]

    def environment(self) -> dict[str, str]:
        """This process's own, and what makes a worker behave."""
        # The worker must find this very package, however the head came by it.
        package_root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        # Unbuffered: what an env printed before it crashed must be in the log.
        own = {**ONE_THREAD, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        return {**os.environ, **own, **self._environment}
