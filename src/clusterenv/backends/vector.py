"""Environments that are vectorised already: one ready VectorEnv per worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.vector import VectorEnv


@dataclass(frozen=True)
class VectorBackend:
    """Each worker runs one VectorEnv that ``factory(n)`` returns for its n slots.

    Example:
        >>> VectorBackend(lambda n: gymnasium.make_vec("CartPole-v1", num_envs=n))  # doctest: +SKIP
    """

    factory: Callable[[int], VectorEnv[Any, Any, Any]]

    def build(self, slots: Sequence[int]) -> VectorEnv[Any, Any, Any]:
        """The VectorEnv for these slots."""
        return self.factory(len(slots))

    def for_slots(self, slots: Sequence[int]) -> VectorBackend:
        """The same for every worker."""
        return self
