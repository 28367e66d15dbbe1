"""Distributions over actions, as plain arrays with a row per slot. Each is one class.

Samples come from :class:`~clusterenv.randomness.SlotRandom`, so that they depend only on slot and
step. Each class names its array fields in ``ARRAYS``; they travel with fragments, so that the
head knows the distribution that acted.
"""

from clusterenv.distributions.base import Distribution, divergence_of_log_probs
from clusterenv.distributions.continuous import Deterministic, DiagonalGaussian, SquashedGaussian
from clusterenv.distributions.discrete import (
    Bernoulli,
    Categorical,
    EpsilonGreedy,
    MultiCategorical,
)
from clusterenv.distributions.joint import Joint

__all__ = [
    "Bernoulli",
    "Categorical",
    "Deterministic",
    "DiagonalGaussian",
    "Distribution",
    "EpsilonGreedy",
    "Joint",
    "MultiCategorical",
    "SquashedGaussian",
    "divergence_of_log_probs",
]
