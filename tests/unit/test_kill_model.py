"""The model of `benchmarks/kills.py` finds every kind of wrong row."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clusterenv.head.recovery import restart_seed

SEED = 7


@pytest.fixture
def model(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import kill_model

    recovery = SimpleNamespace(_incarnations={0: 1, 1: 1})
    envs = SimpleNamespace(num_envs=2, _session=SimpleNamespace(recovery=recovery))
    made = kill_model.Model(envs, may_move=False)
    made.note_reset(SEED)
    made.judge_reset([0, 1], rows(at(0), at(1)))
    return made


def at(slot, step=0, episode=1, born=None, pid=None, seed=None):
    from kill_world import Position

    pid = os.getpid() if pid is None else pid
    born = 1000 + slot if born is None else born
    return Position(slot, pid, born, SEED + slot if seed is None else seed, episode, step)


def rows(*positions):
    return np.array(positions, np.float64)


def judge(model, first, lost=False, action=3, reward=None):
    """A step in which slot 0 does this, and slot 1 what it should."""
    second = at(1, model.steps()[1] + 1)
    reward = (0.0 if lost else first.reward(action)) if reward is None else reward
    infos = {"env_lost": np.array([lost, False])}
    says = [p.step > 0 and p.step % 3 == 0 for p in (first, second)]
    infos["at"], infos["_at"] = np.array([first.step, second.step]), np.array(says)
    step = rows(first, second), np.array([reward, second.reward(action)]), np.zeros(2, np.bool_)
    model.judge_step(range(2), [action] * 2, (*step, np.array([lost, False]), infos))


def test_what_happened_is_believed(model):
    judge(model, at(0, 1))
    judge(model, at(0, 2))
    assert model.rows == 6


@pytest.mark.parametrize(
    ("row", "how"),
    [
        ({"step": 0}, {}),
        ({"step": 2}, {}),
        ({"step": 1, "episode": 2}, {}),
        ({"step": 1, "born": 999}, {}),
        ({"step": 1}, {"reward": 0.0}),
        ({"step": 1, "slot": 1}, {}),
    ],
    ids=["doubled", "lost", "another episode", "another env", "no reward", "misplaced"],
)
def test_a_wrong_row_is_found(model, row, how):
    from kill_model import WrongRowError

    with pytest.raises(WrongRowError):
        judge(model, at(**{"slot": 0, **row}), **how)


def test_an_env_counts_as_lost_only_with_its_process(model, monkeypatch):
    import kill_model

    monkeypatch.setattr(kill_model, "_PATIENCE_S", 0.05)
    running = at(0, born=time.monotonic_ns())
    model.judge_reset([0], rows(running))
    with pytest.raises(kill_model.WrongRowError, match="its process runs"):
        judge(model, running, lost=True)


def test_a_lost_slot_is_told_once_and_starts_over_with_its_seed(model):
    from kill_model import WrongRowError

    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    model.judge_reset([0], rows(at(0, born=2000, pid=gone.pid)))
    judge(model, at(0, born=2000, pid=gone.pid), lost=True)
    with pytest.raises(WrongRowError, match="twice"):
        judge(model, at(0, born=2000, pid=gone.pid), lost=True)
    with pytest.raises(WrongRowError, match="nobody chose that seed"):
        judge(model, at(0, born=3000), reward=0.0)
    judge(model, at(0, born=3000, seed=restart_seed(SEED, 0, 1)), reward=0.0)
