"""`StableBaselines3VecEnv` gives what SB3's own DummyVecEnv gives, and SB3 trains on it."""

import importlib
import os
import signal
import sys
from functools import partial
from itertools import cycle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

from clusterenv.adapters import stable_baselines3
from clusterenv.adapters.stable_baselines3 import StableBaselines3VecEnv
from clusterenv.backends.vector import VectorBackend
from tests.contract.transports import IN_TURNS, TRANSPORTS, and_on_four_hosts
from tests.environments.faults import FailingEnv, GateEnv, LooseEnv
from tests.environments.sampling import SpaceEnv
from tests.equality import assert_same

NUM_ENVS = 3

SENSES = Dict(camera=Box(0, 255, (2, 2), np.uint8), heading=Box(-1.0, 1.0, (3,)), gear=Discrete(4))
MAKERS = {
    "terminated": partial(gym.make, "CartPole-v1"),
    "truncated": partial(gym.make, "Pendulum-v1", max_episode_steps=15),
    "dict": partial(SpaceEnv, SENSES, action_space=Discrete(3)),
    "loose": LooseEnv,
    "tuple_actions": partial(SpaceEnv, Box(0.0, 1.0, (2,)), Tuple([Discrete(3), Box(0.0, 1.0)])),
}


def over(transport, make, num_envs=NUM_ENVS, **kwargs):
    return StableBaselines3VecEnv(make, num_envs, 2, **TRANSPORTS[transport](num_envs), **kwargs)


def oracle_of(make, wrapper=lambda env: env):
    return DummyVecEnv([lambda: wrapper(make())] * NUM_ENVS)


@pytest.fixture(scope="module", params=["shared_memory", "in-process"])
def live(request):
    """Three CartPoles on two workers, started once."""
    with_images = {
        "render_mode": "rgb_array",
        "wrappers": [partial(TimeLimit, max_episode_steps=9)],
    }
    venv = over(request.param, "CartPole-v1", **with_images)
    yield venv
    venv.close()


@pytest.fixture
def venv(live):
    live.seed(0)
    live.reset()
    live.set_attr("gravity", 9.8)
    return live


@pytest.fixture(scope="module")
def oracle():
    """What `venv` must behave like."""
    make = partial(gym.make, "CartPole-v1", render_mode="rgb_array")
    return oracle_of(make, partial(TimeLimit, max_episode_steps=9))


# The same numbers.


def plain(answer):
    """The answer without what differs by design: the time of day, and types that are alike."""
    if isinstance(answer, tuple):
        return tuple(plain(part) for part in answer)
    if isinstance(answer, dict):
        return dict(answer)
    if isinstance(answer, list):
        for info in answer:
            if "TimeLimit.truncated" in info:
                info["TimeLimit.truncated"] = bool(info["TimeLimit.truncated"])
            if "episode" in info:
                assert info["episode"].pop("t") >= 0
    return answer


def assert_same_steps(ours, theirs, steps):
    """Step both; return how many episodes ended, and how many of them at a time limit."""
    ends = truncations = 0
    for _ in range(steps):
        actions = [theirs.action_space.sample() for _ in range(theirs.num_envs)]
        if not isinstance(theirs.action_space, Tuple):
            actions = np.stack(actions)
        actual, expected = plain(ours.step(actions)), plain(theirs.step(actions))
        assert_same(actual, expected, "step")
        assert_same(ours.reset_infos, theirs.reset_infos, "reset_infos")
        ends += expected[2].sum()
        truncations += sum(info["TimeLimit.truncated"] for info in expected[3])
    return ends, truncations


def assert_same_resets(ours, theirs):
    assert_same(plain(ours.reset()), plain(theirs.reset()), "reset")
    assert_same(ours.reset_infos, theirs.reset_infos, "reset_infos")


@pytest.mark.parametrize(("kind", "transport"), and_on_four_hosts(zip(MAKERS, cycle(IN_TURNS))))
def test_it_gives_the_same_numbers_as_sb3_does(kind, transport):
    ours, theirs = over(transport, MAKERS[kind]), oracle_of(MAKERS[kind])
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    theirs.action_space.seed(5)
    assert list(ours.seed(7)) == list(theirs.seed(7))
    assert_same_resets(ours, theirs)
    ends, truncations = assert_same_steps(ours, theirs, 200)
    assert ends > 10
    assert (truncations > 0) == (kind not in ("terminated", "loose"))
    assert_same_resets(ours, theirs)
    assert_same_steps(ours, theirs, 10)
    ours.close()


def test_a_monitor_reports_the_same_episodes():
    ours = over("in-process", MAKERS["truncated"], wrappers=[Monitor])
    theirs = oracle_of(MAKERS["truncated"], Monitor)
    ours.seed(1)
    theirs.seed(1)
    assert_same_resets(ours, theirs)
    ends, truncations = assert_same_steps(ours, theirs, 60)
    assert ends == truncations == 4 * NUM_ENVS
    assert ours.env_is_wrapped(Monitor) == [True] * NUM_ENVS
    ours.close()


def test_a_ready_vector_env_gives_the_same_numbers():
    def make_vector(count):
        return SyncVectorEnv([MAKERS["terminated"]] * count, autoreset_mode="SameStep")

    ours = over("in-process", VectorBackend(make_vector))
    theirs = oracle_of(MAKERS["terminated"])
    ours.seed(2)
    theirs.seed(2)
    assert_same_resets(ours, theirs)
    assert assert_same_steps(ours, theirs, 100)[0] > 5
    assert ours.env_is_wrapped(Monitor) == [False] * NUM_ENVS
    with pytest.raises(TypeError, match="backend object cannot be called one by one"):
        ours.get_attr("gravity")
    ours.close()


def test_seeds_and_options_are_used_once():
    make = MAKERS["dict"]
    ours, theirs = over("in-process", make), oracle_of(make)
    for venv in (ours, theirs):
        venv.seed(3)
        venv.set_options({"start": 1})
    assert_same_resets(ours, theirs)
    assert [info["options"] for info in ours.reset_infos] == ["{'start': 1}"] * NUM_ENVS
    assert_same_resets(ours, theirs)
    assert [info["options"] for info in ours.reset_infos] == ["None"] * NUM_ENVS
    for venv in (ours, theirs):
        venv.seed(4)
        venv.set_options([{"start": slot} for slot in range(NUM_ENVS)])
    assert_same_resets(ours, theirs)
    assert [info["options"] for info in ours.reset_infos] == [
        "{'start': 0}",
        "{'start': 1}",
        "{'start': 2}",
    ]
    ours.close()


class Unready(gym.Env):
    """Can be stepped before it is reset."""

    observation_space = Box(-9.0, 9.0, (1,), np.float32)
    action_space = Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps + action, np.float32), 1.0, self.steps == 3, False, {}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_envs_that_can_be_stepped_before_a_reset_are_as_with_sb3(transport):
    ours, oracle = over(transport, Unready, 2), DummyVecEnv([Unready] * 2)
    try:
        for actions in ([0, 1], [1, 1], [0, 0], [1, 0]):
            assert_same(ours.step(np.array(actions)), oracle.step(np.array(actions)))
    finally:
        ours.close()


def test_envs_that_cannot_be_stepped_before_a_reset_say_so_themselves():
    venv = StableBaselines3VecEnv("CartPole-v1", 2, launcher="in-process")
    try:
        with pytest.raises(ResetNeeded, match=r"Cannot call env.step\(\) before"):
            venv.step(np.zeros(2, np.int64))
        assert venv.reset().shape == (2, 4)
    finally:
        venv.close()


@pytest.mark.parametrize("take", [lambda envs: envs[1], list], ids=["an index", "a loop"])
def test_envs_cannot_be_taken_out_and_the_error_says_what_to_use(venv, take):
    with pytest.raises(TypeError, match=r"other processes.*: use get_attr, set_attr and env_m"):
        take(venv.envs)


def test_a_reset_ends_a_step_that_is_under_way(venv):
    venv.step_async(np.zeros(NUM_ENVS, np.int64))
    venv.seed(6)
    first = venv.reset()
    venv.seed(6)
    assert_same(first, venv.reset())
    venv.step(np.zeros(NUM_ENVS, np.int64))


# Learning.


@pytest.fixture
def one_thread():
    """Small networks on busy cores lose most of their time waiting for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def parameters_after(algorithm, venv, steps, **kwargs):
    model = algorithm(env=venv, seed=11, device="cpu", **kwargs)
    model.learn(steps)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    venv.close()
    assert returns
    return returns, {name: w.numpy() for name, w in model.policy.state_dict().items()}


FEW = {"n_steps": 32, "batch_size": 32, "n_epochs": 2}
LEARNERS = {
    "PPO, terminated": ("terminated", PPO, {"policy": "MlpPolicy", **FEW}),
    "PPO, truncated": ("truncated", PPO, {"policy": "MlpPolicy", **FEW}),
    "PPO, dict": ("dict", PPO, {"policy": "MultiInputPolicy", **FEW}),
    "DQN": ("terminated", DQN, {"policy": "MlpPolicy", "learning_starts": 60}),
}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("kind", "algorithm", "kwargs"), LEARNERS.values(), ids=LEARNERS)
def test_sb3_learns_the_very_same_on_it(kind, algorithm, kwargs):
    make = partial(MAKERS[kind], info_kinds=()) if kind == "dict" else MAKERS[kind]
    ours, theirs = over("in-process", make, wrappers=[Monitor]), oracle_of(make, Monitor)
    actual = parameters_after(algorithm, ours, 300, **kwargs)
    assert_same(actual, parameters_after(algorithm, theirs, 300, **kwargs))


@pytest.mark.usefixtures("one_thread")
def test_ppo_trains_over_processes_and_is_evaluated():
    venv = over("shared_memory", "CartPole-v1")
    model = PPO("MlpPolicy", VecNormalize(VecMonitor(venv)), seed=1, device="cpu", **FEW).learn(200)
    returns, lengths = evaluate_policy(
        model, model.get_env(), n_eval_episodes=4, return_episode_rewards=True
    )
    assert returns == lengths
    venv.close()


# Attributes, methods and images.


def test_it_is_a_vec_env(venv, oracle):
    assert isinstance(venv, VecEnv)
    assert venv.unwrapped is venv
    assert venv.num_envs == NUM_ENVS
    assert venv.render_mode == oracle.render_mode == "rgb_array"
    assert venv.metadata["render_fps"] == oracle.metadata["render_fps"]


INDICES = {"all": None, "one": 1, "last": -1, "some": [2, 0], "twice": (1, 1), "none": []}


@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES)
def test_only_the_envs_that_are_meant_are_reached(venv, oracle, indices):
    oracle.env_method("set_wrapper_attr", "gravity", 9.8)
    for env in (venv, oracle):
        done = env.env_method("set_wrapper_attr", "gravity", 1.5, force=False, indices=indices)
        assert set(done) <= {True}
    assert venv.get_attr("gravity") == oracle.get_attr("gravity")
    assert venv.get_attr("gravity", indices) == oracle.get_attr("gravity", indices)
    assert venv.get_attr("render_mode", indices) == oracle.get_attr("render_mode", indices)
    venv.set_attr("gravity", [7.0], indices)
    assert venv.get_attr("gravity", indices) == [[7.0]] * len(done)
    assert venv.get_attr("gravity").count(9.8) == oracle.get_attr("gravity").count(9.8)


def test_a_set_attribute_has_an_effect_on_the_env(venv):
    venv.set_attr("theta_threshold_radians", -1.0, indices=[1])
    dones = venv.step(np.zeros(NUM_ENVS, np.int64))[2]
    assert dones.tolist() == [False, True, False]
    venv.set_attr("theta_threshold_radians", 0.2)


def test_an_attribute_that_is_a_method_is_not_called(venv):
    assert all(callable(method) for method in venv.get_attr("class_name"))


def test_it_knows_which_attributes_exist(venv):
    assert venv.has_attr("gravity")
    assert not venv.has_attr("levity")
    with pytest.raises(AttributeError, match="levity"):
        venv.get_attr("levity")


def test_it_knows_which_wrappers_exist(venv, oracle):
    for wrapper in (TimeLimit, gym.Wrapper, Monitor, type("TimeLimit", (TimeLimit,), {})):
        assert venv.env_is_wrapped(wrapper) == oracle.env_is_wrapped(wrapper)
        assert venv.env_is_wrapped(wrapper, [1]) == oracle.env_is_wrapped(wrapper, [1])


def test_images_are_those_of_the_envs(venv, oracle):
    oracle.seed(0)
    oracle.reset()
    assert_same(list(venv.get_images()), list(oracle.get_images()))
    assert_same(venv.render(), oracle.render())


# What can go wrong.


def test_images_need_a_render_mode():
    venv = over("in-process", "CartPole-v1")
    with pytest.warns(UserWarning, match="render_mode is None: images need"):
        assert venv.get_images() == [None] * NUM_ENVS
    venv.close()


WRONG = {
    "autoreset": ({"autoreset_mode": AutoresetMode.NEXT_STEP}, "reset within the step"),
    "copy": ({"copy": False}, "kept beyond the next step"),
}


@pytest.mark.parametrize(("kwargs", "message"), WRONG.values(), ids=WRONG)
def test_what_sb3_cannot_live_with_is_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        StableBaselines3VecEnv("CartPole-v1", **kwargs)


def test_a_wrong_number_of_options_is_refused(venv):
    venv.set_options([{"low": -0.01}])
    with pytest.raises(ValueError, match="1 options were set for 3 envs"):
        venv.reset()
    venv.set_options()
    venv.reset()


def test_an_index_beyond_the_last_env_is_refused(venv):
    with pytest.raises(IndexError):
        venv.env_method("class_name", indices=[NUM_ENVS])


def test_an_error_of_an_env_comes_through_and_a_reset_mends_it():
    venv = over("in-process", FailingEnv)
    venv.reset()
    with pytest.raises(ValueError, match="action 1 is broken"):
        venv.step(np.array([0, 1, 0]))
    venv.reset()
    venv.step(np.zeros(NUM_ENVS, np.int64))
    venv.close()


def test_after_close_nothing_works_and_close_may_be_called_again():
    venv = over("in-process", "CartPole-v1")
    venv.close()
    venv.close()
    with pytest.raises(ClosedEnvironmentError):
        venv.reset()


def test_a_lost_worker_is_an_episode_that_was_cut_short():
    venv = over("shared_memory", partial(GateEnv, "", "nothing"))
    before = venv.reset()
    first, *_, last = venv.envs.apply(lambda env: os.getpid())
    assert first != last
    os.kill(last, signal.SIGKILL)
    observations, _, dones, infos = venv.step(np.zeros(NUM_ENVS, np.int64))
    assert dones.tolist() == [False, False, True]
    assert infos[2]["env_lost"]
    assert infos[2]["TimeLimit.truncated"]
    assert_same(infos[2]["terminal_observation"], before[2])
    assert not np.array_equal(observations[2], before[2])
    assert venv.reset_infos[2] == {}
    venv.set_attr("note", "here", indices=[2])
    assert venv.get_attr("note", [2]) == ["here"]
    venv.close()


def test_a_missing_library_is_named_with_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", None)
    monkeypatch.delitem(sys.modules, stable_baselines3.__name__)
    with pytest.raises(ImportError, match=r"pip install 'clusterenv\[stable-baselines3\]'"):
        importlib.import_module(stable_baselines3.__name__)
