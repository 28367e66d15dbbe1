"""Large weights cross the network once per host and version; neighbours hand them on."""

import os

import numpy as np
import pytest

from clusterenv.distributions import Categorical
from clusterenv.policies.numpy import NumpyPolicy
from clusterenv.wire import shelf
from clusterenv.wire.shelf import WORTH_SHARING_BYTES, Shelf, neighbourhood, read_shelf
from tests.contract.transports import TRANSPORTS, cluster_env

WORKERS = 3
SIZE = WORTH_SHARING_BYTES // 8 + 1


def logits_of(weights, observations):
    bias = weights["table"][: 2 * len(observations)].reshape(-1, 2)
    return Categorical(observations[:, :2] + bias)


def policy_of(seed):
    return NumpyPolicy(logits_of, {"table": np.random.default_rng(seed).normal(size=SIZE)})


def assert_acted(rollout, table):
    """Fail unless the log-probs are those of this table."""
    columns = np.array_split(np.arange(rollout.rewards.shape[1]), WORKERS)
    for own in columns:
        for t in range(rollout.num_steps):
            found = logits_of({"table": table}, rollout.observations[t, own])
            expected = found.log_prob(rollout.actions[t, own])
            np.testing.assert_allclose(rollout.outputs["log_prob"][t, own], expected)


@pytest.mark.parametrize("encoding", ["raw", "delta"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_worker_fetches_for_all(transport, encoding):
    with cluster_env(transport, "CartPole-v1", 6, WORKERS, encoding=encoding) as envs:
        policy = policy_of(0)
        for version in range(1, 4):
            rollout = envs.rollout(policy, 3)
            assert (rollout.versions == version).all()
            assert_acted(rollout, policy.weights()["table"])
            policy.weights()["table"][:] += 0.01
        fetched = [pull for pull in envs.ledger.pulls if pull.bytes]
        assert [pull.version for pull in fetched] == [1, 2, 3]
        assert len(envs.ledger.pulls) == 3 * WORKERS
        sent = envs.ledger.bytes_by_kind["Weights"]
        assert sent < 3 * (8 * SIZE + 1000)


def test_small_weights_are_not_worth_it():
    with cluster_env("in-process", "CartPole-v1", 6, WORKERS) as envs:
        envs.rollout(NumpyPolicy(logits_of, {"table": np.zeros(100)}), 3)
        assert [pull.bytes for pull in envs.ledger.pulls] == [800] * WORKERS


def test_a_shelf_that_is_of_no_use_costs_a_fetch_and_nothing_else(monkeypatch):
    monkeypatch.setattr(shelf.Shelf, "put", lambda self, vector: 0)  # the descriptor of stdin
    with cluster_env("in-process", "CartPole-v1", 6, WORKERS) as envs:
        policy = policy_of(1)
        rollout = envs.rollout(policy, 3)
        assert_acted(rollout, policy.weights()["table"])
        assert sum(pull.bytes > 0 for pull in envs.ledger.pulls) == WORKERS


def test_without_memory_for_a_shelf_everybody_fetches(monkeypatch):
    monkeypatch.setattr(shelf.Shelf, "put", lambda self, vector: -1)
    with cluster_env("in-process", "CartPole-v1", 6, WORKERS) as envs:
        policy = policy_of(2)
        assert_acted(envs.rollout(policy, 3), policy.weights()["table"])


def test_a_shelf_has_what_was_put_there_last():
    mine = Shelf()
    mine.put(b"a longer text")
    fd = mine.put(b"short")
    assert read_shelf(os.getpid(), fd, 5) == b"short"
    assert read_shelf(os.getpid(), 10_000, 5) == b""
    assert neighbourhood() == neighbourhood() != ""
    os.close(fd)


def test_what_is_no_shelf_is_not_read(tmp_path):
    """The numbers come from another worker, and may lead anywhere."""
    os.mkfifo(tmp_path / "pipe")
    paths = ["/dev/zero", tmp_path / "pipe", tmp_path]
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        assert read_shelf(os.getpid(), fd, 5) == b""
        os.close(fd)
    fd = Shelf().put(b"longer")
    assert read_shelf(os.getpid(), fd, 5) == b""
    os.close(fd)
    assert read_shelf(-1, -1, 5) == b""
