"""However a stream ends, collection stops, and what comes after gives the right numbers."""

from contextlib import closing
from functools import partial
from itertools import islice

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from clusterenv.distributions import Categorical
from clusterenv.policies.numpy import NumpyPolicy
from tests.contract.policies import numpy_policy
from tests.contract.replay import Lives
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.environments.counting import Count

NUM_ENVS = 5
SEED = 40
T = 7


@pytest.fixture(scope="module", params=TRANSPORTS)
def live(request, tmp_path_factory):
    """Envs that count their steps in a file, and that file."""
    trace = tmp_path_factory.mktemp("steps") / "trace"
    trace.touch()
    make = partial(Count, trace=str(trace))
    with cluster_env(request.param, make, NUM_ENVS, 2) as envs:
        yield envs, trace


@pytest.fixture
def envs(live):
    envs, _ = live
    envs.reset(seed=SEED)
    envs.publish(numpy_policy(envs))
    return envs


@pytest.fixture
def own_envs():
    """For tests that may leave their envs unusable."""
    with cluster_env("in-process", Count, NUM_ENVS, 2) as envs:
        envs.reset(seed=SEED)
        envs.publish(numpy_policy(envs))
        yield envs


def assert_works(envs):
    """Fail unless a rollout, a stream and steps after a reset give the right numbers."""
    policy = numpy_policy(envs)
    envs.reset(seed=SEED)
    lives = Lives(Count, NUM_ENVS, SEED)
    rollout = envs.rollout(policy, 12)
    lives.assert_lived(rollout)
    with closing(envs.stream(T)) as stream:
        for fragment in islice(stream, 4):
            lives.assert_lived(fragment)
    observations, _ = envs.reset(seed=SEED)
    assert np.array_equal(observations, rollout.observations[0])
    for t in range(4):
        observations, *_, infos = envs.step(policy)
        assert np.array_equal(infos["action"], rollout.actions[t])
        assert np.array_equal(observations, rollout.observations[t + 1])


def test_leaving_the_loop_stops_collection(live, envs):
    _, trace = live
    before = trace.stat().st_size
    for _ in envs.stream(T, in_flight=4):
        break
    # The workers finish the fragment that they are at, then answer the reset.
    envs.reset(seed=SEED)
    after = trace.stat().st_size
    assert after - before <= (4 + 1) * NUM_ENVS * T
    for _ in range(3):
        envs.reset(seed=SEED)
    assert trace.stat().st_size == after
    assert_works(envs)


def test_streams_may_follow_each_other(envs):
    for _ in range(4):
        envs.reset(seed=SEED)
        lives = Lives(Count, NUM_ENVS, SEED)
        with closing(envs.stream(T)) as stream:
            for fragment in islice(stream, 5):
                lives.assert_lived(fragment)
    assert_works(envs)


def test_what_follows_a_stream_without_a_reset_goes_on_with_the_same_episodes(envs):
    """Fragments that nobody looked at may lie between, but no row is made up."""
    with closing(envs.stream(T)) as stream:
        seen = list(islice(stream, 3))
    rollout = envs.rollout(numpy_policy(envs), 20)
    ages, following = rollout.observations[..., 1], rollout.next_observations[..., 1]
    assert np.array_equal(following[:, :], ages[:-1] + 1)
    assert np.array_equal(rollout.rewards, following)
    assert (rollout.episodes.lengths == 5).all()
    assert (rollout.episodes.returns == 15).all()
    assert len(seen) == 3


def test_an_exception_in_the_loop_ends_the_stream(envs):
    with pytest.raises(ZeroDivisionError):
        for _ in envs.stream(T):
            _ = 1 / 0
    assert_works(envs)


def test_two_streams_at_once_are_an_error(envs):
    with closing(envs.stream(T)) as stream:
        next(stream)
        with pytest.raises(AlreadyPendingCallError, match="stream"):
            envs.stream(T)
        assert next(stream).num_steps == T
    assert_works(envs)


CALLS = {
    "reset": lambda envs: envs.reset(seed=0),
    "step": lambda envs: envs.step(np.zeros(NUM_ENVS, np.int64)),
    "step with a policy": lambda envs: envs.step(numpy_policy(envs)),
    "rollout": lambda envs: envs.rollout(numpy_policy(envs), 2),
    "evaluate": lambda envs: envs.evaluate(numpy_policy(envs), 2),
    "call": lambda envs: envs.call("pid"),
    "async_reset": lambda envs: envs.async_reset(),
}


@pytest.mark.parametrize("call", CALLS)
def test_other_calls_while_a_stream_is_open_are_errors(envs, call):
    lives = Lives(Count, NUM_ENVS, SEED)
    with closing(envs.stream(T)) as stream:
        lives.assert_lived(next(stream))
        with pytest.raises(AlreadyPendingCallError, match="`stream` to complete: leave the loop"):
            CALLS[call](envs)
        for fragment in islice(stream, 4):
            lives.assert_lived(fragment)


@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_a_stream_that_was_never_begun_does_not_block_other_calls(own_envs, end):
    stream = own_envs.stream(T)
    if end == "closed":
        stream.close()
    del stream
    assert_works(own_envs)


@pytest.mark.parametrize("arguments", [(0,), (-1,), (T, 0)])
def test_arguments_below_one_are_refused(envs, arguments):
    with pytest.raises(ValueError, match="must be at least 1"):
        envs.stream(*arguments)
    assert_works(envs)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_closing_the_envs_ends_an_open_stream(transport):
    envs = cluster_env(transport, Count, 2, 2)
    envs.publish(numpy_policy(envs))
    stream = envs.stream(T)
    next(stream)
    envs.close()
    with pytest.raises(ClosedEnvironmentError):
        next(stream)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stream_that_is_dropped_after_close_ends_quietly(transport):
    envs = cluster_env(transport, Count, 2, 2)
    envs.publish(numpy_policy(envs))
    stream = envs.stream(T)
    next(stream)
    envs.close()
    stream.close()


def fused(weights, observations):
    """Fails in the middle of an episode, while the fuse is lit."""
    if weights["fuse"] and (observations[:, 1] == 3).any():
        raise ArithmeticError("the fuse has blown")
    return Categorical(np.zeros((len(observations), 2)))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_after_a_failure_amid_a_fragment_rows_are_real_again(transport):
    with cluster_env(transport, Count, NUM_ENVS, 2) as envs:
        policy = NumpyPolicy(fused, {"fuse": np.array(True)})
        envs.publish(policy)
        with pytest.raises(ArithmeticError, match="blown"):
            next(envs.stream(T))
        policy.weights()["fuse"][...] = False
        rollout = envs.rollout(policy, 20)
    assert np.array_equal(rollout.next_observations[..., 1], rollout.observations[:-1, :, 1] + 1)
    assert (rollout.episodes.lengths == 5).all()
    assert (rollout.episodes.returns == 15).all()
