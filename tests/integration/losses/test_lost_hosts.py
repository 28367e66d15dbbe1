"""A host killed with -9: what was known of it goes with it."""

import pytest

from clusterenv import AdaptiveSync, ClusterEnv, LocalLauncher
from tests import inside
from tests.contract.policies import change, numpy_policy
from tests.environments.walks import Walk
from tests.integration.polling import kill


@pytest.fixture
def envs():
    sync = AdaptiveSync(threshold=1e9)
    with ClusterEnv([Walk] * 4, launcher=LocalLauncher(hosts=2), sync=sync) as envs:
        envs.reset(seed=0)
        yield envs


def test_the_copy_of_a_lost_host_is_not_measured_any_more(envs):
    policy = numpy_policy(envs)
    envs.rollout(policy, 5)
    change(policy, seed=1)
    envs.rollout(policy, 5)
    assert {one.host for one in envs.ledger.measurements} == {"host-0.0", "host-1.0"}
    kill(inside.host_pid(envs, "host-1.0"))
    envs.rollout(policy, 5)
    before = len(envs.ledger.measurements)
    for seed in (2, 3):
        change(policy, seed)
        envs.rollout(policy, 5)
    measured = {one.host for one in envs.ledger.measurements[before:]}
    assert measured == {"host-0.0", "host-1.1"}
