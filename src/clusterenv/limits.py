"""How long things may take, and how often a worker or a host may be replaced."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """The time-outs of a run, in seconds, and its restart budget.

    Example:
        >>> Limits(step_timeout_s=10.0).step_timeout_s
        10.0
    """

    startup_timeout_s: float = 120.0
    """How long hosts and workers may take to start and build their envs."""
    step_timeout_s: float = 300.0
    """How long a worker may take for one step or call; after that it counts as lost."""
    restart_timeout_s: float = 60.0
    """How long a replacement may take to start."""
    lease_s: float = 30.0
    """A host that cannot reach its head for this long ends itself and its workers."""
    max_restarts_per_minute: int = 3
    """How often one worker, or one host, may be replaced within a minute; 0 means never. One that
    was told to leave (SIGTERM, a time limit, a preemption) does not count here."""
    max_restarts: int = 10
    """How often one worker, or one host, may be replaced in all, at any rate and for any reason;
    each minute of good work gives one restart back. 0 means never."""
    restart_backoff_s: float = 0.5
    """The first replacement starts at once, the second in a row after this time, each further one
    after twice as long as the one before, up to 64 times this."""
    slow_warning_s: float = 30.0
    """A worker that makes no progress for this long is named in a warning, with its stack."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name.endswith("_s")):
            # Not `<=`: NaN is not a time-out either.
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0 seconds")
        for name in ("max_restarts_per_minute", "max_restarts"):
            if not getattr(self, name) >= 0:
                raise ValueError(
                    f"{name}={getattr(self, name)} must be at least 0 "
                    "(0 means that no worker or host that fails is replaced)"
                )
