"""A policy for `bench`: a small network with random weights, of a size that the user gives."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete

from clusterenv.arrays import Array
from clusterenv.distributions import Categorical, Distribution, SquashedGaussian
from clusterenv.policies.numpy import NumpyPolicy, Weights


def bench_policy(
    observation_space: Space[Any], action_space: Space[Any], hidden: int
) -> NumpyPolicy | None:
    """A policy with two hidden layers; None for spaces that it does not know, see
    :func:`why_no_policy`."""
    if not isinstance(observation_space, Box):
        return None
    inputs = math.prod(observation_space.shape)
    if isinstance(action_space, Discrete):
        weights = _layers([inputs, hidden, hidden, int(action_space.n)])
        return NumpyPolicy(_categorical, {**weights, "start": np.array([int(action_space.start)])})
    if isinstance(action_space, Box) and action_space.is_bounded():
        weights = _layers([inputs, hidden, hidden, math.prod(action_space.shape)])
        bounds = {"low": action_space.low, "high": action_space.high}
        return NumpyPolicy(_gaussian, {**weights, **bounds})
    return None


def why_no_policy(observation_space: Space[Any], action_space: Space[Any]) -> str:
    """Why only ``step`` is measured where :func:`bench_policy` returns None."""
    kinds = [type(space).__name__ for space in (observation_space, action_space)]
    return (
        "rollout and stream were not measured: bench's own policy takes Box observations and "
        f"Discrete or bounded Box actions, and these are {kinds[0]} and {kinds[1]}; a script with "
        "your policy can be measured: python -m clusterenv bench SCRIPT.py"
    )


def _layers(sizes: list[int]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        str(number): rng.normal(0, 1 / math.sqrt(rows), (rows, columns)).astype(np.float32)
        for number, (rows, columns) in enumerate(itertools.pairwise(sizes))
    }


def _forward(weights: Weights, observations: Any) -> Array:
    rows = np.asarray(observations, np.float32).reshape(len(observations), -1)
    for layer in ("0", "1"):
        rows = np.tanh(rows @ weights[layer])
    result: Array = rows @ weights["2"]
    return result


def _categorical(weights: Weights, observations: Any) -> Distribution:
    return Categorical(_forward(weights, observations), start=int(weights["start"][0]))


def _gaussian(weights: Weights, observations: Any) -> Distribution:
    low, high = weights["low"], weights["high"]
    mean = _forward(weights, observations).reshape(len(observations), *low.shape)
    return SquashedGaussian(mean, np.full_like(mean, -1.0), low, high)
