"""TorchRL needs no adapter: its GymWrapper takes a ClusterEnv as it takes a SyncVectorEnv."""

import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv import ClusterEnv

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    pytest.importorskip("torchrl", reason="make test-adapters installs it")
    import torch
    from torchrl.collectors import Collector
    from torchrl.envs import GymWrapper

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

NUM_ENVS = 3
MAKERS = {
    "terminated": partial(gym.make, "CartPole-v1"),
    "truncated": partial(gym.make, "Pendulum-v1", max_episode_steps=15),
}


def ours(make):
    envs = ClusterEnv([make] * NUM_ENVS, num_workers=2, autoreset_mode=AutoresetMode.SAME_STEP)
    return GymWrapper(envs)


def theirs(make):
    return GymWrapper(SyncVectorEnv([make] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP))


def rollout_of(env):
    env.set_seed(4)
    torch.manual_seed(5)
    data = env.rollout(100, break_when_any_done=False)
    env.close()
    return data


def assert_same_bits(actual, expected):
    keys = sorted(map(str, expected.keys(include_nested=True, leaves_only=True)))
    assert sorted(map(str, actual.keys(include_nested=True, leaves_only=True))) == keys
    for key in expected.keys(include_nested=True, leaves_only=True):
        left, right = actual[key], expected[key]
        assert left.dtype == right.dtype, key
        assert np.array_equal(left.numpy(), right.numpy()), key


@pytest.mark.parametrize("kind", MAKERS)
def test_a_rollout_is_the_same_bit_by_bit(kind):
    actual, expected = rollout_of(ours(MAKERS[kind])), rollout_of(theirs(MAKERS[kind]))
    assert expected.shape == (NUM_ENVS, 100)
    assert expected["next", kind].sum() > 5
    assert_same_bits(actual, expected)


def test_the_true_last_observation_is_in_next():
    data = rollout_of(ours(MAKERS["terminated"]))
    ended = data["next", "done"].squeeze(-1)[:, :-1]
    following = data["observation"][:, 1:]
    goes_on = (data["next", "observation"][:, :-1] == following).all(-1)
    assert torch.equal(goes_on, ~ended)
    # The pole has fallen, or the cart has left the track: no first observation is like that.
    last = data["next", "observation"][:, :-1][ended]
    assert ((last[:, 2].abs() > 0.2) | (last[:, 0].abs() > 2.4)).all()


def collected(env):
    torch.manual_seed(6)
    env.set_seed(7)
    collector = Collector(env, None, frames_per_batch=60, total_frames=120)
    batches = [batch.clone() for batch in collector]
    collector.shutdown()
    return torch.cat(batches, dim=1)


def test_a_collector_collects_the_same():
    make = MAKERS["terminated"]
    actual, expected = collected(ours(make)), collected(theirs(make))
    assert expected.numel() == 120
    assert expected["next", "terminated"].any()
    assert_same_bits(actual, expected)
