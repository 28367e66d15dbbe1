"""Calls out of order raise Gymnasium's errors, with Gymnasium's words, and do no harm."""

import re
from functools import partial

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

from clusterenv import ClusterEnv
from tests.contract.conftest import NUM_ENVS
from tests.equality import assert_same

CALLS = {
    "reset_async": lambda envs: envs.reset_async(),
    "step_async": lambda envs: envs.step_async(envs.action_space.sample()),
    "call_async": lambda envs: envs.call_async("gravity"),
    "set_attr": lambda envs: envs.set_attr("gravity", 1.0),
}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("verb", ["reset", "step", "call"])
def test_a_second_call_must_wait_for_the_first(envs, verb, method):
    CALLS[f"{verb}_async"](envs)
    message = f"Calling `{method}` while waiting for a pending call to `{verb}` to complete"
    with pytest.raises(AlreadyPendingCallError, match=re.escape(message)) as error:
        CALLS[method](envs)
    assert error.value.name == verb
    getattr(envs, f"{verb}_wait")()


@pytest.mark.parametrize("method", ["reset", "step", "call", "get_attr", "render"])
def test_a_blocking_call_must_wait_for_a_pending_one(envs, method):
    arguments = {"step": [envs.action_space.sample()], "call": ["gravity"], "get_attr": ["gravity"]}
    envs.reset_async()
    with pytest.raises(AlreadyPendingCallError, match="a pending call to `reset`"):
        getattr(envs, method)(*arguments.get(method, []))
    envs.reset_wait()


@pytest.mark.parametrize("verb", ["reset", "step", "call"])
def test_waiting_needs_a_pending_call(envs, verb):
    message = f"Calling `{verb}_wait` without any prior call to `{verb}_async`."
    with pytest.raises(NoAsyncCallError, match=re.escape(message)) as error:
        getattr(envs, f"{verb}_wait")()
    assert error.value.name == verb


def test_waiting_for_another_verb_leaves_the_pending_call_alone(envs):
    envs.step_async(np.zeros(NUM_ENVS, np.int64))
    with pytest.raises(NoAsyncCallError):
        envs.reset_wait()
    _, rewards, *_ = envs.step_wait()
    np.testing.assert_array_equal(rewards, np.ones(NUM_ENVS))


def test_asynchronous_verbs_return_what_the_blocking_ones_do(envs, oracle):
    envs.reset_async(seed=3)
    assert_same(envs.reset_wait(timeout=60), oracle.reset(seed=3))
    actions = oracle.action_space.sample()
    envs.step_async(actions)
    assert_same(envs.step_wait(timeout=60), oracle.step(actions))
    envs.call_async("gravity")
    assert_same(envs.call_wait(timeout=60), oracle.call("gravity"))


def test_an_error_on_a_closed_env_names_the_class():
    envs = ClusterEnv("CartPole-v1", 2, launcher="in-process")
    envs.close()
    message = "Trying to operate on `ClusterEnv`, after a call to `close()`."
    calls = [
        envs.reset,
        envs.reset_async,
        envs.reset_wait,
        partial(envs.step, [0, 0]),
        partial(envs.step_async, [0, 0]),
        envs.step_wait,
        partial(envs.call, "gravity"),
        envs.call_wait,
        partial(envs.get_attr, "gravity"),
        partial(envs.set_attr, "gravity", 1.0),
        envs.render,
    ]
    for call in calls:
        with pytest.raises(ClosedEnvironmentError, match=re.escape(message)):
            call()
