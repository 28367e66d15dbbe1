"""Gymnasium's vector wrappers give on ClusterEnv what they give on SyncVectorEnv."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import (
    ClipReward,
    DictInfoToList,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RecordVideo,
)

from tests.contract.transports import IN_TURNS, TRANSPORTS, and_on_four_hosts, cluster_env
from tests.contract.twins import Twins
from tests.environments.sampling import SpaceEnv
from tests.environments.spaces import ALL_SPACES
from tests.equality import assert_same

NEXT_STEP, SAME_STEP, _ = AutoresetMode
A_MODE_FOR_EACH_TRANSPORT = and_on_four_hosts(zip(AutoresetMode, IN_TURNS))
PENDULUM = "Pendulum-v1", partial(gym.make, "Pendulum-v1")
SHORT_EPISODES = 2 * (partial(SpaceEnv, ALL_SPACES["box-float32"]),)


def wrapped_twins(wrap, env, mode, transport, **kwargs):
    """Wrap 5 envs on 2 workers and their oracle."""
    cluster_fn, oracle_fn = env
    cluster = cluster_env(transport, cluster_fn, 5, 2, autoreset_mode=mode)
    oracle = SyncVectorEnv([oracle_fn] * 5, autoreset_mode=mode)
    return Twins(wrap(cluster), wrap(oracle), **kwargs)


def without_times(answer):
    """Drop the wall-clock length of episodes from the answer to a step."""
    for info in answer:
        if isinstance(info, dict) and "episode" in info:
            assert info["episode"].pop("t").shape == (5,)
    return answer


@pytest.mark.parametrize(("mode", "transport"), A_MODE_FOR_EACH_TRANSPORT)
def test_record_episode_statistics_counts_the_same_episodes(mode, transport):
    wrap = RecordEpisodeStatistics
    with wrapped_twins(wrap, SHORT_EPISODES, mode, transport, comparable=without_times) as twins:
        twins.reset(seed=1)
        twins.run(150)
        twins.reset(options={"reset_mask": np.arange(5) < 2})
        twins.run(50)
        assert twins.oracle.episode_count > 20
        for attribute in ("episode_count", "return_queue", "length_queue"):
            assert getattr(twins.cluster, attribute) == getattr(twins.oracle, attribute)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_normalize_observation_learns_the_same_statistics(transport):
    with wrapped_twins(NormalizeObservation, PENDULUM, NEXT_STEP, transport) as twins:
        twins.reset(seed=2)
        twins.run(250)
        for statistic in ("mean", "var", "count"):
            actual, expected = (
                getattr(env.obs_rms, statistic) for env in (twins.cluster, twins.oracle)
            )
            assert_same(actual, expected, statistic)


@pytest.mark.parametrize(
    ("mode", "transport"), [(NEXT_STEP, "shared_memory"), (SAME_STEP, "in-process")]
)
def test_normalize_reward_learns_the_same_statistics(mode, transport):
    with wrapped_twins(NormalizeReward, PENDULUM, mode, transport) as twins:
        twins.reset(seed=3)
        twins.run(250)
        assert_same(twins.cluster.return_rms.var, twins.oracle.return_rms.var)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_clip_reward_clips_the_same_rewards(transport):
    wrap = partial(ClipReward, min_reward=-0.5, max_reward=-0.1)
    with wrapped_twins(wrap, PENDULUM, NEXT_STEP, transport) as twins:
        twins.reset(seed=4)
        twins.run(50)


@pytest.mark.parametrize(("mode", "transport"), A_MODE_FOR_EACH_TRANSPORT)
def test_dict_info_to_list_lists_the_same_infos(mode, transport):
    with wrapped_twins(DictInfoToList, SHORT_EPISODES, mode, transport) as twins:
        twins.reset(seed=5)
        twins.run(60)


def test_wrappers_may_be_stacked():
    def wrap(envs):
        return NormalizeReward(NormalizeObservation(RecordEpisodeStatistics(envs)))

    env = SHORT_EPISODES
    with wrapped_twins(wrap, env, NEXT_STEP, "shared_memory", comparable=without_times) as twins:
        twins.reset(seed=6)
        twins.run(100)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_record_video_records_the_same_frames(transport, tmp_path):
    def wrap(envs):
        folder = tmp_path / type(envs).__name__
        return RecordVideo(envs, str(folder), step_trigger=lambda step: step == 4, video_length=6)

    make = partial(gym.make, "CartPole-v1", render_mode="rgb_array")
    with wrapped_twins(wrap, (make, make), NEXT_STEP, transport) as twins:
        twins.reset(seed=7)
        for _ in range(12):
            twins.step()
            assert_same(twins.cluster.recorded_frames, twins.oracle.recorded_frames)
    recorded = {path.name for path in (tmp_path / "ClusterEnv").iterdir()}
    assert recorded == {"rl-video-step-4.mp4"}
    assert recorded == {path.name for path in (tmp_path / "SyncVectorEnv").iterdir()}


def test_record_video_records_whole_episodes(tmp_path):
    def wrap(envs):
        folder = tmp_path / type(envs).__name__
        return RecordVideo(envs, str(folder), episode_trigger=lambda episode: episode == 1)

    make = partial(gym.make, "CartPole-v1", render_mode="rgb_array")
    with wrapped_twins(wrap, (make, make), NEXT_STEP, "shared_memory") as twins:
        twins.reset(seed=8)
        while twins.oracle.episode_id < 2:
            twins.step()
            assert_same(twins.cluster.recorded_frames, twins.oracle.recorded_frames)
    for name in ("ClusterEnv", "SyncVectorEnv"):
        assert [path.name for path in (tmp_path / name).iterdir()] == ["rl-video-episode-1.mp4"]
