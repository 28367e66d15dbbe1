"""Gymnasium's own MuJoCo envs behind ClusterEnv, beside the same envs without it."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.contract.policies import numpy_policy
from tests.contract.replay import Lives, episodes_of
from tests.contract.transports import and_on_four_hosts, cluster_env
from tests.contract.twins import Twins

pytest.importorskip("mujoco")

NUM_ENVS, SEED, STEPS = 5, 40, 520
# So short that each slot has several episodes; an Ant sometimes leaves its healthy heights first.
LIMITS = {"HalfCheetah-v5": 60, "Ant-v5": 120}
# Five slots: 5, 3 + 2, 2 + 2 + 1.
NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
STEPPED = [
    ("HalfCheetah-v5", "shared_memory", 1, NEXT_STEP),
    ("HalfCheetah-v5", "tcp", 2, SAME_STEP),
    ("HalfCheetah-v5", "shared_memory", 3, NEXT_STEP),
    ("Ant-v5", "tcp", 1, SAME_STEP),
    ("Ant-v5", "shared_memory", 2, NEXT_STEP),
    ("Ant-v5", "shared_memory", 3, SAME_STEP),
]
COLLECTED = [
    ("HalfCheetah-v5", "shared_memory", 3),
    ("Ant-v5", "shared_memory", 2),
    ("Ant-v5", "tcp", 3),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes its warnings into a file in the folder in which it runs."""
    monkeypatch.chdir(tmp_path)


def makes(task):
    return partial(gym.make, task, max_episode_steps=LIMITS[task])


@pytest.mark.parametrize(("task", "transport", "workers", "mode"), STEPPED)
def test_steps_are_those_of_sync_vector_env(task, transport, workers, mode):
    make = makes(task)
    cluster = cluster_env(transport, make, NUM_ENVS, workers, autoreset_mode=mode)
    oracle = SyncVectorEnv([make] * NUM_ENVS, autoreset_mode=mode)
    with Twins(cluster, oracle) as twins:
        twins.assert_same_spaces()
        twins.reset(seed=SEED)
        ended = sum(twins.step() for _ in range(STEPS))
        twins.reset(seed=[None, 7, 8, None, 9])
        twins.run(20)
    # Every slot has come to several ends, at which its autoreset was compared as well.
    assert (ended >= STEPS // LIMITS[task] - 1).all()


@pytest.mark.parametrize(("task", "transport", "workers"), and_on_four_hosts(COLLECTED))
def test_rollouts_of_a_gaussian_policy_are_what_single_envs_do(task, transport, workers):
    make = makes(task)
    lives = Lives(make, NUM_ENVS, SEED)
    with cluster_env(transport, make, NUM_ENVS, workers) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=SEED)
        rollouts = [envs.rollout(policy, num_steps) for num_steps in (100, 1, 150)]
    for rollout in rollouts:
        assert rollout.actions.dtype == np.float32
        assert rollout.actions.shape[2:] == envs.single_action_space.shape
        assert np.isfinite(rollout.outputs["log_prob"]).all()
        lives.assert_lived(rollout)
    terminated, truncated = lives.ends
    assert truncated > 0
    assert (terminated > 0) == (task == "Ant-v5")
    expected = lives.episodes()
    assert [row[::2] for row in episodes_of(rollouts)] == [row[::2] for row in expected]
    assert [row[1] for row in episodes_of(rollouts)] == pytest.approx([row[1] for row in expected])
