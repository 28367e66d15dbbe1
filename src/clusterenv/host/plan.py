"""What a host is to run, told by the head; the same here and on another machine."""

from __future__ import annotations

import msgspec


class WorkerLimits(msgspec.Struct, frozen=True):
    """How long workers may take, in seconds, and how often one may be replaced; see Limits."""

    startup_timeout_s: float
    step_timeout_s: float
    restart_timeout_s: float
    max_restarts_per_minute: int
    max_restarts: int = 10
    restart_backoff_s: float = 0.5
    slow_warning_s: float = 30.0


class WorkerSetup(msgspec.Struct, frozen=True):
    """What workers are started with, the same on all hosts of a run."""

    hash_seed: int | None = None
    """Their ``PYTHONHASHSEED``, so that sets of strings have the same order on all of them."""
    log_dir: str = ""
    """A folder on the host's machine for a log per worker; if empty, logs are unnamed."""


class Plan(msgspec.Struct, frozen=True):
    """Which envs to build. ``backend`` and ``sync_rule`` are pickled: pickle travels only
    from the head downwards."""

    first_slot: int
    num_slots: int
    backend: bytes
    sync_rule: bytes
    autoreset_mode: str
    trusted: bool
    search_path: tuple[str, ...] = ()
    working_directory: str = ""
    has_own_threads: bool = False
    """Whether the envs run in their engine's own threads, which want all cores."""

    @property
    def slots(self) -> range:
        """The slots of the host, which are consecutive."""
        return range(self.first_slot, self.first_slot + self.num_slots)


class Spaces(msgspec.Struct, frozen=True):
    """The spaces that all envs of the run agree on, packed."""

    observation: bytes
    action: bytes
