"""What a user may get wrong: refused at once, with an error that says what and what to do."""

import threading
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import (
    ClosedEnvironmentError,
    NameNotFound,
    NamespaceNotFound,
    ResetNeeded,
    VersionNotFound,
)
from gymnasium.spaces import Box

from clusterenv import CannotPickleError, ClusterEnv, LocalLauncher, StartupError
from tests.environments.vectors import actions_for, cluster, oracle_of, walks
from tests.environments.walks import Walk
from tests.equality import assert_same

NUM_ENVS = 3


# What cannot travel.


def maker_with_a_lock():
    lock = threading.Lock()

    def make():
        with lock:
            return Walk()

    return make


def test_a_callable_that_cannot_be_pickled_is_refused_with_the_name_of_the_variable():
    with pytest.raises(CannotPickleError, match=r"variable 'lock' of .*make.*lock"):
        ClusterEnv(maker_with_a_lock(), 2)


def test_one_bad_callable_in_a_list_is_named_by_its_slot():
    with pytest.raises(CannotPickleError, match=r"\[2\].*'lock'"):
        ClusterEnv([Walk, Walk, maker_with_a_lock()], num_workers=2)


def test_a_wrapper_that_cannot_be_pickled_is_named():
    with pytest.raises(CannotPickleError, match=r"wrappers.*lock"):
        ClusterEnv("CartPole-v1", 2, wrappers=[partial(max, threading.Lock())])


def test_an_env_argument_that_cannot_be_pickled_is_named():
    with pytest.raises(CannotPickleError, match="'guard'"):
        ClusterEnv("CartPole-v1", 2, guard=threading.Lock())


def test_the_error_says_what_to_do_about_it():
    with pytest.raises(CannotPickleError, match="inside the env"):
        ClusterEnv(maker_with_a_lock(), 2)


# The constructor.


@pytest.mark.parametrize(
    ("env_id", "error"),
    [
        ("CartPoleX-v1", NameNotFound),
        ("CartPole-v99", VersionNotFound),
        ("nowhere/CartPole-v1", NamespaceNotFound),
    ],
)
def test_an_unknown_id_raises_what_gymnasium_raises(env_id, error):
    with pytest.raises(error) as expected:
        gym.make(env_id)
    with pytest.raises(error) as actual:
        ClusterEnv(env_id, 2)
    assert str(actual.value) == str(expected.value)


@pytest.mark.parametrize("name", ["num_worker", "step_timeout", "shared_memmory"])
def test_a_misspelt_keyword_is_refused_with_the_right_spelling(name):
    with pytest.raises(TypeError, match=rf"'{name}'.*did you mean"):
        ClusterEnv("CartPole-v1", 2, **{name: 1})


def test_a_misspelt_keyword_beside_a_callable_is_refused():
    with pytest.raises(TypeError, match=r"num_worker.*num_workers"):
        ClusterEnv(Walk, 2, num_worker=1)


def test_an_argument_that_the_env_does_not_take_is_the_envs_own_error():
    with pytest.raises(TypeError, match="gravitas"):
        ClusterEnv("CartPole-v1", 2, gravitas=1)


def test_an_unknown_launcher_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'slrum' is unknown: pass 'local', 'in-process'"):
        ClusterEnv(Walk, 2, launcher="slrum")


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("name", ["num_envs", "num_workers", "batch_size"])
def test_numbers_below_one_are_refused_by_name(name, number):
    with pytest.raises(ValueError, match=f"{name}={number}"):
        ClusterEnv(Walk, **{"num_envs": 2, name: number})


def test_a_batch_size_above_the_number_of_envs_is_refused():
    with pytest.raises(ValueError, match=r"batch_size=3.*2"):
        ClusterEnv(Walk, 2, batch_size=3)


def test_a_number_of_envs_that_contradicts_the_list_is_refused():
    with pytest.raises(ValueError, match=r"num_envs=3.*2 callables"):
        ClusterEnv([Walk, Walk], 3)


@pytest.mark.parametrize("env", [[], [Walk, "CartPole-v1"], [None]], ids=repr)
def test_what_makes_no_env_is_refused(env):
    with pytest.raises(TypeError, match="callable"):
        ClusterEnv(env)


def test_an_unknown_autoreset_mode_is_refused():
    with pytest.raises(ValueError, match="sometimes"):
        ClusterEnv(Walk, 2, autoreset_mode="sometimes")


class WideWalk(Walk):
    observation_space = Box(-1.0, 1.0, (7,))


class TinyStepWalk(Walk):
    action_space = Box(-0.1, 0.1, (2,))


def test_different_observation_spaces_are_refused_in_gymnasiums_words():
    with pytest.raises(RuntimeError, match=r"observation spaces are not equivalent"):
        ClusterEnv([Walk, WideWalk], num_workers=2)


def test_different_action_spaces_are_refused_in_gymnasiums_words():
    with pytest.raises(RuntimeError, match=r"action space different from"):
        ClusterEnv([Walk, TinyStepWalk], num_workers=2)


# Calls.


@pytest.fixture(scope="module")
def live():
    with cluster(walks(NUM_ENVS)) as envs:
        yield envs


@pytest.fixture
def envs(live):
    live.reset(seed=0)
    return live


BAD_ACTIONS = {
    "one too few": (actions_for(NUM_ENVS - 1), ValueError, r"\(2, 2\).*\(3, 2\)"),
    "one too many": (actions_for(NUM_ENVS + 1), ValueError, r"\(4, 2\).*\(3, 2\)"),
    "of another shape": (np.zeros((NUM_ENVS, 5)), ValueError, r"\(3, 5\).*\(3, 2\)"),
    "a single one": (np.zeros(2), ValueError, r"\(2,\).*\(3, 2\)"),
    "complex": (np.zeros((NUM_ENVS, 2), complex), TypeError, "complex128.*float64"),
    "text": (np.full((NUM_ENVS, 2), "up"), TypeError, "<U2.*float64"),
    "objects": (np.full((NUM_ENVS, 2), None), TypeError, "object.*float64"),
    "nothing": (None, TypeError, r"None.*\(3, 2\)"),
    "a number": (0.5, TypeError, r"0\.5.*\(3, 2\)"),
}


@pytest.mark.parametrize("kind", BAD_ACTIONS)
def test_actions_that_do_not_fit_are_refused_with_both_shapes_or_dtypes(kind, envs):
    actions, error, text = BAD_ACTIONS[kind]
    with pytest.raises(error, match=text):
        envs.step(actions)


def test_refused_actions_change_nothing(envs):
    oracle = oracle_of(NUM_ENVS)
    oracle.reset(seed=0)
    with pytest.raises(ValueError):
        envs.step(np.zeros(2))
    assert_same(envs.step(actions_for(NUM_ENVS)), oracle.step(actions_for(NUM_ENVS)))


def test_a_step_needs_a_reset():
    with cluster(walks(NUM_ENVS)) as envs, pytest.raises(ResetNeeded, match="reset"):
        envs.step(actions_for(NUM_ENVS))


@pytest.mark.parametrize("verb", ["recv", "send"])
def test_partial_batches_need_an_async_reset(verb, envs):
    arguments = (actions_for(1), [0]) if verb == "send" else ()
    with pytest.raises(ResetNeeded, match="async_reset"):
        getattr(envs, verb)(*arguments)


@pytest.mark.parametrize("seed", [[1, 2], [1, 2, 3, 4]], ids=str)
def test_a_list_of_seeds_of_another_length_is_refused(seed, envs):
    with pytest.raises(ValueError, match=rf"num_envs=3.*length={len(seed)}"):
        envs.reset(seed=seed)


def test_an_attribute_that_the_envs_do_not_have_is_their_own_error(envs):
    with pytest.raises(AttributeError, match="colour"):
        envs.get_attr("colour")


AFTER_CLOSE = {
    "reset": lambda envs: envs.reset(),
    "step": lambda envs: envs.step(actions_for(NUM_ENVS)),
    "step_wait": lambda envs: envs.step_wait(),
    "call": lambda envs: envs.call("poke"),
    "get_attr": lambda envs: envs.get_attr("age"),
    "set_attr": lambda envs: envs.set_attr("age", 1),
    "render": lambda envs: envs.render(),
    "async_reset": lambda envs: envs.async_reset(),
    "recv": lambda envs: envs.recv(),
    "send": lambda envs: envs.send(actions_for(1), [0]),
}


@pytest.fixture(scope="module")
def closed():
    envs = cluster(walks(NUM_ENVS))
    envs.reset()
    envs.close()
    return envs


@pytest.mark.parametrize("verb", AFTER_CLOSE)
def test_nothing_works_after_close(verb, closed):
    with pytest.raises(ClosedEnvironmentError, match=r"close\(\)"):
        AFTER_CLOSE[verb](closed)


# Whom a launcher serves.


def test_a_launcher_serves_one_run_at_a_time():
    launcher = LocalLauncher(hosts=1)
    with ClusterEnv(Walk, 2, num_workers=1, launcher=launcher) as first:
        first.reset(seed=1)
        with pytest.raises(StartupError, match="another open ClusterEnv: make one for each"):
            ClusterEnv(Walk, 2, num_workers=1, launcher=launcher)
        # The hosts of the first are still there.
        assert not first.step(first.action_space.sample())[3].any()
    with ClusterEnv(Walk, 2, num_workers=1, launcher=launcher) as second:
        second.reset(seed=1)
