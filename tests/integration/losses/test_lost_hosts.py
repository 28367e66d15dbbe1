"""A host killed with -9: what was known of it goes with it."""

import os
import signal

import pytest

from clusterenv import AdaptiveSync, ClusterEnv, Limits, LocalLauncher
from clusterenv.errors import WorkerLostError
from tests import inside
from tests.contract.policies import change, numpy_policy
from tests.environments.walks import Walk
from tests.integration.polling import kill, within


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_host_is_not_replaced_for_ever_whatever_the_rate(number):
    limits = Limits(max_restarts_per_minute=1_000, max_restarts=2, restart_backoff_s=0.01)
    ended = set()

    def step_and_end(envs):
        envs.step(envs.action_space.sample())
        (host,) = inside.survey(envs)
        if host.state == "ready" and host.name not in ended:
            ended.add(host.name)
            os.kill(host.pid, number)

    with ClusterEnv([Walk] * 2, launcher=LocalLauncher(hosts=1), limits=limits) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerLostError, match=r"max_restarts=2 .*3 times .*" + number.name):
            within(60.0, lambda: [step_and_end(envs) for _ in range(100_000)])
    assert ended == {"host-0.0", "host-0.1", "host-0.2"}


def test_bytes_avoided_are_those_of_the_hosts_that_are_there(envs):
    policy, ledger = numpy_policy(envs), envs.ledger
    for number in range(3):
        envs.rollout(policy, 2)
        kill(inside.host_pid(envs, f"host-1.{number}"))
    envs.rollout(policy, 2)
    before = ledger.bytes_of_always_pulling
    for seed in range(1, 6):
        change(policy, seed)
        envs.rollout(policy, 2)
    (size,) = {version.bytes for version in ledger.versions}
    assert ledger.bytes_of_always_pulling - before == 5 * 2 * size
    assert set(ledger.held_by_host) == {"host-0.0", "host-1.3"}
