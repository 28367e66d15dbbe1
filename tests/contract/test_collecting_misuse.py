"""Calls out of order, and arguments that make no sense, before any policy acts."""

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from clusterenv import Limits
from tests.contract.policies import numpy_policy
from tests.contract.replay import Lives
from tests.contract.transports import cluster_env
from tests.environments.counting import Count

NUM_ENVS = 4
SEED = 60


@pytest.fixture
def envs():
    # A request that the workers cannot read must not take minutes to be noticed.
    limits = Limits(step_timeout_s=5.0, max_restarts_per_minute=0)
    with cluster_env("in-process", Count, NUM_ENVS, 2, limits=limits) as envs:
        yield envs


def assert_works(envs):
    lives = Lives(Count, NUM_ENVS, SEED)
    envs.reset(seed=SEED)
    lives.assert_lived(envs.rollout(numpy_policy(envs), 12))


def assert_real(rollout):
    """Fail unless every step of every column follows from the one before."""
    assert np.array_equal(rollout.next_observations[..., 1], rollout.observations[:-1, :, 1] + 1)


def test_a_rollout_resets_the_envs_if_nobody_has(envs):
    rollout = envs.rollout(numpy_policy(envs), 7)
    assert (rollout.observations[0, :, 1] == 0).all()
    assert_real(rollout)
    assert_works(envs)


def test_a_stream_resets_the_envs_if_nobody_has(envs):
    envs.publish(numpy_policy(envs))
    for fragment in envs.stream(7):
        assert (fragment.observations[0, :, 1] == 0).all()
        break
    assert_works(envs)


def test_a_stream_before_any_policy_is_an_error(envs):
    with pytest.raises(ValueError, match=r"publish\(policy\) first"):
        envs.stream(4)
    assert_works(envs)


def step_with_actions(envs):
    envs.step(np.zeros(NUM_ENVS, np.int64))


def step_with_policy(envs):
    envs.step(numpy_policy(envs))


@pytest.mark.parametrize("step", [step_with_actions, step_with_policy])
@pytest.mark.parametrize("method", ["rollout", "stream"])
def test_collecting_after_a_step_needs_a_reset(envs, step, method):
    envs.reset(seed=SEED)
    step(envs)
    policy = numpy_policy(envs)
    envs.publish(policy)
    arguments = (policy, 3) if method == "rollout" else (3,)
    with pytest.raises(ResetNeeded, match=f"`{method}` after `step` without `reset`"):
        getattr(envs, method)(*arguments)
    assert_works(envs)


@pytest.mark.parametrize("mask", [[True, True, False, False], [True, False, False, True]])
def test_a_reset_of_some_envs_is_not_the_reset_that_is_needed(envs, mask):
    """The others may have ended in the very last step."""
    envs.reset(seed=SEED)
    for _ in range(5):
        _, _, terminated, truncated, _ = envs.step(np.zeros(NUM_ENVS, np.int64))
    assert (terminated | truncated).all()
    envs.reset(options={"reset_mask": np.array(mask)})
    with pytest.raises((ResetNeeded, RuntimeError), match="reset"):
        envs.rollout(numpy_policy(envs), 3)
    assert_works(envs)


def test_after_a_reset_of_some_envs_a_rollout_goes_on_from_there(envs):
    policy = numpy_policy(envs)
    envs.reset(seed=SEED)
    before = envs.rollout(policy, 3)
    observations, _ = envs.reset(options={"reset_mask": np.array([True, False, False, False])})
    after = envs.rollout(policy, 3)
    assert np.array_equal(after.observations[0, 0], observations[0])
    assert np.array_equal(after.observations[0, 1:], before.observations[-1, 1:])
    assert_works(envs)


def test_steps_may_follow_a_rollout(envs):
    envs.reset(seed=SEED)
    rollout = envs.rollout(numpy_policy(envs), 7)
    observations, rewards, *_ = envs.step(np.zeros(NUM_ENVS, np.int64))
    assert np.array_equal(observations[:, 1], rollout.observations[-1, :, 1] + 1)
    assert np.array_equal(rewards, observations[:, 1])


@pytest.mark.parametrize("num_steps", [0, -1])
def test_fewer_than_one_step_is_an_error(envs, num_steps):
    with pytest.raises(ValueError, match=f"num_steps={num_steps} must be at least 1"):
        envs.rollout(numpy_policy(envs), num_steps)
    assert_works(envs)


@pytest.mark.parametrize("num_steps", [2.5, "4", None])
def test_a_number_of_steps_that_is_no_integer_is_an_error(envs, num_steps):
    with pytest.raises((TypeError, ValueError)):
        envs.rollout(numpy_policy(envs), num_steps)
    assert_works(envs)


def test_numbers_may_be_numpys(envs):
    policy = numpy_policy(envs)
    assert envs.rollout(policy, np.int64(3)).num_steps == 3
    assert len(envs.evaluate(policy, np.int64(3), seed=np.int64(1)).returns) == 3
    for fragment in envs.stream(np.int32(3), np.int64(1)):
        assert fragment.num_steps == 3
        break
