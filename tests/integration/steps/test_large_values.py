"""Observations and infos of megabytes arrive whole, whatever way they take."""

from functools import partial

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster
from tests.environments.walks import Heavy
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
