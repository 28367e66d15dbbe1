"""Policies for any space of arrays. A row's numbers never depend on the rows beside it."""

from functools import partial

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim

from clusterenv.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical
from clusterenv.plain.spaces import leaves_of
from clusterenv.policies.base import Acted
from clusterenv.policies.numpy import NumpyPolicy


def flat(observations):
    """One row of numbers per observation, small enough to tell states apart."""
    if isinstance(observations, dict):
        return np.concatenate([flat(observations[key]) for key in sorted(observations)], axis=1)
    if isinstance(observations, tuple):
        return np.concatenate([flat(part) for part in observations], axis=1)
    return np.sin(np.asarray(observations, np.float64).reshape(len(observations), -1))


def times(observations, matrix):
    """A matrix product whose rows do not depend on their number, as those of BLAS may."""
    return (flat(observations)[:, None, :] * matrix).sum(-1)


def value_of(weights, observations):
    return times(observations, weights["critic"])[:, 0]


def distribution_of(space, weights, observations):
    scores = times(observations, weights["actor"])
    match space:
        case Discrete():
            return Categorical(scores, int(space.start))
        case MultiDiscrete():
            return MultiCategorical(scores, tuple(int(size) for size in space.nvec))
        case MultiBinary():
            return Bernoulli(scores)
        case Box():
            mean = scores.reshape(-1, *space.shape).astype(space.dtype)
            return DiagonalGaussian(mean, np.full_like(mean, -1.0))


def overwriting(weights, observations):
    """A distribution over two actions that spoils the observations it was made from."""
    logits = times(observations, weights["actor"])
    observations[...] = 9.0
    return Categorical(logits)


def random_weights(observation_space, action_space, seed):
    rng = np.random.default_rng(seed)
    outputs = action_space.shape[0] if isinstance(action_space, Box) else flatdim(action_space)
    inputs = sum(int(np.prod(leaf.shape)) for leaf in leaves_of(observation_space))
    return {"actor": rng.normal(size=(outputs, inputs)), "critic": rng.normal(size=(1, inputs))}


def numpy_policy(envs, seed=0):
    """A policy with a value for the spaces of `envs`."""
    observation_space, action_space = envs.single_observation_space, envs.single_action_space
    if isinstance(action_space, Dict | Tuple):
        return CompositePolicy(action_space, random_weights(observation_space, Discrete(2), seed))
    weights = random_weights(observation_space, action_space, seed)
    return NumpyPolicy(partial(distribution_of, action_space), weights, value_of)


def nested_policy(envs, seed=0):
    """As `numpy_policy`, with its weights in a dict in a list in a dict."""
    space = envs.single_action_space
    weights = {"copies": [random_weights(envs.single_observation_space, space, seed)]}
    return NumpyPolicy(
        lambda weights, rows: distribution_of(space, weights["copies"][0], rows),
        weights,
        lambda weights, rows: value_of(weights["copies"][0], rows),
    )


def change(policy, seed):
    """Other weights for the policy, in the arrays that it has; returns a copy of them."""
    rng = np.random.default_rng(seed)
    for array in policy.weights().values():
        array[...] = rng.normal(size=array.shape)
    return {name: array.copy() for name, array in policy.weights().items()}


class CompositePolicy:
    """Random but repeatable actions for a Dict or Tuple action space; all from one draw."""

    def __init__(self, space, weights):
        self._space, self._weights = space, weights

    def act(self, observations, state, rng):
        score = value_of(self._weights, observations)
        draw = np.zeros(len(score)) if rng is None else rng.uniform()[:, 0]
        return Acted(_fill(self._space, score, draw), None, {"value": score})

    def weights(self):
        return self._weights

    def load(self, weights):
        self._weights = dict(weights)


def _fill(space, score, draw):
    match space:
        case Dict():
            return {key: _fill(child, score, draw) for key, child in space.spaces.items()}
        case Tuple():
            return tuple(_fill(child, score, draw) for child in space.spaces)
        case Discrete():
            return (draw * space.n).astype(np.int64)
        case Box():
            wave = np.sin(score + 7 * draw)[:, None]
            return np.repeat(wave, space.shape[0], axis=1).astype(space.dtype)
