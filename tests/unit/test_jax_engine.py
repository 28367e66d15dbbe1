"""Pure functions as a VectorEnv: when it resets, and what it says of functions that are no env."""

import sys

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from clusterenv import JaxBackend
from tests.environments.pure import CartPole, Walk
from tests.equality import assert_same

SAME_STEP = AutoresetMode.SAME_STEP
ACTIONS = np.random.default_rng(0).integers(0, 2, (10, 3))


@pytest.fixture(scope="module")
def engine():
    backend = JaxBackend(CartPole, params=None, max_episode_steps=9)
    return backend.build(range(3))


def play(engine, mode, steps, seed=5):
    engine.choose_autoreset_mode(mode)
    answers = [engine.reset(seed=seed)]
    return answers + [engine.step(ACTIONS[n]) for n in range(steps)]


def test_episodes_are_the_same_in_every_autoreset_mode(engine):
    """What a reset with the next step returns is what one within the step returned before."""
    at_once = play(engine, SAME_STEP, 10)
    later = play(engine, AutoresetMode.NEXT_STEP, 10)
    for n in range(1, 9):
        assert_same(later[n][:4], at_once[n][:4])
    assert at_once[9][3].all()  # truncated
    assert_same(later[9][0], at_once[9][4]["final_obs"])
    assert_same(at_once[9][4]["final_info"]["time"], np.full(3, 9, np.int32))
    assert not at_once[9][4]["_time"].any()
    assert_same(later[10][0], at_once[9][0])
    assert not later[10][1].any()
    assert not later[10][4]["_time"].any()


def test_without_autoreset_an_episode_that_is_over_must_be_reset(engine):
    play(engine, AutoresetMode.DISABLED, 9)
    with pytest.raises(AssertionError, match=r"rows \[0, 1, 2\] are over"):
        engine.step(ACTIONS[0])
    engine.reset()
    engine.step(ACTIONS[0])


def test_some_envs_are_reset_and_the_others_stay_where_they_are(engine):
    before = play(engine, SAME_STEP, 3)[-1][0]
    after, _ = engine.reset(seed=[None, 8, None], options={"reset_mask": np.array([0, 1, 0], bool)})
    assert_same(after[[0, 2]], before[[0, 2]])
    assert_same(after[1], engine.reset(seed=7)[0][1])
    assert engine.np_random_seed == (7, 8, 9)
    first, _ = engine.reset(seed=7)
    assert not np.array_equal(engine.reset()[0], first)
    large = engine.reset(seed=2**32 + 7)[0]
    assert len(np.unique(np.concatenate([first, large]), axis=0)) == 6


# What is wrong with an env.


def reset(key):
    return jnp.zeros(2), jnp.zeros(2)


def step(key, state, action):
    return state, state + 1, 0.0, False, {}


class Wrapper:
    """As gymnax has them: what it lacks is the inner env's."""

    reset, step, step_env = staticmethod(reset), staticmethod(step), None

    def __getattribute__(self, name):
        return step if name == "step_env" else super().__getattribute__(name)


del Wrapper.step_env


class OwnResets(Walk):
    def reset(self, key):
        state = super().reset(key)
        return state._replace(info={**state.info, "first_obs": state.obs})


class Shapeless(Walk):
    def step(self, state, action):
        return super().step(state, action).obs


WRONG = {
    "reset without a key": ((lambda: (0, 0), step), r"reset\(\) cannot be called as reset\(key\)"),
    "step of a state": (
        (reset, lambda state, action: state),
        r"step\(state, action\) cannot be called as step\(key, state, action\): JaxBackend takes",
    ),
    "reset's result": ((lambda key: key, step), r"reset\(key\) returned .*, expected reset\(key\)"),
    "step's result": ((reset, lambda k, s, a: (s, s, 0.0)), "step returned a tuple of 3, expected"),
    "a state's result": (Shapeless(), "step returned .*, expected step.state, action. → state"),
    "reward": ((reset, lambda k, s, a: (s, s, s, False, {})), r"a reward of shape \(2,\)"),
    "done": ((reset, lambda k, s, a: (s, s, 0.0, s > 0, {})), r"a done of shape \(2,\)"),
    "info": ((reset, lambda k, s, a: (s, s, 0.0, False, s)), "info of type ShapeDtypeStruct"),
    "state": (
        (
            lambda key: (jnp.zeros(2), {"a": jnp.zeros(2)}),
            lambda k, s, a: (s["a"], {"a": 1}, 0.0, False, {}),
        ),
        r"state\['a'\] is float32 of shape \(2,\) after reset, but int32 of shape \(\) after step",
    ),
    "another structure": (
        (reset, lambda k, s, a: (s, (s, s), 0.0, False, {})),
        "another structure",
    ),
    "step's observation": (
        (reset, lambda k, s, a: (s[:1], s, 0.0, False, {})),
        r"the observation that step returns is float32 of shape \(1,\)",
    ),
    "own resets": (OwnResets(), "resets by itself .*auto_reset=False"),
    "a wrapper": (Wrapper(), "wraps an env of gymnax whose step resets by itself"),
    "made something else": (lambda: 3, "returned 3 of type int: it takes an object with reset"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_functions_that_are_no_env_are_told_what_is_wrong(wrong):
    env, message = WRONG[wrong]
    with pytest.raises((TypeError, ValueError), match=message):
        JaxBackend(env, action_space=Discrete(2)).build([0, 1])


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({}, r"does not say which actions it takes: pass JaxBackend\(action_space="),
        (
            {"observation_space": Box(0, 1, (3,), np.float32), "action_space": Discrete(2)},
            r"reset returns is float32 of shape \(2,\), but the observation space has float32 of "
            r"shape \(3,\)",
        ),
        (
            {"observation_space": Box(0, 9, (2,), np.int32), "action_space": Discrete(2)},
            r"is float32 of shape \(2,\), but the observation space has int32",
        ),
        (
            {"observation_space": gym.spaces.Dict(a=Discrete(2)), "action_space": Discrete(2)},
            r"with the parts \[\], but the observation space is a Dict with \['a'\]",
        ),
    ],
)
def test_spaces_that_do_not_fit_are_told_what_would(spaces, message):
    with pytest.raises(ValueError, match=message):
        JaxBackend((reset, step), **spaces).build([0, 1])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (3, "JaxBackend got 3 of type int"),
        (gym.make("CartPole-v1"), "is no pure function: pass ClusterEnv a function"),
        ((reset,), "JaxBackend got .* of type tuple"),
    ],
)
def test_what_is_no_env_at_all_is_refused_at_once(env, message):
    with pytest.raises(TypeError, match=message):
        JaxBackend(env)


class Discretes:
    """Describes its spaces as gymnax does: by methods, with classes of its own."""

    class Box:
        low, high, shape, dtype = np.array([0.0, 0.0]), 2.0, (2,), jnp.float32

    class Discrete:
        n = 3

    default_params = 2.0

    def observation_space(self, params):
        return self.Box()

    def action_space(self, params):
        return self.Discrete()

    def reset_env(self, key, params):
        return jnp.zeros(2), jnp.zeros(2)

    def step_env(self, key, state, action, params):
        return state + params, state + params, action * 1.0, False, {}

    reset = step = None


def test_an_env_of_gymnax_is_stepped_without_its_own_resets():
    engine = JaxBackend(Discretes(), params=0.5).build([0, 1])
    assert engine.single_observation_space == Box(0, 2, (2,), np.float32)
    assert engine.single_action_space == Discrete(3)
    engine.reset(seed=0)
    observations, rewards, *_ = engine.step(np.array([1, 2]))
    assert_same(observations, np.full((2, 2), 0.5, np.float32))
    assert rewards.tolist() == [1, 2]


def test_without_jax_the_backend_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "clusterenv.backends.jax_engine")
    with pytest.raises(ImportError, match=r"pip install 'clusterenv\[jax\]'"):
        JaxBackend(CartPole()).build([0])


def test_one_worker_per_host_runs_them():
    assert JaxBackend(CartPole()).has_own_threads
