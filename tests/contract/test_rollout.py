"""Every row of a rollout is a real transition: single envs, given the recorded actions, agree."""

from functools import partial
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv.backends.vector import VectorBackend
from clusterenv.policies.numpy import NumpyPolicy
from tests import inside
from tests.contract.policies import change, nested_policy, numpy_policy, overwriting, value_of
from tests.contract.replay import Lives, arrays_of, episodes_of, leaves, pick
from tests.contract.transports import IN_TURNS, TRANSPORTS, and_on_four_hosts, cluster_env
from tests.environments.catalogue import ENVS
from tests.environments.counting import Count
from tests.equality import assert_same

NUM_ENVS = 5
SEED = 70
NUM_STEPS = (9, 1, 23, 16)
# Which of (terminated, truncated) episodes each env has within these steps.
ENDS = dict.fromkeys(ENVS, (True, True)) | {
    "CartPole": (True, False),
    "Pendulum": (False, True),
}


def cases():
    """Every env twice; every number of workers over every transport, with rotating envs."""
    ways = list(product((1, 2, 3), IN_TURNS))
    for number, env in enumerate(ENVS):
        for turn in range(2):
            yield env, *ways[(5 * turn + number) % len(ways)]


@pytest.mark.parametrize(("env", "workers", "transport"), and_on_four_hosts(cases()))
def test_every_row_is_what_a_single_env_does_with_the_recorded_action(env, workers, transport):
    lives = Lives(ENVS[env], NUM_ENVS, SEED)
    with cluster_env(transport, ENVS[env], NUM_ENVS, workers) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=SEED)
        rollouts = [envs.rollout(policy, num_steps) for num_steps in NUM_STEPS]
    for rollout, num_steps in zip(rollouts, NUM_STEPS, strict=True):
        assert rollout.rewards.shape == (num_steps, NUM_ENVS)
        assert rollout.slots.tolist() == list(range(NUM_ENVS))
        lives.assert_lived(rollout)
    assert tuple(count > 0 for count in lives.ends) == ENDS[env]
    expected = lives.episodes()
    assert [row[::2] for row in episodes_of(rollouts)] == [row[::2] for row in expected]
    assert [row[1] for row in episodes_of(rollouts)] == pytest.approx([row[1] for row in expected])


@pytest.fixture(scope="module", params=TRANSPORTS)
def counts(request):
    """Five short-lived envs on two workers, started once for the tests below."""
    with cluster_env(request.param, Count, NUM_ENVS, 2) as envs:
        yield envs


@pytest.fixture
def rollout(counts):
    counts.reset(seed=SEED)
    return counts.rollout(numpy_policy(counts), 17)


def test_arrays_have_the_shapes_and_dtypes_that_are_promised(rollout):
    steps, ends = (17, NUM_ENVS), len(rollout.finals.steps)
    assert ends == 15
    expected = {
        "versions": (rollout.versions, steps, np.integer),
        "observations": (rollout.observations, (18, NUM_ENVS, 3), np.float64),
        "actions": (rollout.actions, steps, np.int64),
        "rewards": (rollout.rewards, steps, np.float64),
        "terminated": (rollout.terminated, steps, np.bool_),
        "truncated": (rollout.truncated, steps, np.bool_),
        "log_prob": (rollout.outputs["log_prob"], steps, np.floating),
        "value": (rollout.outputs["value"], steps, np.floating),
        "last_values": (rollout.last_values, (NUM_ENVS,), np.floating),
        "final values": (rollout.finals.values, (ends,), np.floating),
        "returns": (rollout.episodes.returns, (ends,), np.float64),
        "lengths": (rollout.episodes.lengths, (ends,), np.int64),
    }
    for name, (array, shape, kind) in expected.items():
        assert array.shape == shape, name
        assert np.issubdtype(array.dtype, kind), name
    assert rollout.num_steps == 17
    assert rollout.state is None


@pytest.mark.always_on_four_hosts
def test_arrays_are_writable_and_the_callers_own(counts):
    lives = Lives(Count, NUM_ENVS, SEED)
    policy = numpy_policy(counts)
    counts.reset(seed=SEED)
    for _ in range(3):
        rollout = counts.rollout(policy, 7)
        lives.assert_lived(rollout)
        named = arrays_of(rollout)
        for name, array in named.items():
            assert array.flags.writeable, name
            array[...] = 0
        each = {id(array): array for array in named.values() if array.size}.values()
        assert not any(np.shares_memory(a, b) for a in each for b in each if a is not b)


def test_arrays_become_tensors_without_a_copy(rollout):
    for name in ("observations", "actions", "rewards", "terminated", "versions"):
        array = getattr(rollout, name)
        tensor = torch.from_numpy(array)
        array[0, 0] = 1
        assert tensor[0, 0].all(), name


def test_every_step_says_which_version_acted(counts):
    counts.reset(seed=SEED)
    first = counts.rollout(numpy_policy(counts, seed=1), 3)
    second = counts.rollout(numpy_policy(counts, seed=2), 3)
    assert np.unique(first.versions).size == 1
    assert (second.versions == first.versions + 1).all()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_no_autoreset_mode_leaves_filler_rows(mode):
    lives = Lives(Count, 3, SEED)
    with cluster_env("in-process", Count, 3, 2, autoreset_mode=mode) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=SEED)
        for _ in range(2):
            rollout = envs.rollout(policy, 14)
            lives.assert_lived(rollout)
            assert rollout.rewards.all()
    assert lives.ends == (3, 12)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_episodes_are_in_the_order_in_which_they_ended_on_any_number_of_workers(transport):
    played = []
    for workers in (1, 3):
        with cluster_env(transport, ENVS["short CartPole"], 6, workers) as envs:
            envs.reset(seed=SEED)
            rollout = envs.rollout(numpy_policy(envs), 40)
        finals, episodes = rollout.finals, rollout.episodes
        ends = list(zip(finals.steps, finals.columns, strict=True))
        assert len(ends) > 12
        assert ends == sorted(ends)
        assert np.array_equal(rollout.slots[finals.columns], episodes.slots)
        played.append([ends, episodes.returns.tolist(), episodes.lengths.tolist()])
    assert played[0] == played[1]


def test_next_observations_hold_the_final_one_where_an_episode_ended(rollout):
    ended = rollout.terminated | rollout.truncated
    ages = rollout.next_observations[..., 1]
    assert (ages[ended] == 5).all()
    assert (rollout.observations[1:][ended][:, 1] == 0).all()
    assert np.array_equal(ages[~ended], rollout.observations[1:][~ended][:, 1])
    assert (ages == rollout.observations[:-1, :, 1] + 1).all()


def test_next_values_are_those_of_the_next_observations_and_0_after_termination(counts, rollout):
    weights = numpy_policy(counts).weights()
    expected = np.array([value_of(weights, rows) for rows in rollout.next_observations])
    expected[rollout.terminated] = 0.0
    assert np.allclose(rollout.next_values, expected)
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    assert (rollout.next_values[rollout.truncated] != 0).all()


def test_next_values_without_a_value_function_say_what_to_do():
    with cluster_env("in-process", ENVS["dict actions"], 2, 1) as envs:
        policy = numpy_policy(envs)
        policy.act = partial(_act_without_outputs, policy.act)
        rollout = envs.rollout(policy, 6)
        assert rollout.outputs == {}
        assert rollout.last_values is None
        with pytest.raises(ValueError, match="with_values"):
            _ = rollout.next_values


def _act_without_outputs(act, observations, state, rng):
    acted = act(observations, state, rng)
    acted.outputs.clear()
    return acted


def test_flatten_keeps_rows_together_and_does_not_copy(rollout):
    flat = rollout.flatten({"o": rollout.observations[:-1], "a": (rollout.actions,)})
    assert flat["o"].shape == (17 * NUM_ENVS, 3)
    assert np.shares_memory(flat["o"], rollout.observations)
    assert np.shares_memory(flat["a"][0], rollout.actions)
    rewards = rollout.flatten(rollout.rewards)
    for t, slot in ((0, 3), (11, 0), (16, 4)):
        assert rewards[t * NUM_ENVS + slot] == rollout.rewards[t, slot]
        assert np.array_equal(flat["o"][t * NUM_ENVS + slot], rollout.observations[t, slot])


@pytest.mark.parametrize("size", [1, 10, 85, 1000])
def test_minibatches_take_each_row_once_in_random_order(rollout, size):
    batches = list(rollout.minibatches(size, np.random.default_rng(0)))
    assert [len(batch) for batch in batches[:-1]] == [min(size, 85)] * (len(batches) - 1)
    order = np.concatenate(batches).tolist()
    assert sorted(order) == list(range(85))
    assert order != list(range(85))


def test_a_policy_that_writes_to_its_observations_does_not_change_the_record(counts):
    lives = Lives(Count, NUM_ENVS, SEED)
    policy = NumpyPolicy(overwriting, numpy_policy(counts).weights())
    counts.reset(seed=SEED)
    for num_steps in (6, 9):
        lives.assert_lived(counts.rollout(policy, num_steps))


def test_nested_weights_act_and_change_as_flat_ones_do(counts):
    rollouts = []
    for make in (numpy_policy, nested_policy):
        policy = make(counts)
        counts.reset(seed=SEED)
        for seed in (1, 2):
            change(policy, seed)
            rollouts.append(counts.rollout(policy, 9))
    for flat, nested in zip(rollouts[:2], rollouts[2:], strict=True):
        assert_same(nested.actions, flat.actions)
        assert_same(nested.outputs, flat.outputs)


@pytest.mark.parametrize("kind", ["dict actions", "tuple actions"])
def test_composite_actions_keep_the_structure_of_their_space(kind):
    with cluster_env("in-process", ENVS[kind], 3, 2) as envs:
        rollout = envs.rollout(numpy_policy(envs), 4)
        space = envs.single_action_space
        assert [leaf.shape for leaf in leaves(rollout.actions)] == [(4, 3), (4, 3, 2)]
        for t, slot in np.ndindex(4, 3):
            assert space.contains(pick(rollout.actions, t, slot))


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("transport", "name"),
    and_on_four_hosts(zip(IN_TURNS, ("short CartPole", "dict observations", "dict actions"))),
)
def test_every_row_of_a_ready_vector_env_is_real_however_it_resets(transport, name, mode):
    backend = VectorBackend(lambda n: SyncVectorEnv([ENVS[name]] * n, autoreset_mode=mode))
    lives = Lives(ENVS[name], NUM_ENVS, SEED)
    with cluster_env(transport, backend, NUM_ENVS, 2, autoreset_mode=mode) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=SEED)
        for num_steps in (13, 20):
            lives.assert_lived(envs.rollout(policy, num_steps))
    assert all(lives.ends)


class Chatty(gym.Wrapper):
    """An env whose infos have names that others use for the end of an episode."""

    def step(self, action):
        *result, info = self.env.step(action)
        return *result, {**info, "final_obs": np.zeros(4), "final_info": {}}


def chatty():
    return Chatty(gym.make("CartPole-v1"))


def test_an_env_with_an_info_called_final_obs_has_no_more_ends_than_others():
    with cluster_env("in-process", chatty, 2, 1) as envs:
        envs.reset(seed=1)
        rollout = envs.rollout(numpy_policy(envs), 40)
    ended = rollout.terminated | rollout.truncated
    assert 0 < len(rollout.finals.steps) == ended.sum() < ended.size


def test_values_may_have_an_axis_too_many():
    with cluster_env("in-process", "CartPole-v1", 2, 1) as envs:
        policy = numpy_policy(envs)
        policy._value = lambda weights, observations: observations[:, :1]
        rollout = envs.rollout(policy, 5)
        assert envs.version == 1
    np.testing.assert_array_equal(rollout.outputs["value"], rollout.observations[:-1, :, 0])


@pytest.mark.parametrize("transport", ["shared_memory", "in-process"])
def test_rollouts_that_were_interrupted_use_up_no_memory(transport, monkeypatch):
    with cluster_env(transport, Count, 6, 2) as envs:
        policy = numpy_policy(envs)
        for _ in range(3):
            envs.rollout(policy, 100)
        before = inside.frame_bytes(envs)
        for _ in range(20):
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr("clusterenv.rollout.join_arrays", interrupt)
                envs.rollout(policy, 100)
        envs.rollout(policy, 100)
        assert inside.frame_bytes(envs) == before


def interrupt(*_):
    raise KeyboardInterrupt
