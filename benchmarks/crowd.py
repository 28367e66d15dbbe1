"""A launcher of light hosts: many in each of a few processes, see ``light_host.py``."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clusterenv.launchers.base import Order, Status

PROGRAM = Path(__file__).with_name("light_host.py")


class CrowdLauncher:
    """Shares hosts out to a few processes. For measuring the head: its hosts do next to nothing.

    Args:
        num_hosts: How many hosts.
        workers_per_host: How many workers each pretends to have.
        num_processes: How many processes they share.
        pieces: In how many messages a host tells of the fragments of a stream.
    """

    towards = "127.0.0.1"
    trusted = True
    enrols = False
    watch_every_s = 1.0

    def __init__(
        self, num_hosts: int, workers_per_host: int, num_processes: int, pieces: int = 1
    ) -> None:
        self.num_hosts = num_hosts
        self.workers_per_host: int | None = workers_per_host
        self._num_processes, self._pieces = num_processes, pieces
        self._process_by_host: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, orders: Sequence[Order]) -> None:
        """Start the processes, each with its share of the hosts."""
        for share in range(min(self._num_processes, len(orders))):
            own = orders[share :: self._num_processes]
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self._pieces)],
                stdin=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            )
            assert process.stdin is not None
            process.stdin.write(b"".join(order.invitation + b"\n" for order in own) + b"\n")
            process.stdin.flush()
            self._process_by_host.update({order.host: process for order in own})

    def status(self) -> dict[str, Status]:
        """Each host is as its process is."""
        return {
            host: Status(process.poll() is not None, f"exit code {process.poll()}")
            for host, process in list(self._process_by_host.items())
        }

    def logs(self, host: str) -> str:
        """They print to the head's own output."""
        return ""

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End the processes in which no other host is left."""
        ending = {self._process_by_host.pop(h) for h in hosts if h in self._process_by_host}
        deadline = time.monotonic() + grace_s
        for process in ending - set(self._process_by_host.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            assert process.stdin is not None
            process.stdin.close()
            process.kill()
            process.wait()

    def enrolled(self, host: str, place: str) -> None:
        """Nobody comes with a ticket."""

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return sorted({process.pid for process in self._process_by_host.values()})


def allow_many_descriptors() -> int:
    """Raise the limit on open files for this process and its children as far as it may go."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
