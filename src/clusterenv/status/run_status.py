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
    first_slot: int = 0
    """Its slots are neighbours."""


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
    losses: int = 0
    """How often a worker of the host in this place was lost, or the host itself."""
    threshold: float | None = None
    """The divergence above which it pulls, as of its last pull; None if its rule has none."""
    first_slot: int = 0
    """Its slots are neighbours."""


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
    """The slot whose env was running then, if that is known."""
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
    hash_seed: int | None = None
    """The ``PYTHONHASHSEED`` of all workers; None where they are threads of the head."""
    losses_by_reason: dict[str, int] = {}
    env: str = ""
    """What runs, in a word or two."""
    sync: str = ""
    """The sync rule, as it is written in code."""
    losses: tuple[LossSummary, ...] = ()
    """The last ones."""
    warnings: tuple[WarningSummary, ...] = ()
    """The last ones."""
    episodes: int = 0
    """How many have ended; those of steps only while somebody looked."""
    recent_episodes: tuple[EpisodeSummary, ...] = ()

    @property
    def num_workers(self) -> int:
        """Of all hosts."""
        return sum(len(host.workers) for host in self.hosts)
