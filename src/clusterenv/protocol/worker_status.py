"""The state of a worker, for anyone watching the run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker at one moment."""

    name: str
    """``worker-3.1`` is the second worker in the fourth place of its host."""
    pid: int
    state: str
    """``ready``, ``joining``, ``leaving`` or ``lost``."""
    slots: range
    incarnation: int
    """How often the worker in this place was replaced."""
    host: str = ""
    """The host that it belongs to."""
