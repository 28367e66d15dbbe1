"""`MinariRecorder` makes of rollouts the episodes that the envs have played."""

import importlib
import os
import signal
import sys
from functools import partial
from itertools import islice

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from clusterenv import ClusterEnv
from clusterenv.rollout import map_structure
from tests.contract.policies import numpy_policy
from tests.environments.sampling import SpaceEnv
from tests.equality import assert_same

minari = pytest.importorskip("minari", reason="pip install 'clusterenv[minari]'")
pytest.importorskip("h5py", reason="pip install 'clusterenv[minari]'")

from clusterenv.adapters.minari import MinariRecorder  # noqa: E402

# What describes a dataset is the user's to say, and Minari reminds them of it.
pytestmark = pytest.mark.filterwarnings("ignore:.* is (set to )?None:UserWarning")

NUM_ENVS, SEED = 3, 21
PAIR = Tuple([Discrete(4), Box(-1.0, 1.0, (3,), np.float64)])
SENSES = Dict(camera=Box(0, 255, (2, 2), np.uint8), pair=PAIR)
MAKERS = {
    "terminated": partial(gym.make, "CartPole-v1"),
    "truncated": partial(gym.make, "Pendulum-v1", max_episode_steps=15),
    "nested": partial(SpaceEnv, SENSES, action_space=Discrete(3)),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def cluster(env, num_envs=NUM_ENVS, **kwargs):
    envs = ClusterEnv(env, num_envs, 2, launcher="in-process", **kwargs)
    envs.reset(seed=SEED)
    return envs


def replayed(make, slot, actions):
    """The episodes that ``actions`` lead to in an env that is stepped by hand, and the rest."""
    env, episodes = make(), []
    observations, steps = [env.reset(seed=SEED + slot)[0]], []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        steps.append((action, float(reward), terminated, truncated))
        if terminated or truncated:
            episodes.append((observations, steps))
            observations, steps = [env.reset()[0]], []
    return episodes, (observations, steps)


def stacked(space, values):
    if isinstance(space, Dict):
        return {key: stacked(part, [v[key] for v in values]) for key, part in space.items()}
    if isinstance(space, Tuple):
        parts = enumerate(space.spaces)
        return tuple(stacked(part, [v[number] for v in values]) for number, part in parts)
    return np.array(values, space.dtype)


def as_arrays(envs, episode):
    """An episode that was replayed, in Minari's form."""
    observations, steps = episode
    actions, rewards, terminations, truncations = zip(*steps, strict=True)
    return {
        "observations": stacked(envs.single_observation_space, observations),
        "actions": stacked(envs.single_action_space, actions),
        "rewards": np.array(rewards),
        "terminations": np.array(terminations),
        "truncations": np.array(truncations),
    }


def as_read(episode):
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    return {name: getattr(episode, name) for name in names}


def by_first_action(episodes):
    """In an order that does not depend on the slots' order."""
    return sorted(episodes, key=lambda e: (len(e["rewards"]), e["rewards"].tolist(), repr(e)))


def recorded(envs, recorder, lengths=(20, 33, 1, 40)):
    """What the recorder was given, as the actions of each slot."""
    policy = numpy_policy(envs)
    rollouts = [envs.rollout(policy, num_steps=length) for length in lengths]
    for rollout in rollouts:
        recorder.add(rollout)
    return [
        np.concatenate([rollout.actions[:, slot] for rollout in rollouts])
        for slot in range(envs.num_envs)
    ]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("unfinished", ["drop", "truncate"])
def test_a_dataset_has_the_episodes_that_were_played(kind, unfinished):
    envs = cluster(MAKERS[kind])
    recorder = MinariRecorder(envs, unfinished)
    actions = recorded(envs, recorder)
    recorder.create_dataset("played/test-v0", jpeg_encoding=False)
    expected, left = [], 0
    for slot, of_slot in enumerate(actions):
        episodes, rest = replayed(MAKERS[kind], slot, of_slot)
        expected += [as_arrays(envs, episode) for episode in episodes]
        left += len(rest[1])
        if rest[1] and unfinished == "truncate":
            expected.append(as_arrays(envs, rest))
            expected[-1]["truncations"][-1] = True
    envs.close()

    dataset = minari.load_dataset("played/test-v0")
    actual = [as_read(episode) for episode in dataset]
    assert len(actual) == len(expected) > 5
    assert_same(by_first_action(actual), by_first_action(expected))
    total = NUM_ENVS * 94 - (left if unfinished == "drop" else 0)
    assert dataset.total_steps == total
    assert recorder.dropped_steps == NUM_ENVS * 94 - total
    assert left > 0


def test_fragments_of_a_stream_are_joined_as_well():
    envs = cluster(MAKERS["terminated"])
    recorder, parts = MinariRecorder(envs), [[] for _ in range(NUM_ENVS)]
    envs.publish(numpy_policy(envs))
    for fragment in islice(envs.stream(num_steps=7), 40):
        recorder.add(fragment)
        for column, slot in enumerate(fragment.slots.tolist()):
            parts[slot].append(fragment.actions[:, column])
    expected = []
    for slot, of_slot in enumerate(parts):
        episodes, _ = replayed(MAKERS["terminated"], slot, np.concatenate(of_slot))
        expected += [as_arrays(envs, episode) for episode in episodes]
    dataset = recorder.create_dataset("streamed/test-v0")
    envs.close()
    assert len(expected) > 5
    assert_same(by_first_action(map(as_read, dataset)), by_first_action(expected))


def test_the_env_can_be_made_again_from_the_dataset():
    envs = cluster("CartPole-v1", max_episode_steps=30)
    recorder = MinariRecorder(envs)
    recorded(envs, recorder)
    spec = gym.make("CartPole-v1", max_episode_steps=30).spec
    recorder.create_dataset("cartpole/random-v0", env=spec, algorithm_name="random weights")
    envs.close()
    dataset = minari.load_dataset("cartpole/random-v0")
    assert dataset.recover_environment().spec.max_episode_steps == 30
    assert dataset.storage.metadata["algorithm_name"] == "random weights"


def test_episodes_can_be_written_while_others_are_under_way():
    envs = cluster(MAKERS["terminated"])
    policy, recorder = numpy_policy(envs), MinariRecorder(envs)
    recorder.add(envs.rollout(policy, num_steps=40))
    spaces = {
        "observation_space": envs.single_observation_space,
        "action_space": envs.single_action_space,
    }
    first = recorder.take_episodes()
    dataset = minari.create_dataset_from_buffers("parts/test-v0", first, **spaces)
    recorder.add(envs.rollout(policy, num_steps=40))
    second = recorder.take_episodes()
    dataset.update_dataset_from_buffer(second)
    envs.close()
    assert recorder.take_episodes() == []
    assert min(len(first), len(second)) > 1
    recorder.cut()
    assert dataset.total_steps + recorder.dropped_steps == 2 * 40 * NUM_ENVS


def test_what_the_user_does_to_a_rollout_afterwards_does_not_matter():
    datasets = []
    for is_changed in (False, True):
        envs = cluster(MAKERS["terminated"])
        policy, recorder = numpy_policy(envs), MinariRecorder(envs, "truncate")
        for _ in range(3):
            rollout = envs.rollout(policy, num_steps=9)
            recorder.add(rollout)
            if is_changed:
                rollout.rewards[:] = -1
                rollout.observations[:-1] = 0
        dataset = recorder.create_dataset(f"changed/test-v{int(is_changed)}")
        datasets.append([as_read(episode) for episode in dataset])
        envs.close()
    assert_same(*datasets)


# What is cut between two rollouts.


def test_an_episode_that_a_reset_ended_is_unfinished():
    envs = cluster(partial(gym.make, "Pendulum-v1", max_episode_steps=30))
    policy, recorder = numpy_policy(envs), MinariRecorder(envs, "truncate")
    recorder.add(envs.rollout(policy, num_steps=10))
    envs.reset(seed=SEED)
    recorder.add(envs.rollout(policy, num_steps=30))
    envs.close()
    episodes = recorder.take_episodes()
    assert [len(episode) for episode in episodes] == [10, 30] * NUM_ENVS
    assert all(episode.truncations[-1] for episode in episodes)


class Blind(gym.Env):
    """Always observes the same, so that nothing but the steps' number tells episodes apart."""

    observation_space, action_space = Box(0.0, 1.0, (1,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(self.steps), self.steps == 12, False, {}


@pytest.mark.parametrize("unfinished", ["drop", "truncate"])
def test_a_reset_is_noticed_even_where_observations_do_not_show_it(unfinished):
    envs = cluster(Blind, num_envs=2)
    policy, recorder = numpy_policy(envs), MinariRecorder(envs, unfinished)
    recorder.add(envs.rollout(policy, num_steps=5))
    envs.reset()
    recorder.add(envs.rollout(policy, num_steps=12))
    envs.close()
    rewards = [episode.rewards.tolist() for episode in recorder.take_episodes()]
    early, whole = [1.0, 2.0, 3.0, 4.0, 5.0], [float(step) for step in range(1, 13)]
    assert rewards == ([whole] * 2 if unfinished == "drop" else [early, whole] * 2)
    assert recorder.dropped_steps == (10 if unfinished == "drop" else 0)


def test_an_episode_whose_beginning_was_not_recorded_is_dropped():
    envs = cluster(Blind, num_envs=2)
    policy, recorder = numpy_policy(envs), MinariRecorder(envs, "truncate")
    envs.rollout(policy, num_steps=5)
    recorder.add(envs.rollout(policy, num_steps=7 + 12))
    envs.close()
    assert [len(episode) for episode in recorder.take_episodes()] == [12, 12]
    assert recorder.dropped_steps == 2 * 7


class Seeing(Blind):
    """Observes its step."""

    observation_space = Box(0.0, 12.0, (1,), np.float32)

    def step(self, action):
        _, *result = super().step(action)
        return np.array([self.steps], np.float32), *result


def test_a_rollout_that_was_left_out_is_noticed():
    envs = cluster(Seeing, num_envs=2)
    policy, recorder = numpy_policy(envs), MinariRecorder(envs)
    recorder.add(envs.rollout(policy, num_steps=10))
    envs.rollout(policy, num_steps=2 + 5)
    # Seven steps that end an episode of twelve: the last twelve recorded are not that episode.
    recorder.add(envs.rollout(policy, num_steps=7))
    envs.close()
    assert recorder.take_episodes() == []
    assert recorder.dropped_steps == 2 * (10 + 7)


class Watched(Blind):
    """Blind, but for the process that it runs in."""

    observation_space = Box(0.0, 2.0**31, (1,), np.float64)

    def reset(self, **kwargs):
        super().reset(**kwargs)
        return np.array([float(os.getpid())]), {}

    def step(self, action):
        self.steps += 1
        return np.array([float(os.getpid())]), float(self.steps), self.steps == 12, False, {}


def test_an_episode_whose_worker_was_lost_is_unfinished():
    with ClusterEnv(Watched, 2, 2) as envs:
        envs.reset(seed=SEED)
        policy, recorder = numpy_policy(envs), MinariRecorder(envs)
        first = envs.rollout(policy, num_steps=5)
        recorder.add(first)
        os.kill(int(first.observations[0, 1, 0]), signal.SIGKILL)
        for _ in range(2):
            recorder.add(envs.rollout(policy, num_steps=7))
    episodes = recorder.take_episodes()
    pids = [set(episode.observations[:, 0].tolist()) for episode in episodes]
    assert [len(episode) for episode in episodes] == [12, 12]
    assert all(len(one) == 1 for one in pids)
    assert recorder.dropped_steps == 5


# Infos.


class Telling(Blind):
    """Says its step in each step, and something else in some."""

    def reset(self, **kwargs):
        return super().reset(**kwargs)[0], {"at": -1}

    def step(self, action):
        *result, _ = super().step(action)
        info = {"at": self.steps, "places": np.full(2, self.steps / 2), "name": f"{self.steps}"}
        return *result, {**info, "odd": 1} if self.steps % 2 else info


def test_infos_are_those_of_each_step():
    envs = cluster(Telling, num_envs=2)
    recorder = MinariRecorder(envs, infos=["at", "places"])
    recorded(envs, recorder, lengths=(5, 20))
    dataset = recorder.create_dataset("infos/test-v0")
    envs.close()
    assert dataset.total_episodes == 4
    for episode in dataset:
        assert_same(episode.infos["at"], np.arange(1, 13))
        assert_same(episode.infos["places"], np.repeat(np.arange(1, 13)[:, None] / 2, 2, 1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("odd", r"info 'odd' is missing in 4 of 10 steps"),
        ("name", r"info 'name' must be a number, or an array of one shape, in each step"),
        ("nothing", r"info 'nothing' must be a number"),
    ],
)
def test_infos_that_are_no_arrays_are_refused(name, message):
    envs = cluster(Telling, num_envs=2)
    with pytest.raises(ValueError, match=message):
        MinariRecorder(envs, infos=[name]).add(envs.rollout(numpy_policy(envs), num_steps=5))
    envs.close()


# What can go wrong.


def test_wrong_arguments_are_refused():
    envs = cluster(Blind, num_envs=1)
    with pytest.raises(ValueError, match="unfinished='keep' must be 'drop' or 'truncate'"):
        MinariRecorder(envs, "keep")
    with pytest.raises(TypeError, match=r"must be a list of names, such as \['at'\]"):
        MinariRecorder(envs, infos="at")
    recorder = MinariRecorder(envs)
    rollout = envs.rollout(numpy_policy(envs), num_steps=5)
    torch = pytest.importorskip("torch", reason="pip install 'clusterenv[torch]'")
    assert isinstance(rollout.torch().rewards, torch.Tensor)
    with pytest.raises(TypeError, match=r"not what its torch\(\) returned"):
        recorder.add(rollout.torch())
    recorder.add(rollout)
    with pytest.raises(ValueError, match="no episode to write: 5 steps were recorded and dropped"):
        recorder.create_dataset("nothing/test-v0")
    envs.close()


def test_episodes_own_their_arrays():
    envs = cluster(Blind, num_envs=1)
    recorder = MinariRecorder(envs)
    rollout = envs.rollout(numpy_policy(envs), num_steps=12)
    recorder.add(rollout)
    envs.close()
    (episode,) = recorder.take_episodes()
    map_structure(lambda array: array.fill(0), rollout.rewards)
    assert episode.rewards.tolist() == [float(step) for step in range(1, 13)]


def test_a_missing_library_is_named_with_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    monkeypatch.delitem(sys.modules, "clusterenv.adapters.minari")
    with pytest.raises(ImportError, match=r"pip install 'clusterenv\[minari\]'"):
        importlib.import_module("clusterenv.adapters.minari")
