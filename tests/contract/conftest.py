"""A live ClusterEnv for tests that leave it as they found it, and its oracle."""

from functools import partial

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.contract.transports import TRANSPORTS, cluster_env

NUM_ENVS = 5


@pytest.fixture(scope="module", params=TRANSPORTS)
def live(request):
    """Five CartPoles on two workers over each transport, started once per module."""
    with cluster_env(request.param, "CartPole-v1", NUM_ENVS, 2) as envs:
        yield envs


@pytest.fixture
def envs(live):
    """`live`, freshly reset."""
    live.reset(seed=0)
    return live


@pytest.fixture(scope="module")
def oracle():
    """What `envs` must behave like."""
    envs = SyncVectorEnv([partial(gym.make, "CartPole-v1")] * NUM_ENVS)
    yield envs
    envs.close()
