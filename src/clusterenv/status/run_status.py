"""How a run is doing, for whoever looks at it from outside. It can be read, and nothing else."""

from __future__ import annotations

import msgspec


class WorkerSummary(msgspec.Struct, frozen=True):
    """A worker of a host."""

    name: str
    pid: int
    state: str
    """``ready``, ``joining``, ``leaving`` or ``lost``."""
    slots: int
    restarts: int
    """How often the worker in this place was replaced."""


class HostSummary(msgspec.Struct, frozen=True):
    """One place of the run, and the host that holds it now."""

    name: str
    machine: str
    """``""`` while it has not come."""
    pid: int
    state: str
    """``ordered``, ``joining``, ``ready``, ``leaving`` or ``lost``."""
    slots: int
    rows: int
    """Rows that came back so far: steps and resets of single slots, also of its predecessors."""
    held: int | None
    """The version that it pulled last."""
    divergence: float | None
    """Of its copy from the newest version, as measured last."""
    pulls: int
    restarts: int
    """How often the host in this place was replaced."""
    workers: tuple[WorkerSummary, ...]


class RunStatus(msgspec.Struct, frozen=True):
    """A run at one moment."""

    run: str
    pid: int
    machine: str
    """Of the head."""
    uptime_s: float
    num_envs: int
    version: int
    hosts: tuple[HostSummary, ...]
    pulls_by_cause: dict[str, int]
    bytes_by_kind: dict[str, int]
    sync_bytes: int
    bytes_avoided: int
    shared_bytes: int
    """Of weights that a host in the head's own process took by shared memory."""

    @property
    def num_workers(self) -> int:
        """Of all hosts."""
        return sum(len(host.workers) for host in self.hosts)
