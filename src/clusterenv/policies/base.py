"""What every policy can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from clusterenv.distributions import Distribution
from clusterenv.randomness import SlotRandom
from clusterenv.wire.codec import Array


@dataclass(frozen=True)
class Acted:
    """What a policy gives for a batch of observations."""

    actions: Any
    outputs: dict[str, Array] = field(default_factory=dict)
    """Named arrays with a row per slot: ``log_prob``, ``value`` …"""
    state: Any = None


class Policy(Protocol):
    """Travels to the workers once by pickle; after that only its weights do."""

    def act(self, observations: Any, state: Any, rng: SlotRandom) -> Acted:
        """Actions for a batch of observations, drawn from ``rng``."""

    def distribution(self, observations: Any, state: Any) -> Distribution:
        """The distribution that :meth:`act` draws from."""

    def weights(self) -> Mapping[str, Array]:
        """Everything that changes in training, as named arrays."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take these weights; the arrays are read-only."""
