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
    """A host without its head ends itself and its workers after this time."""
    max_restarts_per_minute: int = 3
    """How often one worker, or one host, may be replaced; 0 means never."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name.endswith("_s")):
            # Not `<=`: what is not a number is no time-out either.
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0 seconds")
        if not self.max_restarts_per_minute >= 0:
            raise ValueError(
                f"max_restarts_per_minute={self.max_restarts_per_minute} must be at least 0 "
                "(0: a worker is never replaced)"
            )
