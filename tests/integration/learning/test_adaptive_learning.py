"""Learning under adaptive synchronization, end to end."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

# Learning takes its time where others use the cores as well.
pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def ppo(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("ppo")


def settings(ppo, folder):
    return replace(
        ppo.Args(),
        env_id="CartPole-v1",
        num_envs=16,
        num_workers=2,
        num_steps=64,
        num_minibatches=8,
        gamma=0.99,
        learning_rate=1e-3,
        total_steps=120_000,
        out=folder,
    )


def test_ppo_learns_cartpole_with_few_pulls(ppo, tmp_path):
    args = settings(ppo, tmp_path)
    with ppo.make_envs(args) as envs, ppo.Progress(args.total_steps) as progress:
        policy = ppo.train(args, envs, progress)
        pulls, versions = len(envs.ledger.pulls), len(envs.ledger.versions)
        episodes = envs.evaluate(policy, 16, seed=9)
    assert episodes.returns.mean() > 300
    assert pulls < versions * args.num_workers / 2


def test_plain_ppo_learns_under_a_cap_on_the_lag(ppo, tmp_path):
    args = replace(settings(ppo, tmp_path), decoupled=False, threshold=0.8, max_lag=8)
    with pytest.warns(UserWarning, match="decoupled_loss"):
        mean = ppo.main(args)
    assert mean >= 300
