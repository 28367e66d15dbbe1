"""What every backend can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium
from gymnasium.vector import VectorEnv


@runtime_checkable
class Backend(Protocol):
    """Travels to each worker by pickle and builds its envs there."""

    def build(
        self, slots: Sequence[int]
    ) -> list[gymnasium.Env[Any, Any]] | VectorEnv[Any, Any, Any]:
        """One env per slot, in this order, or one ready VectorEnv of that many envs."""

    def for_slots(self, slots: Sequence[int]) -> Backend:
        """What a worker with these slots needs of this backend, and no more."""


@runtime_checkable
class ThreadedBackend(Backend, Protocol):
    """One whose engine has threads of its own: by default one worker per host runs all its envs."""

    has_own_threads: bool
    """True. Nobody spins beside such an engine, which wants all cores."""
    num_threads: int
    """Of each worker; 0: as many as there are cores."""
