"""What every launcher can do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

THREAD_NAME = "clusterenv"
"""Every thread of a run has a name that begins so."""


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Order:
    """One worker to start."""

    worker: str
    invitation: bytes
    """To be delivered in secret: never on a command line, never in a world-readable file."""
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

    host: str
    """The address of the head that workers can reach."""
    spawns_here: bool
    """Whether workers are this process's own children or threads, and so to be trusted."""
    shares_memory: bool
    """Whether workers inherit the descriptors of their order."""
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
