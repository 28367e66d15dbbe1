"""Each example runs from top to bottom, and the off-policy one learns through `stream`."""

import importlib
from pathlib import Path

import pytest

# Learning takes its time where others use the cores as well.
pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = {"num_envs": 4, "num_workers": 2, "launcher": "in-process", "eval_episodes": 2}
SHORT_PPO = {"num_steps": 64, "total_steps": 768, "update_epochs": 1, "num_minibatches": 4}


@pytest.fixture
def example(monkeypatch):
    """Imports an example by name, as a script beside it would."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def has_logged(folder):
    return any(file.stat().st_size > 0 for file in folder.glob("events.out.tfevents.*"))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_ppo_runs_with_discrete_and_continuous_actions(example, tmp_path, env_id):
    ppo = example("ppo")
    args = ppo.Args(env_id=env_id, out=tmp_path, ahead="Cart" in env_id, **SHORT_PPO, **SMALL)
    ppo.main(args)
    assert has_logged(tmp_path)


def test_ppo_stops_at_its_target_return(example, tmp_path):
    ppo = example("ppo")
    settings = {**SMALL, **SHORT_PPO, "total_steps": 100_000}
    args = ppo.Args(env_id="CartPole-v1", target_return=5, out=tmp_path, **settings)
    with ppo.make_envs(args) as envs, ppo.Progress(args.total_steps) as progress:
        ppo.train(args, envs, progress)
    assert progress.has_reached(5)
    assert progress.step < args.total_steps


def test_dqn_runs(example, tmp_path):
    dqn = example("dqn")
    dqn.main(dqn.Args(total_steps=1_000, learning_starts=200, out=tmp_path, **SMALL))
    assert has_logged(tmp_path)


def test_sac_runs(example, tmp_path):
    sac = example("sac")
    sac.main(sac.Args(total_steps=500, learning_starts=200, out=tmp_path, **SMALL))
    assert has_logged(tmp_path)


def test_ppo_lockstep_runs(example, tmp_path):
    ppo_lockstep = example("ppo_lockstep")
    args = ppo_lockstep.Args(
        num_envs=4, num_workers=2, launcher="in-process", total_steps=1_500, out=tmp_path
    )
    assert ppo_lockstep.main(args) > 0
    assert has_logged(tmp_path)


@pytest.mark.parametrize(("engine", "package"), [("envpool", "envpool"), ("ale", "ale_py")])
def test_ppo_atari_runs(example, tmp_path, capsys, engine, package):
    pytest.importorskip(package)
    ppo_atari = example("ppo_atari")
    size = {"num_envs": 2, "num_workers": 1, "num_threads": 1, "num_steps": 8}
    length = {"total_steps": 32, "max_episode_steps": 10, "update_epochs": 1, "eval_episodes": 1}
    args = ppo_atari.Args(engine=engine, out=tmp_path, **size, **length)
    ppo_atari.main(args)
    assert "pong: mean return" in capsys.readouterr().out
    assert has_logged(tmp_path)


def test_ppo_in_jax_runs(example, tmp_path):
    ppo_jax = example("ppo_jax")
    settings = {
        **SMALL,
        "num_workers": 1,
        "num_steps": 64,
        "total_steps": 512,
        "num_minibatches": 4,
    }
    assert ppo_jax.main(ppo_jax.Args(out=tmp_path, **settings)) > 0
    assert has_logged(tmp_path)


def test_the_demo_draws_and_sums_up(example, tmp_path):
    demo = example("demo")
    args = demo.Args(env_id="CartPole-v1", out=tmp_path, **SHORT_PPO, **SMALL)
    demo.main(args)
    assert has_logged(tmp_path)
    assert (tmp_path / "learning_curve.png").stat().st_size > 0
    assert (tmp_path / "sync.png").stat().st_size > 0
    assert "CartPole-v1, PPO, seed 1: " in (tmp_path / "summary.txt").read_text()


def test_dqn_learns_cartpole_through_stream(example, tmp_path):
    dqn = example("dqn")
    args = dqn.Args(total_steps=20_000, num_workers=2, out=tmp_path)
    # Random actions reach 22, and 500 is the most there is.
    assert dqn.main(args) > 60
