"""Env factories and wrappers can ask for which slot they build, and videos do not collide."""

from functools import partial
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, RecordVideo

from clusterenv import VectorBackend, current_slot
from clusterenv.tools.bench_policy import bench_policy
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.environments.walks import Walk

NUM_ENVS = 5

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


class Numbered(gym.Wrapper):
    """Remembers for which slot it was made."""

    def __init__(self, env):
        super().__init__(env)
        self.number = current_slot()


def numbered_walk():
    env = Walk(10)
    env.made_for = current_slot()
    return env


class Drawing(Walk):
    """A walk of three steps that can be filmed."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self):
        super().__init__(3)
        self.render_mode = "rgb_array"

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)


def test_factories_and_wrappers_know_the_slot(transport):
    envs = cluster_env(transport, numbered_walk, NUM_ENVS, 2, wrappers=[Numbered])
    with envs:
        assert envs.get_attr("made_for") == tuple(range(NUM_ENVS))
        assert envs.get_attr("number") == tuple(range(NUM_ENVS))


def test_wrappers_of_a_registered_env_know_the_slot(transport):
    with cluster_env(transport, "CartPole-v1", NUM_ENVS, 2, wrappers=[Numbered]) as envs:
        assert envs.get_attr("number") == tuple(range(NUM_ENVS))


def test_a_vector_env_knows_the_first_slot_of_its_worker(transport):
    def make(count):
        return SyncVectorEnv([partial(numbered_walk)] * count)

    with cluster_env(transport, VectorBackend(make), 8, 4) as envs:
        assert envs.get_attr("made_for") == (0, 0, 2, 2, 4, 4, 6, 6)


def test_elsewhere_nobody_knows_it(transport):
    with pytest.raises(RuntimeError, match="call it in the env factory or in a wrapper"):
        current_slot()
    with cluster_env(transport, Late, 1) as envs, pytest.raises(RuntimeError, match="keep the num"):
        envs.call("ask")


class Late(Walk):
    """Asks when it is too late."""

    def ask(self):
        return current_slot()


def film(envs):
    """Play one episode."""
    envs.reset(seed=0)
    for _ in range(4):
        envs.step(np.zeros((envs.num_envs, 2)))


def names_in(folder):
    return sorted(path.stem for path in folder.iterdir())


@pytest.mark.filterwarnings("ignore:.*Overwriting existing videos")
def test_videos_of_slots_do_not_overwrite_each_other(transport, tmp_path):
    record = partial(RecordVideo, video_folder=str(tmp_path), disable_logger=True)
    wrappers = [lambda env: RecordEpisodeStatistics(record(env, name_prefix="walk"))]
    with cluster_env(transport, Drawing, 3, 2, wrappers=wrappers) as envs:
        film(envs)
        policy = bench_policy(envs.single_observation_space, envs.single_action_space, 4)
        envs.evaluate(policy, episodes=3)
    names = [f"walk-slot-{slot}{what}" for slot in range(3) for what in ("", "-evaluation")]
    assert {f"{name}-episode-0" for name in names} <= set(names_in(tmp_path))


def test_a_wrapper_that_asks_for_its_slot_names_its_videos_itself(transport, tmp_path):
    def record(env):
        return RecordVideo(env, str(tmp_path / f"{current_slot()}"), name_prefix="own")

    with cluster_env(transport, Drawing, 2, 2, wrappers=[record]) as envs:
        film(envs)
    for slot in range(2):
        assert "own-episode-0" in names_in(tmp_path / f"{slot}")
