"""The same seed and policy give the same numbers, whoever computes them."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.contract.policies import numpy_policy
from tests.contract.replay import assert_same_fragment, leaves, pick
from tests.contract.transports import TRANSPORTS, and_on_four_hosts, cluster_env
from tests.environments.catalogue import ENVS
from tests.environments.counting import Count

NUM_ENVS = 5
SEED = 123
NAMES = ["short CartPole", "Pendulum", "dict observations", "several discrete actions"]
LAYOUTS = and_on_four_hosts([("shared_memory", 2), ("tcp", 3), ("in-process", 1)])


def collect(envs, seed=SEED, steps=(30, 11)):
    policy = numpy_policy(envs)
    envs.reset(seed=seed)
    return [envs.rollout(policy, num_steps) for num_steps in steps]


def without_versions(rollout):
    rollout.versions[...] = 0
    return rollout


@pytest.fixture(scope="module", params=NAMES)
def reference(request):
    """The env's name, and its rollouts on one worker in this process."""
    with cluster_env("in-process", ENVS[request.param], NUM_ENVS, 1) as envs:
        return request.param, collect(envs)


@pytest.mark.parametrize(("transport", "workers"), LAYOUTS)
def test_rollouts_do_not_depend_on_transport_or_number_of_workers(reference, transport, workers):
    name, expected = reference
    with cluster_env(transport, ENVS[name], NUM_ENVS, workers) as envs:
        actual = collect(envs)
    for rollout, other in zip(actual, expected, strict=True):
        order = np.lexsort((rollout.finals.steps, rollout.finals.columns))
        other_order = np.lexsort((other.finals.steps, other.finals.columns))
        for array, like in zip(_columns(rollout), _columns(other), strict=True):
            assert np.array_equal(array, like)
        for array, like in zip(_finals(rollout), _finals(other), strict=True):
            assert np.array_equal(array[order], like[other_order])


def _columns(rollout):
    flags = rollout.rewards, rollout.terminated, rollout.truncated, rollout.last_values
    outputs = [rollout.outputs[name] for name in sorted(rollout.outputs)]
    return [*leaves(rollout.observations), *leaves(rollout.actions), *flags, *outputs]


def _finals(rollout):
    finals, episodes = rollout.finals, rollout.episodes
    arrays = finals.steps, finals.columns, finals.values, episodes.slots, episodes.lengths
    return [*leaves(finals.observations), *arrays, episodes.returns]


@pytest.fixture(scope="module", params=TRANSPORTS)
def counts(request):
    with cluster_env(request.param, Count, NUM_ENVS, 2) as envs:
        yield envs


def test_the_same_seed_gives_the_same_rollouts_again(counts):
    first, second = collect(counts), collect(counts)
    for rollout, again in zip(first, second, strict=True):
        # Another policy object is another version, even with the same weights.
        assert_same_fragment(without_versions(again), without_versions(rollout))


def test_a_run_repeats_bit_by_bit():
    runs = []
    for _ in range(2):
        with cluster_env("shared_memory", ENVS["short CartPole"], NUM_ENVS, 2) as envs:
            runs.append(collect(envs))
    for rollout, again in zip(*runs, strict=True):
        assert_same_fragment(again, rollout)


def test_another_seed_gives_other_observations_and_actions(counts):
    one, other = collect(counts, seed=1)[0], collect(counts, seed=2)[0]
    assert (one.observations[0] != other.observations[0]).any(axis=1).all()
    assert (one.actions != other.actions).any()


def test_slots_with_the_same_observations_do_not_act_alike():
    with cluster_env("in-process", Count, 8, 2) as envs:
        policy = numpy_policy(envs)
        for array in policy.weights().values():
            array[...] = 0.0
        envs.reset(seed=SEED)
        columns = envs.rollout(policy, 200).actions.T
    agree = np.mean(columns[:, None] == columns[None], axis=-1)
    assert np.all(np.abs(agree - 0.5)[~np.eye(8, dtype=bool)] < 0.2)


def test_one_long_rollout_acts_as_many_short_ones(counts):
    long = collect(counts, steps=(150,))[0]
    short = collect(counts, steps=(1, 63, 64, 22))
    assert np.array_equal(long.actions, np.concatenate([rollout.actions for rollout in short]))
    assert np.array_equal(long.rewards, np.concatenate([rollout.rewards for rollout in short]))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_steps_with_a_policy_equal_the_first_steps_of_a_rollout(transport):
    mode = AutoresetMode.SAME_STEP
    with cluster_env(transport, ENVS["short CartPole"], NUM_ENVS, 2, autoreset_mode=mode) as envs:
        rollout = collect(envs, steps=(40,))[0]
        policy = numpy_policy(envs)
        observations, _ = envs.reset(seed=SEED)
        for t in range(40):
            assert np.array_equal(observations, rollout.observations[t])
            observations, rewards, terminated, truncated, infos = envs.step(policy)
            assert np.array_equal(infos["action"], rollout.actions[t])
            assert np.array_equal(infos["log_prob"], rollout.outputs["log_prob"][t])
            assert np.array_equal(infos["value"], rollout.outputs["value"][t])
            assert np.array_equal(rewards, rollout.rewards[t])
            assert np.array_equal(terminated, rollout.terminated[t])
            assert np.array_equal(truncated, rollout.truncated[t])
    assert rollout.terminated.any()
    assert rollout.truncated.any()


@pytest.mark.parametrize("kind", ["dict actions", "tuple actions"])
def test_steps_with_a_policy_give_composite_actions_in_their_structure(kind):
    with cluster_env("in-process", ENVS[kind], 3, 2) as envs:
        rollout = collect(envs, steps=(4,))[0]
        policy = numpy_policy(envs)
        envs.reset(seed=SEED)
        for t in range(4):
            action = envs.step(policy)[-1]["action"]
            assert type(action) is type(rollout.actions)
            for array, recorded in zip(
                leaves(action), leaves(pick(rollout.actions, t)), strict=True
            ):
                assert np.array_equal(array, recorded)
