"""Observations and infos of megabytes arrive whole, whatever way they take."""

from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv import Limits, NumpyPolicy
from clusterenv.distributions import DiagonalGaussian
from clusterenv.wire import driver
from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster
from tests.environments.walks import Heavy, Walk
from tests.equality import assert_same

NUM_ENVS = 4
# Below, about and above what a mailbox of 256 kB holds.
INFO_BYTES = [100_000, 262_000, 3_000_000]


@pytest.mark.parametrize("transport", SHARED_MEMORY)
@pytest.mark.parametrize("info_bytes", INFO_BYTES)
def test_large_infos_and_observations_arrive_whole(info_bytes, transport):
    makers = [partial(Heavy, info_bytes)] * NUM_ENVS
    oracle = SyncVectorEnv(makers)
    with cluster(makers, transport) as envs:
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        for number in range(5):
            actions = actions_for(NUM_ENVS, number)
            assert_same(envs.step(actions), oracle.step(actions))


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_large_final_observations_arrive_whole(transport):
    makers, mode = [partial(Heavy, 10)] * NUM_ENVS, AutoresetMode.SAME_STEP
    oracle = SyncVectorEnv(makers, autoreset_mode=mode)
    with cluster(makers, transport, autoreset_mode=mode) as envs:
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        for number in range(4):
            actions = actions_for(NUM_ENVS, number)
            assert_same(envs.step(actions), oracle.step(actions))


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_large_options_reach_the_envs(transport):
    makers = [partial(Heavy, 10)] * NUM_ENVS
    oracle = SyncVectorEnv(makers)
    options = {"map": bytes(1_000_000)}
    with cluster(makers, transport) as envs:
        assert_same(envs.reset(seed=1, options=options), oracle.reset(seed=1, options=options))


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_large_attributes_travel_both_ways(transport):
    blobs = [bytes([slot]) * 2_000_000 for slot in range(NUM_ENVS)]
    with cluster([partial(Heavy, 10)] * NUM_ENVS, transport) as envs:
        envs.set_attr("cargo", blobs)
        assert envs.get_attr("cargo") == tuple(blobs)


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_large_infos_in_partial_batches_arrive_whole(transport):
    makers = [partial(Heavy, 1_000_000)] * NUM_ENVS
    expected, infos = SyncVectorEnv(makers).reset(seed=1)
    with cluster(makers, transport, batch_size=2) as envs:
        envs.async_reset(seed=1)
        for _ in range(2):
            observations, *_, received = envs.recv()
            slots = received["env_id"]
            assert_same(observations, expected[slots])
            assert_same(received["blob"], infos["blob"][slots])


def zeros(weights, observations):
    return DiagonalGaussian(np.zeros((len(observations), 2)), np.zeros((len(observations), 2)))


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_answers_may_be_as_large_as_what_was_asked_for(transport, monkeypatch):
    """As if a head took messages of 1 MB instead of 1 GiB beside what it has asked for."""
    monkeypatch.setattr(driver, "_MAX_MESSAGE_BYTES", 1_000_000)
    monkeypatch.setattr(driver, "_MOST_WAITING_BYTES", 2_000_000)
    makers = [partial(Heavy, 10)] * NUM_ENVS
    oracle = SyncVectorEnv(makers)
    with cluster(makers, transport, limits=Limits(max_restarts_per_minute=0)) as envs:
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        actions = actions_for(NUM_ENVS)
        assert_same(envs.step(actions), oracle.step(actions))
        envs.reset(seed=2)
        rollout = envs.rollout(NumpyPolicy(zeros, {"none": np.zeros(1)}), 5)
        assert rollout.observations.shape == (6, NUM_ENVS, 1024, 1024)


class Vast(Walk):
    """A walk whose observations are 33 MiB, and whose space takes four times as much."""

    def __init__(self):
        super().__init__()
        self.observation_space = Box(0, 255, (33, 1024, 1024), np.uint8)

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        return self._image(), info

    def step(self, action):
        _, *rest = super().step(action)
        return self._image(), *rest

    def _image(self):
        image = np.zeros(self.observation_space.shape, np.uint8)
        image[0, 0, :3] = self.np_random.integers(0, 256, 3)
        return image


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_the_space_of_large_observations_is_told_in_short(transport, monkeypatch):
    monkeypatch.setattr(driver, "_MAX_MESSAGE_BYTES", 1_000_000)
    oracle = Vast()
    with cluster([Vast] * 2, transport, num_workers=2) as envs:
        space = envs.observation_space
        assert (space.shape, space.dtype) == ((2, 33, 1024, 1024), np.uint8)
        assert (space.low.max(), space.high.min()) == (0, 255)
        observations, _ = envs.reset(seed=1)
        assert np.array_equal(observations[0], oracle.reset(seed=1)[0])
        actions = actions_for(2)
        observations, *_ = envs.step(actions)
        assert np.array_equal(observations[0], oracle.step(actions[0])[0])
