"""How a run is doing, for whoever looks at it from outside. It can be read, and nothing else."""

from __future__ import annotations

import msgspec


class WorkerStatus(msgspec.Struct, frozen=True):
    """One place of the roster, and the worker that holds it now."""

    worker: str
    host: str
    """``""`` while it has not said Hello."""
    pid: int
    state: str
    """``ready``, ``joining`` or ``leaving``."""
    slots: int
    rows: int
    """Rows that came back so far: steps and resets of single slots."""
    restarts: int
    held: int | None
    """The version that it pulled last."""
    divergence: float | None
    """Of its copy from the newest version, as measured last."""
    pulls: int


class Status(msgspec.Struct, frozen=True):
    """A run at one moment."""

    run: str
    pid: int
    host: str
    address: str
    uptime_s: float
    num_envs: int
    version: int
    workers: tuple[WorkerStatus, ...]
    pulls_by_cause: dict[str, int]
    bytes_by_kind: dict[str, int]
    sync_bytes: int
    bytes_avoided: int
