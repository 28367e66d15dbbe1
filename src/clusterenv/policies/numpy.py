"""A policy that is a pure function of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.distributions import Distribution
from clusterenv.policies.base import Acted, draw
from clusterenv.policies.weight_trees import named_weights, tree_like
from clusterenv.randomness import SlotRandom

Weights = Mapping[str, Array]


class NumpyPolicy:
    """Acts by a pure function.

    Args:
        distribution: ``(weights, observations)`` → one of :mod:`clusterenv.distributions`.
        weights: Arrays in a dict, or in dicts, lists and tuples of any depth, as the functions
            take them. Exploration scalars go here too, so that they are published.
        value: ``(weights, observations)`` → one value per row, for learners that bootstrap.
    """

    def __init__(
        self,
        distribution: Callable[[Any, Any], Distribution],
        weights: Any,
        value: Callable[[Any, Any], Array] | None = None,
    ) -> None:
        self._distribution, self._value = distribution, value
        self._weights = tree_like(weights, named_weights(weights))

    def act(self, observations: Any, state: Any, rng: SlotRandom | None) -> Acted:
        """Actions, their log-probabilities, and values if there is a value function."""
        distribution = self._distribution(self._weights, observations)
        actions, log_prob = draw(distribution, rng)
        outputs = {"log_prob": log_prob}
        if self._value is not None:
            value = np.asarray(self._value(self._weights, observations))
            outputs["value"] = value.reshape(len(log_prob))
        return Acted(actions, distribution, outputs)

    def weights(self) -> dict[str, Array]:
        """The arrays by name; one in a list in a dict has a name like ``layers/0/bias``.

        If they are in one flat dict, it is that dict, and a learner may put other arrays into it.
        """
        named = named_weights(self._weights)
        is_flat = isinstance(self._weights, dict) and list(named) == list(self._weights)
        return self._weights if is_flat else named

    def load(self, weights: Any) -> None:
        """Take these weights: by name, or nested like those that the policy was created with."""
        self._weights = tree_like(self._weights, named_weights(weights))
