"""What every backend can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium
from gymnasium.vector import VectorEnv


@runtime_checkable
class Backend(Protocol):
    """A backend travels to each worker by pickle and builds its envs there."""

    def build(
        self, slots: Sequence[int]
    ) -> list[gymnasium.Env[Any, Any]] | VectorEnv[Any, Any, Any]:
        """One env per slot, in this order, or one ready-made VectorEnv of that many envs."""

    def for_slots(self, slots: Sequence[int]) -> Backend:
        """The part of this backend that a worker with these slots needs."""


@runtime_checkable
class ThreadedBackend(Backend, Protocol):
    """A backend whose engine has its own threads: by default one worker per host runs all envs."""

    has_own_threads: bool
    """True. No thread spins beside such an engine, which wants all cores."""
    num_threads: int
    """The threads of each worker; 0 for one per core."""
