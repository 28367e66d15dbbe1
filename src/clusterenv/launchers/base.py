"""What every launcher can do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

THREAD_NAME = "clusterenv"
"""Every thread of a run has a name that begins so."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
"""For the environment of workers: each owns one core, and more threads would only fight."""


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Order:
    """One worker to start."""

    worker: str
    invitation: bytes = field(repr=False)
    """To be delivered in secret: never on a command line, never in a world-readable file. Where
    the launcher ``enrols``, it is a ticket that is the same for all workers."""
    inherit_fds: tuple[int, ...] = ()
    """Descriptors that the process must inherit (only where ``shares_memory``)."""


@dataclass(frozen=True)
class Status:
    """How a worker is, as far as its engine knows."""

    ended: bool
    reason: str = ""
    """Why it ended or why it waits, in the engine's words."""


class Launcher(Protocol):
    """Starts copies of one command, says which are alive, and ends them. Knows nothing else."""

    towards: str
    """Where workers will be: the head listens on the interface that leads there."""
    spawns_here: bool
    """Whether workers are this process's own children or threads, and so to be trusted."""
    shares_memory: bool
    """Whether workers inherit the descriptors of their order."""
    enrols: bool
    """Whether workers come with a ticket, all with the same, and learn from the head which worker
    they are, instead of being started with an invitation of their own."""
    watch_every_s: float
    """How often asking for the status is cheap enough."""

    def start(self, orders: Sequence[Order]) -> None:
        """Start these workers; do not wait for them."""

    def status(self) -> dict[str, Status]:
        """Each worker that was started and not yet stopped."""

    def logs(self, worker: str) -> str:
        """The end of what the worker printed."""

    def stop(self, workers: Sequence[str], grace_s: float = 0.0) -> None:
        """End these workers, forget them; let them end by themselves for ``grace_s`` first."""
