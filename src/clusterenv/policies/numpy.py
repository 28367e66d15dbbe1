"""A policy that is a pure function of a dict of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clusterenv.distributions import Distribution
from clusterenv.policies.base import Acted
from clusterenv.randomness import SlotRandom
from clusterenv.wire.codec import Array

Forward = Callable[[Mapping[str, Array], Any], Distribution]


class NumpyPolicy:
    """Acts by ``forward(weights, observations)``, which returns a distribution."""

    def __init__(self, forward: Forward, weights: Mapping[str, Array]) -> None:
        self._forward = forward
        self._weights: Mapping[str, Array] = dict(weights)

    def act(self, observations: Any, state: Any, rng: SlotRandom) -> Acted:
        """Sampled actions and their log-probabilities."""
        distribution = self.distribution(observations, state)
        actions = distribution.sample(rng)
        return Acted(actions, {"log_prob": distribution.log_prob(actions)}, state)

    def distribution(self, observations: Any, state: Any) -> Distribution:
        """What ``forward`` gives for these observations."""
        return self._forward(self._weights, observations)

    def weights(self) -> Mapping[str, Array]:
        """The dict of arrays."""
        return self._weights

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take these weights."""
        self._weights = weights
