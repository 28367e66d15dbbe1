"""A live ClusterEnv for tests that leave it as they found it, and its oracle."""

from functools import partial

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.contract.transports import FOUR_HOSTS, TRANSPORTS, cluster_env

NUM_ENVS = 5


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Four hosts take seconds to start: but for a few tests, that is for `make test-full`."""
    for item in items:
        if _is_on_four_hosts(item) and item.get_closest_marker("always_on_four_hosts") is None:
            item.add_marker("full_matrix")


def _is_on_four_hosts(item):
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(param, str) and param == FOUR_HOSTS for param in params)


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
