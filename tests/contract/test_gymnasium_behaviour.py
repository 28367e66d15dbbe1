"""ClusterEnv behaves as users of `gymnasium.vector.AsyncVectorEnv` expect."""

import re
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeAwareObservation

from clusterenv import ClusterEnv
from tests.contract.conftest import NUM_ENVS
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.contract.twins import Twins
from tests.environments.faults import FailingEnv
from tests.environments.sampling import SpaceEnv
from tests.equality import assert_same


def test_it_is_a_vector_env(envs):
    assert isinstance(envs, VectorEnv)
    assert envs.unwrapped is envs
    assert envs.num_envs == NUM_ENVS
    assert envs.closed is False


def test_it_describes_its_envs(envs):
    assert envs.spec.id == "CartPole-v1"
    assert repr(envs) == "ClusterEnv(CartPole-v1, num_envs=5)"
    assert envs.render_mode is None
    assert envs.metadata["render_fps"] == gym.make("CartPole-v1").metadata["render_fps"]
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


def test_the_autoreset_mode_may_be_text_and_stays_out_of_the_env_class():
    with ClusterEnv("CartPole-v1", 1, launcher="in-process", autoreset_mode="SameStep") as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert "autoreset_mode" not in gym.make("CartPole-v1").metadata


# Arguments.


@pytest.mark.parametrize("convert", [list, tuple, np.int32, lambda actions: actions.tolist()])
def test_actions_may_be_any_sequence(envs, oracle, convert):
    envs.reset(seed=4)
    oracle.reset(seed=4)
    actions = oracle.action_space.sample()
    assert_same(envs.step(convert(actions)), oracle.step(convert(actions)))


@pytest.mark.parametrize(
    "actions", [0, np.int64(1), None, [0] * (NUM_ENVS - 1), [0] * (NUM_ENVS + 1)], ids=repr
)
def test_a_wrong_number_of_actions_is_the_same_kind_of_error(envs, oracle, actions):
    oracle.reset(seed=4)
    with pytest.raises(Exception) as expected:
        oracle.step(actions)
    with pytest.raises(expected.type, match=r"actions of shape|expected \(5,\)"):
        envs.step(actions)


ARRAY_ACTIONS = {
    "float32": (Box(-1.0, 1.0, (2,), np.float32), [np.float32, np.float64, np.float16, np.int64]),
    "discrete": (Discrete(3), [np.int64, np.int32, np.uint8, np.bool_]),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("space", "dtypes"), ARRAY_ACTIONS.values(), ids=ARRAY_ACTIONS)
def test_actions_reach_the_envs_in_the_dtype_they_were_given(transport, space, dtypes):
    make = partial(SpaceEnv, Discrete(2), action_space=space)
    oracle = SyncVectorEnv([make] * 3)
    with cluster_env(transport, make, 3, 2) as envs:
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        for dtype in dtypes:
            actions = oracle.action_space.sample().astype(dtype)
            assert_same(envs.step(actions), oracle.step(actions))


def test_a_seed_list_of_the_wrong_length_is_refused(envs):
    message = "the length must match num_envs=5 but got length=2"
    with pytest.raises(ValueError, match=message):
        envs.reset(seed=[1, 2])


WRONG_MASKS = {
    "list": [True] * NUM_ENVS,
    "shape": np.ones(NUM_ENVS + 1, bool),
    "dtype": np.ones(NUM_ENVS, int),
    "empty": np.zeros(NUM_ENVS, bool),
}


@pytest.mark.parametrize("mask", WRONG_MASKS.values(), ids=WRONG_MASKS)
def test_a_wrong_reset_mask_is_refused_as_gymnasium_does(envs, oracle, mask):
    oracle.reset()
    with pytest.raises((TypeError, ValueError)) as expected:
        oracle.reset(options={"reset_mask": mask})
    with pytest.raises(type(expected.value), match=re.escape(str(expected.value))):
        envs.reset(options={"reset_mask": mask})
    envs.reset(options={"reset_mask": np.ones(NUM_ENVS, bool)})


# Attributes and methods of the envs.


def test_seeds_and_generators_of_the_envs_are_visible(envs, oracle):
    envs.reset(seed=9)
    oracle.reset(seed=9)
    assert envs.np_random_seed == (9, 10, 11, 12, 13)
    states = [generator.bit_generator.state for generator in envs.np_random]
    assert states == [generator.bit_generator.state for generator in oracle.np_random]


def test_attributes_are_read_and_written_by_slot(envs):
    envs.set_attr("gravity", [1.0, 2.0, 3.0, 4.0, 5.0])
    assert envs.get_attr("gravity") == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert envs.call("gravity") == (1.0, 2.0, 3.0, 4.0, 5.0)
    envs.set_attr("gravity", 9.8)
    assert envs.get_attr("gravity") == (9.8,) * NUM_ENVS


def test_a_new_attribute_may_be_any_value(envs):
    value = {"depth": [1, (2.0, None)], "array": np.arange(3)}
    envs.set_attr("note", value)
    assert_same(envs.get_attr("note"), (value,) * NUM_ENVS)


@pytest.mark.parametrize("values", [[1.0], (1.0, 2.0), [1.0] * 6])
def test_a_wrong_number_of_values_is_refused(envs, oracle, values):
    with pytest.raises(ValueError) as expected:
        oracle.set_attr("gravity", values)
    with pytest.raises(ValueError, match=re.escape(str(expected.value))):
        envs.set_attr("gravity", values)


def test_methods_take_arguments(envs):
    assert envs.call("get_wrapper_attr", "x_threshold") == (2.4,) * NUM_ENVS
    assert envs.call("set_wrapper_attr", "x_threshold", 2.4, force=False) == (True,) * NUM_ENVS


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_verbs_of_the_vector_env_cannot_be_called_by_name(envs, name):
    message = f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
    with pytest.raises(ValueError, match=re.escape(message)):
        envs.call(name)


def test_a_missing_attribute_is_an_attribute_error(envs):
    with pytest.raises(AttributeError, match="no_such_attribute"):
        envs.get_attr("no_such_attribute")


# Constructors.


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_list_of_callables_gives_each_slot_its_own_env(transport):
    makers = [lambda g=g: TimeAwareObservation(gym.make("Pendulum-v1", g=g)) for g in range(1, 6)]
    with cluster_env(transport, makers, num_workers=2) as cluster:
        assert repr(cluster) == "ClusterEnv(num_envs=5)"
        assert cluster.spec is None
        assert cluster.get_attr("g") == (1, 2, 3, 4, 5)
        twins = Twins(cluster, SyncVectorEnv(makers))
        twins.reset(seed=1)
        twins.run(10)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_keywords_and_wrappers_reach_the_envs_as_in_make_vec(transport):
    kwargs = {"sutton_barto_reward": True, "wrappers": (TimeAwareObservation,)}
    oracle = gym.make_vec("CartPole-v1", 3, "sync", **kwargs)
    with Twins(cluster_env(transport, "CartPole-v1", 3, 2, **kwargs), oracle) as twins:
        twins.assert_same_spaces()
        twins.reset(seed=1)
        twins.run(40)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_frames_are_rendered_by_slot(transport):
    make = partial(gym.make, "CartPole-v1", render_mode="rgb_array")
    oracle = SyncVectorEnv([make] * 3)
    oracle.reset(seed=1)
    with cluster_env(transport, "CartPole-v1", 3, 2, render_mode="rgb_array") as envs:
        envs.reset(seed=1)
        assert envs.render_mode == "rgb_array"
        assert_same(envs.render(), oracle.render())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_error_of_one_env_keeps_its_type_and_message(transport):
    with cluster_env(transport, FailingEnv, 3, 2) as envs:
        with pytest.raises(ValueError, match="no luck with seed 13"):
            envs.reset(seed=[1, 2, 13])
        envs.reset(seed=[1, 2, 3])
        with pytest.raises(ValueError, match="action 1 is broken"):
            envs.step(np.array([0, 1, 0]))
