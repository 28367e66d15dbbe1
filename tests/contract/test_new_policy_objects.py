"""Another policy object acts as itself at once: whatever the sync rule, losses and errors."""

import time
from functools import partial

import numpy as np
import pytest

from clusterenv import AdaptiveSync, EveryNth
from clusterenv.policies.base import Acted
from clusterenv.policies.numpy import NumpyPolicy
from tests.contract.policies import change, distribution_of, numpy_policy
from tests.contract.transports import PROCESSES, TRANSPORTS, cluster_env
from tests.environments.counting import Count
from tests.integration.polling import kill

NUM_ENVS = 4
SEED = 70
RULES = {
    "EveryNth": partial(EveryNth, 50),
    "AdaptiveSync": partial(AdaptiveSync, 1e9, max_lag=50),
}

pytestmark = pytest.mark.parametrize("rule", RULES)


def open_envs(transport, rule, env=Count):
    return cluster_env(transport, env, NUM_ENVS, 2, sync=RULES[rule]())


def assert_acts(envs, policy, rollout, version):
    """Fail unless every row is of `policy`, in this version."""
    assert (rollout.versions == version).all()
    rows = rollout.flatten(rollout.observations[:-1])
    found = distribution_of(envs.single_action_space, policy.weights(), rows)
    expected = found.log_prob(rollout.flatten(rollout.actions))
    assert np.allclose(rollout.flatten(rollout.outputs["log_prob"]), expected)


def rollout_without_pull(envs, policy):
    """Have the rule skip a version."""
    before = envs.version
    change(policy, seed=before)
    assert (envs.rollout(policy, 3).versions <= before).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_new_policy_acts_in_every_row_although_versions_are_skipped(transport, rule):
    with open_envs(transport, rule) as envs:
        for seed in range(3):
            policy = numpy_policy(envs, seed)
            version = envs.publish(policy)
            assert_acts(envs, policy, envs.rollout(policy, 5), version)
            rollout_without_pull(envs, policy)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_new_policy_acts_in_single_steps(transport, rule):
    with open_envs(transport, rule) as envs:
        envs.reset(seed=SEED)
        for seed in range(3):
            policy = numpy_policy(envs, seed)
            for _ in range(2):
                *_, info = envs.step(policy)
                assert (info["version"] == seed + 1).all()


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_new_policy_acts_although_a_worker_was_replaced_meanwhile(transport, rule):
    with open_envs(transport, rule) as envs:
        policy = numpy_policy(envs)
        envs.rollout(policy, 5)
        rollout_without_pull(envs, policy)
        kill(envs.call("pid")[-1])
        other = numpy_policy(envs, seed=1)
        rollout = envs.rollout(other, 5)
        assert_acts(envs, other, rollout, envs.version)
        # The next one is lost while the new policy acts in a version that others hold too.
        kill(envs.call("pid")[0])
        rollout_without_pull(envs, other)


def refuse(weights, observations):
    raise ArithmeticError("not with these numbers")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_corrected_policy_acts_after_one_that_raised(transport, rule):
    with open_envs(transport, rule) as envs:
        envs.rollout(numpy_policy(envs), 5)
        with pytest.raises(ArithmeticError):
            envs.rollout(NumpyPolicy(refuse, {"w": np.ones(3)}), 5)
        policy = numpy_policy(envs, seed=1)
        assert_acts(envs, policy, envs.rollout(policy, 5), envs.version)
        with pytest.raises(ArithmeticError):
            envs.evaluate(NumpyPolicy(refuse, {"w": np.ones(3)}), 2)
        policy = numpy_policy(envs, seed=2)
        assert_acts(envs, policy, envs.rollout(policy, 5), envs.version)


class Sluggish(Count):
    """As `Count`; slots 2 and 3, whose worker it slows down, take their time."""

    def step(self, action):
        time.sleep(0.03 * (self.np_random_seed >= SEED + 2))
        return super().step(action)


class Named:
    """Acts like nobody else: its output has a name of its own."""

    def __init__(self, name):
        self.name = name

    def act(self, observations, state, rng):
        count = len(observations)
        return Acted(np.zeros(count, np.int64), None, {self.name: np.ones(count)})

    def weights(self):
        return {}

    def load(self, weights):
        pass


@pytest.mark.parametrize("transport", PROCESSES)
def test_what_is_owed_of_the_policy_before_is_not_taken_for_that_of_the_new_one(transport, rule):
    with open_envs(transport, rule, Sluggish) as envs:
        envs.reset(seed=SEED)
        envs.rollout(Named("one"), 10, wait_num=2)
        rollout = envs.rollout(Named("other"), 10)
        assert list(rollout.outputs) == ["other"]
        assert rollout.outputs["other"].shape == (10, NUM_ENVS)
        assert (rollout.versions == 2).all()
