"""What only the whole shows, with workers as threads."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import SyncVectorEnv

from clusterenv import ClusterEnv, Limits, RemoteError
from tests.environments.sampling import SpaceEnv
from tests.equality import assert_same

ONE_LEAF = {
    "dict": Dict(a=Box(-1.0, 1.0, (2,))),
    "tuple": Tuple((Discrete(3),)),
    "nested": Dict(a=Tuple((Box(-1.0, 1.0, (2,), np.float64),))),
}


def factories(observation_space, action_space):
    def make():
        return SpaceEnv(observation_space, action_space, info_kinds=())

    return [make] * 2


def assert_twins(makers, seed=1):
    oracle = SyncVectorEnv(makers)
    with ClusterEnv(makers, num_workers=1, launcher="in-process") as envs:
        assert_same(envs.reset(seed=seed), oracle.reset(seed=seed))
        oracle.action_space.seed(1)
        actions = oracle.action_space.sample()
        assert_same(envs.step(actions), oracle.step(actions))


@pytest.mark.parametrize("space", ONE_LEAF.values(), ids=ONE_LEAF)
def test_observations_of_a_space_with_one_leaf_keep_their_structure(space):
    assert_twins(factories(space, Discrete(2)))


@pytest.mark.parametrize("space", ONE_LEAF.values(), ids=ONE_LEAF)
def test_actions_of_a_space_with_one_leaf_keep_their_structure(space):
    assert_twins(factories(Discrete(2), space))


@pytest.mark.parametrize("seed", [0, 2**63, 2**127])
def test_a_seed_may_be_of_any_size(seed):
    # Gymnasium takes any non-negative seed, and numpy's own entropy has 128 bits.
    assert_twins(factories(Box(0.0, 1.0, (2,)), Discrete(2)), seed)


class Unspeakable:
    """Something in an exception that cannot even be printed."""

    def __repr__(self):
        raise RuntimeError("no words")


class Raising(SpaceEnv):
    """Raises what it was given."""

    def __init__(self, error):
        super().__init__(Discrete(2), info_kinds=())
        self.error = error

    def step(self, action):
        raise self.error


@pytest.mark.parametrize(
    "error",
    [ValueError("no file caf\udce9"), ValueError(Unspeakable())],
    ids=["text that is no UTF-8", "no text at all"],
)
def test_an_exception_that_cannot_be_told_does_not_cost_the_worker(error):
    makers = [lambda: Raising(error)]
    with ClusterEnv(
        makers, launcher="in-process", limits=Limits(max_restarts_per_minute=0)
    ) as envs:
        envs.reset()
        with pytest.raises((ValueError, RemoteError)):
            envs.step([0])
        envs.reset()
