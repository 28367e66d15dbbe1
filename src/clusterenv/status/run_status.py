"""How a run is doing, for anyone watching it from outside. Plain data, read-only."""

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
    first_slot: int = 0
    """Its slots are consecutive."""


class HostSummary(msgspec.Struct, frozen=True):
    """One place of the run, and the host that holds it now."""

    name: str
    machine: str
    """Empty until it has joined."""
    pid: int
    state: str
    """``ordered``, ``joining``, ``ready``, ``leaving`` or ``lost``."""
    slots: int
    rows: int
    """Rows that came back so far: steps and resets of single slots, including predecessors'."""
    held: int | None
    """The version that it last pulled."""
    divergence: float | None
    """The last measured divergence of its copy from the newest version."""
    pulls: int
    restarts: int
    """How often the host in this place was replaced."""
    workers: tuple[WorkerSummary, ...]
    losses: int = 0
    """How often a worker of the host in this place was lost, or the host itself."""
    threshold: float | None = None
    """The divergence above which it pulls, at its last pull; None if its rule has none."""
    first_slot: int = 0
    """Its slots are consecutive."""


class LossSummary(msgspec.Struct, frozen=True):
    """A worker was lost, or a whole host."""

    time_s: float
    """Since the run began."""
    host: str
    worker: str
    """``""`` if the host itself was lost."""
    slots: int
    """How many slots it ran."""
    slot: int | None
    """The slot whose env was running at the time, if known."""
    reason: str


class WarningSummary(msgspec.Struct, frozen=True):
    """The user was warned of something."""

    time_s: float
    text: str
    """Perhaps with the end of a log below the first line."""


class EpisodeSummary(msgspec.Struct, frozen=True):
    """An episode ended."""

    time_s: float
    slot: int
    total_reward: float
    length: int


class RunStatus(msgspec.Struct, frozen=True):
    """A run at one moment."""

    run: str
    pid: int
    machine: str
    """The head's machine."""
    uptime_s: float
    num_envs: int
    version: int
    hosts: tuple[HostSummary, ...]
    pulls_by_cause: dict[str, int]
    bytes_by_kind: dict[str, int]
    sync_bytes: int
    bytes_avoided: int
    shared_bytes: int
    """Bytes of weights that a host in the head's own process took from shared memory."""
    hash_seed: int | None = None
    """The ``PYTHONHASHSEED`` of all workers; None if they are threads of the head."""
    losses_by_reason: dict[str, int] = {}
    env: str = ""
    """What runs, in a word or two."""
    sync: str = ""
    """The sync rule, as it is written in code."""
    losses: tuple[LossSummary, ...] = ()
    """The latest ones."""
    warnings: tuple[WarningSummary, ...] = ()
    """The latest ones."""
    episodes: int = 0
    """How many have ended; in steps, only while the run was watched."""
    recent_episodes: tuple[EpisodeSummary, ...] = ()

    @property
    def num_workers(self) -> int:
        """The workers of all hosts."""
        return sum(len(host.workers) for host in self.hosts)
