"""A policy that is a pure function of a dict of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.distributions import Distribution
from clusterenv.policies.base import Acted, draw
from clusterenv.randomness import SlotRandom

Weights = Mapping[str, Array]


class NumpyPolicy:
    """Acts by a pure function.

    Args:
        distribution: ``(weights, observations)`` → one of :mod:`clusterenv.distributions`.
        weights: A dict of arrays. Exploration scalars go here too, so that they are published.
        value: ``(weights, observations)`` → one value per row, for learners that bootstrap.
    """

    def __init__(
        self,
        distribution: Callable[[Weights, Any], Distribution],
        weights: Weights,
        value: Callable[[Weights, Any], Array] | None = None,
    ) -> None:
        self._distribution, self._value = distribution, value
        self._weights: Weights = dict(weights)

    def act(self, observations: Any, state: Any, rng: SlotRandom | None) -> Acted:
        """Actions, their log-probabilities, and values if there is a value function."""
        distribution = self._distribution(self._weights, observations)
        actions, log_prob = draw(distribution, rng)
        outputs = {"log_prob": log_prob}
        if self._value is not None:
            value = np.asarray(self._value(self._weights, observations))
            outputs["value"] = value.reshape(len(log_prob))
        return Acted(actions, distribution, outputs)

    def weights(self) -> Weights:
        """The dict of arrays."""
        return self._weights

    def load(self, weights: Weights) -> None:
        """Take these weights."""
        self._weights = dict(weights)
