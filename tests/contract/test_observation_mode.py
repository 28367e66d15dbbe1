"""`observation_mode`, `copy`, and envs whose spaces differ, as in Gymnasium."""

import re
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import batch_differing_spaces

from clusterenv import ClusterEnv
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.contract.twins import Twins
from tests.environments.counting import CounterEnv
from tests.environments.faults import MisfitEnv
from tests.environments.sampling import SpaceEnv
from tests.environments.spaces import ALL_SPACES

DIFFERENT_BOUNDS = [Box(0.0, high, (4,)) for high in (1.0, 2.0, 3.0)]
DIFFERENT_SHAPES = [Box(0.0, 1.0, (size,)) for size in (1, 2, 3)]
DIFFERENT_KINDS = [Box(0.0, 1.0, (3,)), Discrete(5), Dict(a=Discrete(2))]
CUSTOM = (batch_differing_spaces(DIFFERENT_BOUNDS), DIFFERENT_BOUNDS[0])


def makers(spaces):
    return [partial(SpaceEnv, space, action_space=Discrete(2)) for space in spaces]


def start(spaces, observation_mode):
    return ClusterEnv(
        makers(spaces), num_workers=2, launcher="in-process", observation_mode=observation_mode
    )


def test_an_unknown_mode_is_refused():
    message = (
        "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch "
        "observation space, actual got invalid"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        start(DIFFERENT_BOUNDS, "invalid")


def test_a_custom_mode_must_be_made_of_spaces():
    message = "Expected both elements of observation_mode to be Spaces"
    with pytest.raises(TypeError, match=message):
        start(DIFFERENT_BOUNDS, (1, 2))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mode", ["different", CUSTOM], ids=["different", "custom"])
def test_spaces_may_differ_in_their_bounds_where_the_mode_allows(mode, transport):
    oracle = SyncVectorEnv(makers(DIFFERENT_BOUNDS), observation_mode=mode)
    cluster = cluster_env(transport, makers(DIFFERENT_BOUNDS), num_workers=2, observation_mode=mode)
    with Twins(cluster, oracle) as twins:
        twins.assert_same_spaces()
        twins.reset(seed=1)
        twins.run(30)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_spaces_must_be_equal_in_mode_same(transport):
    message = (
        r"observation_mode='same'\) however .*the sub-environments observation spaces are not "
        r"equivalent\. .*If this is intentional, use `observation_mode='different'` instead\."
    )
    with pytest.raises(RuntimeError, match=message):
        cluster_env(transport, makers(DIFFERENT_BOUNDS), num_workers=2)


@pytest.mark.parametrize("spaces", [DIFFERENT_SHAPES, DIFFERENT_KINDS], ids=["shape", "kind"])
@pytest.mark.parametrize("mode", ["same", "different", CUSTOM], ids=["same", "different", "custom"])
def test_spaces_that_cannot_be_batched_are_refused_as_gymnasium_does(mode, spaces):
    with pytest.raises((RuntimeError, TypeError, ValueError)) as expected:
        SyncVectorEnv(makers(spaces), observation_mode=mode)
    with pytest.raises(type(expected.value)):
        start(spaces, mode)


def test_shapes_that_differ_in_a_custom_mode_are_named():
    message = "the sub-environment's observation spaces do not share a common shape and dtype"
    with pytest.raises(RuntimeError, match=message):
        start(DIFFERENT_SHAPES, CUSTOM)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_action_spaces_must_be_equal(transport):
    envs = [partial(SpaceEnv, Discrete(3), action_space=Discrete(n)) for n in (2, 2, 4)]
    message = (
        "Some environments have an action space different from `Discrete(2)`. In order to batch "
        "actions, the action spaces from all environments must be equal."
    )
    with pytest.raises(RuntimeError, match=re.escape(message)):
        cluster_env(transport, envs, num_workers=2)


def test_custom_spaces_work_with_shared_memory():
    make = partial(SpaceEnv, ALL_SPACES["custom"])
    cluster = ClusterEnv(make, num_envs=3, num_workers=2, shared_memory=True)
    with Twins(cluster, SyncVectorEnv([make] * 3)) as twins:
        twins.assert_same_spaces()
        twins.reset(seed=1)
        twins.run(30)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("sizes", [(3, 2), (2, 4), (1, 1)])
def test_an_observation_of_another_shape_than_promised_is_refused(sizes, transport):
    envs = [partial(MisfitEnv, size) for size in sizes]
    with cluster_env(transport, envs, num_workers=1) as cluster, pytest.raises(ValueError):
        cluster.reset()


def counters(transport, **kwargs):
    return cluster_env(transport, partial(CounterEnv, reuse=False), 5, 2, **kwargs)


def steps(envs, count):
    return [envs.step(np.zeros(5, np.int64)) for _ in range(count)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_copied_observations_belong_to_the_user(transport):
    with counters(transport, copy=True) as envs:
        observations, _ = envs.reset(seed=1)
        kept = observations.copy()
        (stepped, *_), *_ = steps(envs, 2)
        np.testing.assert_array_equal(observations, kept)
        np.testing.assert_array_equal(stepped, kept + 1)
        stepped[:] = -1
        (again, *_), *_ = steps(envs, 1)
        assert np.all(again >= 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_copied_observations_that_are_no_arrays_belong_to_the_user_too(transport):
    make = partial(SpaceEnv, ALL_SPACES["sequence-stacked"])
    with cluster_env(transport, make, 3, 2) as envs:
        (_, path, _), _ = envs.reset(seed=1)
        kept = path.copy()
        path[:] = -9
        (_, again, _), _ = envs.reset(options={"reset_mask": np.array([True, False, False])})
        np.testing.assert_array_equal(again, kept)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_uncopied_observations_are_overwritten_by_the_next_step(transport):
    with counters(transport, copy=False) as envs:
        observations, _ = envs.reset(seed=1)
        before = observations.copy()
        (stepped, *_), *_ = steps(envs, 1)
        assert np.shares_memory(stepped, observations)
        np.testing.assert_array_equal(observations, before + 1)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_rewards_flags_and_infos_always_belong_to_the_user(transport, copy):
    with counters(transport, copy=copy) as envs:
        envs.reset(seed=1)
        first, second, third, _ = steps(envs, 4)
    ends = [
        (terminated.all(), truncated.any()) for _, _, terminated, truncated, _ in (first, third)
    ]
    assert ends == [(False, False), (True, False)]
    np.testing.assert_array_equal(first[1], np.ones(5))
    np.testing.assert_array_equal(first[4]["buffer"] + 1, second[4]["buffer"])
    for array in (*first[1:4], first[4]["buffer"]):
        assert array.flags.writeable
