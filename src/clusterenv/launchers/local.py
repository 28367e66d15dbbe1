"""Workers on this machine: the default."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterenv.children import python_environment
from clusterenv.counts import check_count
from clusterenv.launchers.base import cores
from clusterenv.launchers.parameters import (
    check_environment,
    names_valid_parameters,
)
from clusterenv.launchers.processes import ProcessLauncher
from clusterenv.strays import Family


class LocalLauncher(ProcessLauncher):
    """Workers are processes on this machine.

    By default they belong to a host that is an object in the head's own process: nothing listens,
    no keys are made. With ``hosts=4`` there are four hosts, each a process of its own behind an
    encrypted connection, as on a cluster, so that you can try a cluster's layout on a laptop.

    Args:
        hosts: How many host processes to start; None keeps the host in the head's process.
        log_dir: Where output goes (``host-0.0.log`` …). By default it goes to unnamed files, and
            errors show the end of them.
        environment: Environment variables for the workers, on top of this process's own.
    """

    towards = "127.0.0.1"
    trusted = True

    @names_valid_parameters
    def __init__(
        self,
        hosts: int | None = None,
        log_dir: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(log_dir)
        self._family = Family()
        self.num_hosts = 0
        self.workers_per_host: int | None = None
        if hosts is not None:
            advice = "None is for a host in the head's process"
            self.num_hosts = check_count("hosts", hosts, advice=advice)
            self.workers_per_host = max(1, cores() // self.num_hosts)
        self.worker_environment = check_environment(environment)
        """The user's variables for workers, on top of this process's own environment."""

    def with_hosts(self, hosts: int) -> LocalLauncher:
        """The same launcher with this many host processes."""
        return LocalLauncher(hosts, self.log_dir, self.worker_environment)

    def command(self, host: str) -> list[str]:
        """What to run for this host."""
        return [sys.executable, "-m", "clusterenv", "host"]

    def environment(self) -> dict[str, str]:
        """The environment of a host or worker process: this process's own, and the user's."""
        own = self._family.mark("host")
        return {**os.environ, **python_environment(), **self.worker_environment, **own}

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End these hosts and forget them; first give them ``grace_s`` to end by themselves."""
        super().stop(hosts, grace_s)
        if not self._children:
            # Hosts that were killed could not end their workers themselves.
            self._family.end()
