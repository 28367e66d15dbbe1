"""The entries of a ledger."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Version:
    """Weights were published."""

    time_s: float
    """Since the run began."""
    version: int
    bytes: int
    """The size of the whole vector in full precision."""


@dataclass(frozen=True)
class PullRecord:
    """A host fetched weights."""

    time_s: float
    """Since the run began."""
    host: str
    version: int
    held: int
    """The version that it had before; 0 for none."""
    cause: str
    """In the sync rule's word: ``first``, ``threshold`` …; ``evaluation`` for ``evaluate``."""
    bytes: int
    """The size of the weights alone, as encoded."""
    threshold: float
    """Its sync rule's at that time, if the rule has one."""

    @property
    def lag(self) -> int:
        """How many versions the host was behind."""
        return self.version - self.held


@dataclass(frozen=True)
class Measurement:
    """The head measured how far a host's copy is from the newest version."""

    time_s: float
    host: str
    held: int
    newest: int
    divergence: float
    standard_error: float
    effective_sample_size: float
    realised: float | None
    """What the last decision led to: the divergence of its rows from what was newest then."""


@dataclass(frozen=True)
class Loss:
    """A worker was lost, or a whole host."""

    time_s: float
    """Since the run began."""
    host: str
    worker: str
    """``""`` if the host itself was lost."""
    slots: tuple[int, ...]
    """The slots it ran."""
    slot: int | None
    """The slot whose env was running at the time, if known."""
    reason: str
    """``exit code 3``, ``killed by SIGSEGV`` …"""


@dataclass(frozen=True)
class WarningRecord:
    """The user was warned of something."""

    time_s: float
    """Since the run began."""
    text: str
