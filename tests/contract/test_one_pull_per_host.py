"""Weights come to a machine once per version, however many workers it has."""

import numpy as np
import pytest

from clusterenv.distributions import Categorical
from clusterenv.policies.numpy import NumpyPolicy
from clusterenv.sync import EVALUATION
from tests.contract.transports import PROCESSES, TRANSPORTS, cluster_env, hosts_of, weight_bytes
from tests.integration.polling import kill

WORKERS = 3
NUM_ENVS = 6
SIZES = {"small": 100, "large": 1 << 17}


def logits_of(weights, observations):
    bias = weights["table"][: 2 * len(observations)].reshape(-1, 2)
    return Categorical(observations[:, :2] + bias)


def policy_of(size, seed=0):
    return NumpyPolicy(logits_of, {"table": np.random.default_rng(seed).normal(size=size)})


def assert_acted(envs, rollout, table):
    """Fail unless the log-probs of every worker are those of this table."""
    for worker in envs.workers:
        own = list(worker.slots)
        for t in range(rollout.num_steps):
            found = logits_of({"table": table}, rollout.observations[t, own])
            expected = found.log_prob(rollout.actions[t, own])
            np.testing.assert_allclose(rollout.outputs["log_prob"][t, own], expected)


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    return request.param


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("encoding", ["raw", "delta"])
def test_a_host_pulls_once_for_all_its_workers(transport, encoding, size):
    with cluster_env(transport, "CartPole-v1", NUM_ENVS, WORKERS, encoding=encoding) as envs:
        hosts, policy = hosts_of(envs), policy_of(SIZES[size])
        for version in range(1, 4):
            rollout = envs.rollout(policy, 3)
            assert (rollout.versions == version).all()
            assert_acted(envs, rollout, policy.weights()["table"])
            policy.weights()["table"][:] += 0.01
        assert [pull.version for pull in envs.ledger.pulls] == [
            version for version in (1, 2, 3) for _ in hosts
        ]
        assert weight_bytes(envs) <= 3 * len(hosts) * (8 * SIZES[size] + 100)


@pytest.mark.always_on_four_hosts
def test_a_host_pulls_once_to_evaluate_on_all_its_workers(transport):
    with cluster_env(transport, "CartPole-v1", NUM_ENVS, WORKERS) as envs:
        policy = policy_of(SIZES["small"])
        for _ in range(2):
            envs.evaluate(policy, NUM_ENVS)
        causes = [pull.cause for pull in envs.ledger.pulls]
        assert causes == [EVALUATION] * len(hosts_of(envs))


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_replacement_acts_with_what_its_host_holds_already(transport):
    with cluster_env(transport, "CartPole-v1", NUM_ENVS, WORKERS) as envs:
        policy = policy_of(SIZES["large"])
        envs.rollout(policy, 3)
        kill(envs.workers[-1].pid)
        rollout = envs.rollout(policy, 3)
        assert_acted(envs, rollout, policy.weights()["table"])
        assert len(envs.ledger.pulls) == len(hosts_of(envs))
