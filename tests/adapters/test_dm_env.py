"""`DmEnvironment` gives what stepping the dm_env.Environment by hand gives."""

import importlib
import sys
from functools import partial

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.utils.env_checker import check_env

from clusterenv import ClusterEnv
from tests.equality import assert_same

dm_env = pytest.importorskip("dm_env", reason="pip install 'clusterenv[dm-env]'")
from dm_env import specs  # noqa: E402

from clusterenv.adapters.dm_env import DmEnvironment, space_of  # noqa: E402

ACTIONS = {
    "push": specs.BoundedArray((2,), np.float32, -1.0, 1.0),
    "gear": specs.DiscreteArray(3),
}


class Task:
    """Has its random numbers where dm_control's tasks have them."""

    def __init__(self):
        self.random = np.random.RandomState(0)


class Walk(dm_env.Environment):
    """A random walk that falls, or is stopped after ``limit`` steps."""

    def __init__(self, limit=9, discount_at_limit=1.0, discount_within=1.0):
        self.limit, self.at_limit, self.within = limit, discount_at_limit, discount_within
        self.task, self.place, self.actions = Task(), np.zeros(2), []
        self.is_closed = False

    def observation_spec(self):
        return {
            "place": specs.Array((2,), np.float64),
            "sensors": {
                "gear": specs.DiscreteArray(3),
                "camera": specs.BoundedArray((2, 2), np.uint8, 0, 255),
                "touch": specs.Array((2,), np.bool_),
            },
        }

    def action_spec(self):
        return ACTIONS

    def _observe(self, gear):
        camera = self.task.random.randint(0, 256, (2, 2)).astype(np.uint8)
        sensors = {"gear": np.int32(gear), "camera": camera, "touch": self.place > 0}
        return {"place": self.place, "sensors": sensors}

    def reset(self):
        self.steps = 0
        self.place[:] = self.task.random.normal(size=2)
        return dm_env.restart(self._observe(0))

    def step(self, action):
        for name, spec in ACTIONS.items():
            spec.validate(action[name])
        self.steps += 1
        # In place: an observation that was handed out changes, unless somebody copied it.
        self.place += action["push"] * (1 + action["gear"]) + self.task.random.normal(size=2)
        reward, observation = -np.abs(self.place).sum(), self._observe(action["gear"])
        if np.abs(self.place).max() > 5:
            return dm_env.termination(reward, observation)
        if self.steps == self.limit:
            return dm_env.truncation(reward, observation, self.at_limit)
        return dm_env.transition(reward, observation, self.within)

    def close(self):
        self.is_closed = True


def make_walk():
    return DmEnvironment(Walk())


def by_hand(observation):
    """An observation of `Walk` in the dtypes of the spaces."""
    sensors = {**observation["sensors"], "gear": np.int64(observation["sensors"]["gear"])}
    return {"place": observation["place"].copy(), "sensors": sensors}


def actions_for(num_steps, num_envs, seed=0):
    space = space_of(ACTIONS)
    space.seed(seed)
    return [[space.sample() for _ in range(num_envs)] for _ in range(num_steps)]


def stacked(actions):
    return {name: np.stack([action[name] for action in actions]) for name in ACTIONS}


def rows_of(observations, slot):
    if isinstance(observations, dict):
        return {key: rows_of(part, slot) for key, part in observations.items()}
    return observations[slot]


@pytest.mark.parametrize("launcher", ["in-process", "local"])
def test_a_cluster_of_them_gives_what_stepping_by_hand_gives(launcher):
    num_envs, ends = 3, {"terminated": 0, "truncated": 0}
    walks = [Walk() for _ in range(num_envs)]
    with ClusterEnv(make_walk, num_envs, 2, launcher=launcher, autoreset_mode="SameStep") as envs:
        observations, _ = envs.reset(seed=7)
        for slot, walk in enumerate(walks):
            walk.task.random.seed(7 + slot)
            assert_same(rows_of(observations, slot), by_hand(walk.reset().observation))
        for actions in actions_for(60, num_envs):
            observations, rewards, terminated, truncated, infos = envs.step(stacked(actions))
            for slot, walk in enumerate(walks):
                timestep = walk.step({**actions[slot], "gear": np.int32(actions[slot]["gear"])})
                expected = by_hand(timestep.observation)
                assert rewards[slot] == timestep.reward
                assert terminated[slot] == (timestep.last() and timestep.discount == 0)
                assert truncated[slot] == (timestep.last() and timestep.discount > 0)
                if timestep.last():
                    ends["terminated"] += terminated[slot]
                    ends["truncated"] += truncated[slot]
                    assert_same(infos["final_obs"][slot], expected)
                    expected = by_hand(walk.reset().observation)
                assert_same(rows_of(observations, slot), expected)
            assert "discount" not in infos
    assert min(ends.values()) > 3


@pytest.mark.filterwarnings("ignore:.*probably too (low|high):UserWarning")
def test_gymnasium_finds_nothing_wrong_with_it():
    check_env(DmEnvironment(Walk()), skip_render_check=True)


def test_an_observation_that_was_handed_out_stays_as_it_was():
    env = DmEnvironment(Walk())
    observation, _ = env.reset(seed=2)
    before = observation["place"].copy()
    env.step(env.action_space.sample())
    assert not np.array_equal(env.environment.place, before)
    assert np.array_equal(observation["place"], before)


# Discounts.


def last_step(**kwargs):
    env = DmEnvironment(Walk(limit=2, **kwargs))
    env.reset(seed=1)
    action = {"push": np.zeros(2, np.float32), "gear": 0}
    return env.step(action), env.step(action)


@pytest.mark.parametrize(
    ("discount", "ends", "info"),
    [
        (0.0, (True, False), {}),
        (1.0, (False, True), {}),
        (0.5, (False, True), {"discount": 0.5}),
    ],
)
def test_the_last_discount_says_how_an_episode_ended(discount, ends, info):
    _, (_, _, terminated, truncated, found) = last_step(discount_at_limit=discount)
    assert (terminated, truncated) == ends
    assert found == info


@pytest.mark.parametrize("discount", [0.0, 0.9])
def test_a_discount_within_an_episode_does_not_end_it_and_is_told(discount):
    (_, _, terminated, truncated, info), _ = last_step(discount_within=discount)
    assert not terminated
    assert not truncated
    assert info == {"discount": discount}


# Spaces.


SPECS = {
    "unbounded": (specs.Array((2,), np.float32), Box(-np.inf, np.inf, (2,), np.float32)),
    "integers": (specs.Array((), np.int8), Box(-128, 127, (), np.int8)),
    "flags": (specs.Array((2,), np.bool_), Box(0, 1, (2,), np.bool_)),
    "bounded": (
        specs.BoundedArray((2,), np.float64, [-1.0, 0.0], 2.0),
        Box(np.array([-1.0, 0.0]), np.array([2.0, 2.0]), (2,), np.float64),
    ),
    "discrete": (specs.DiscreteArray(5), Discrete(5)),
    "nested": (
        {"a": [specs.DiscreteArray(2), specs.Array((1,), np.float32)]},
        Dict(a=Tuple([Discrete(2), Box(-np.inf, np.inf, (1,), np.float32)])),
    ),
}


@pytest.mark.parametrize(("spec", "space"), SPECS.values(), ids=SPECS)
def test_a_spec_becomes_the_space_that_means_the_same(spec, space):
    assert space_of(spec) == space


def test_a_spec_of_strings_is_refused():
    with pytest.raises(TypeError, match=r"no Gymnasium space for StringArray\(.*: specs must be"):
        space_of({"name": specs.StringArray(())})


class Reserved(Walk):
    """Observes a list, and takes a list of actions."""

    def __init__(self, reward_shape=()):
        super().__init__()
        self.reward_shape = reward_shape

    def reward_spec(self):
        return specs.Array(self.reward_shape, np.float64)

    def observation_spec(self):
        return [specs.Array((2,), np.float64), specs.DiscreteArray(3)]

    def action_spec(self):
        return [specs.DiscreteArray(3), specs.Array((), np.float64)]

    def reset(self):
        return dm_env.restart([self.place, 0])

    def step(self, action):
        assert type(action) is list
        assert type(action[0]) is np.int32
        return dm_env.transition(np.array([1.5]), [self.place, action[0]])


def test_lists_are_tuples_for_gymnasium_and_lists_again_for_the_environment():
    env = DmEnvironment(Reserved(reward_shape=(1,)), seed_with=lambda env, seed: None)
    assert_same(env.reset(seed=0)[0], (np.zeros(2), np.int64(0)))
    observation, reward, *_ = env.step((np.int64(2), 0.5))
    assert_same(observation, (np.zeros(2), np.int64(2)))
    assert_same(reward, 1.5)


def test_rewards_that_are_no_single_number_are_refused():
    with pytest.raises(ValueError, match=r"the reward must be a single number.*shape=\(3,\)"):
        DmEnvironment(Reserved(reward_shape=(3,)))


# Seeds, order and ends.


class Composer(Walk):
    """Has its random numbers where dm_control's composer has them."""

    def __init__(self):
        super().__init__()
        self.random_state, self.task = np.random.RandomState(0), None

    def reset(self):
        return dm_env.restart(
            {
                "place": self.random_state.normal(size=2),
                "sensors": {"gear": 0, "camera": np.zeros((2, 2)), "touch": np.zeros(2)},
            }
        )


def reseed(environment, seed):
    environment.task.random = np.random.RandomState(seed)


@pytest.mark.parametrize(
    "make",
    [
        partial(DmEnvironment, Walk()),
        partial(DmEnvironment, Composer()),
        partial(DmEnvironment, Walk(), seed_with=reseed),
    ],
    ids=["task.random", "random_state", "seed_with"],
)
def test_a_seed_gives_the_same_episode_again_and_another_seed_another(make):
    env = make()
    first, other, again = (env.reset(seed=seed)[0]["place"] for seed in (3, 4, 3))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_seed_without_effect_is_told():
    env = DmEnvironment(Reserved())
    env.environment.task = None
    with pytest.warns(UserWarning, match=r"seed=3 has no effect: Reserved has.*pass seed_with="):
        env.reset(seed=3)


def test_a_step_without_an_episode_is_refused_instead_of_beginning_one():
    env = DmEnvironment(Walk(limit=1))
    env.action_space.seed(0)  # with an action of any size, it may fall
    action = env.action_space.sample()
    for _ in range(2):
        with pytest.raises(ResetNeeded, match="the episode is over"):
            env.step(action)
        env.reset(seed=0)
        assert env.step(action)[3]


def test_an_environment_that_begins_an_episode_by_itself_is_refused():
    env = DmEnvironment(Walk())
    env.reset(seed=0)
    env.environment.step = lambda action: env.environment.reset()
    with pytest.raises(RuntimeError, match=r"Walk.step\(\) began an episode although none had"):
        env.step(env.action_space.sample())


def test_options_are_refused():
    with pytest.raises(ValueError, match=r"takes no options, got \['start'\]"):
        DmEnvironment(Walk()).reset(options={"start": 1})


def test_closing_closes_the_environment():
    env = DmEnvironment(Walk())
    env.close()
    assert env.environment.is_closed


def test_a_missing_library_is_named_with_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_env", None)
    monkeypatch.delitem(sys.modules, "clusterenv.adapters.dm_env")
    with pytest.raises(ImportError, match=r"pip install 'clusterenv\[dm-env\]'"):
        importlib.import_module("clusterenv.adapters.dm_env")
