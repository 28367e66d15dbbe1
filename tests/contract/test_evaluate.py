"""Whole episodes in envs of their own: the right numbers, and training does not notice."""

import time
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from gymnasium import RewardWrapper
from gymnasium.vector import SyncVectorEnv

from clusterenv import EveryNth, EveryVersion
from clusterenv.backends.vector import VectorBackend
from clusterenv.policies.numpy import NumpyPolicy
from tests.contract.policies import change, distribution_of, numpy_policy
from tests.contract.replay import Lives, assert_same_fragment
from tests.contract.transports import IN_TURNS, TRANSPORTS, and_on_four_hosts, cluster_env
from tests.environments.catalogue import ENVS
from tests.integration.polling import within

NUM_ENVS = 5
SEED = 900
NAMES = ["short CartPole", "Pendulum", "dict observations", "several discrete actions"]


def play(make, weights, seed, episodes):
    """(return, length) of so many episodes of one env, played by hand with the likeliest action."""
    env = make()
    observation, _ = env.reset(seed=seed)
    played = []
    while len(played) < episodes:
        rewards, ended = [], False
        while not ended:
            distribution = distribution_of(env.action_space, weights, batch_of_one(observation))
            observation, reward, terminated, truncated, _ = env.step(distribution.mode()[0])
            rewards.append(float(reward))
            ended = terminated or truncated
        played.append((sum(rewards), len(rewards)))
        observation, _ = env.reset()
    return played


def batch_of_one(observation):
    if isinstance(observation, dict):
        return {key: batch_of_one(value) for key, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(batch_of_one(value) for value in observation)
    return np.asarray(observation)[None]


def expected_of(make, weights, seed, episodes):
    """By slot, each with its share."""
    rows = []
    for slot in range(NUM_ENVS):
        share = sum(episode * NUM_ENVS // episodes == slot for episode in range(episodes))
        rows += [(slot, *episode) for episode in play(make, weights, seed + slot, share)]
    return rows


def rows_of(episodes):
    return list(zip(episodes.slots, episodes.returns, episodes.lengths, strict=True))


@pytest.fixture(scope="module", params=TRANSPORTS)
def live(request):
    """Short CartPoles on two workers."""
    with cluster_env(request.param, ENVS["short CartPole"], NUM_ENVS, 2) as envs:
        yield envs


@pytest.fixture
def envs(live):
    """`live` in the middle of training."""
    live.reset(seed=SEED)
    live.rollout(numpy_policy(live), 3)
    return live


def cases():
    for number, name in enumerate(NAMES):
        yield name, IN_TURNS[number % 3], number % 3 + 1


@pytest.mark.parametrize(("name", "transport", "workers"), and_on_four_hosts(cases()))
def test_returns_and_lengths_are_those_of_single_envs(name, transport, workers):
    with cluster_env(transport, ENVS[name], NUM_ENVS, workers) as envs:
        # A policy under which CartPole falls, after 8 to 10 steps.
        policy = numpy_policy(envs, seed=3)
        envs.rollout(policy, 1)
        episodes = envs.evaluate(policy, 13, seed=3)
    expected = expected_of(ENVS[name], policy.weights(), 3, 13)
    assert [row[::2] for row in rows_of(episodes)] == [row[::2] for row in expected]
    assert episodes.returns == pytest.approx([row[1] for row in expected])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_evaluation_may_come_before_anything_else(transport):
    make = ENVS["several discrete actions"]
    with cluster_env(transport, make, NUM_ENVS, 2) as envs:
        policy = numpy_policy(envs)
        episodes = within(20.0, partial(envs.evaluate, policy, 7))
    assert rows_of(episodes) == expected_of(make, policy.weights(), 0, 7)


@pytest.mark.parametrize("number", [1, 4, 5, 6, 23])
def test_there_are_exactly_as_many_episodes_as_asked_for(envs, number):
    episodes = envs.evaluate(numpy_policy(envs), number)
    assert episodes.slots.shape == episodes.returns.shape == episodes.lengths.shape == (number,)
    shares = [np.count_nonzero(episodes.slots == slot) for slot in range(NUM_ENVS)]
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("number", [0, -3])
def test_fewer_than_one_episode_is_an_error(envs, number):
    with pytest.raises(ValueError, match=f"episodes={number} must be at least 1"):
        envs.evaluate(numpy_policy(envs), number)


@pytest.mark.always_on_four_hosts
def test_training_goes_on_as_if_nothing_had_happened(live):
    rollouts = []
    for evaluates in (False, True):
        policy = numpy_policy(live)
        live.reset(seed=SEED)
        run = []
        for seed in range(4):
            change(policy, seed)
            run.append(live.rollout(policy, 11))
            if evaluates:
                live.evaluate(policy, 6, deterministic=bool(seed % 2))
        rollouts.append(run)
    for rollout, undisturbed in zip(rollouts[1], rollouts[0], strict=True):
        rollout.versions[...] -= rollout.versions[0, 0] - undisturbed.versions[0, 0]
        assert_same_fragment(rollout, undisturbed)


def test_evaluating_another_policy_does_not_disturb_training(live):
    lives = Lives(ENVS["short CartPole"], NUM_ENVS, SEED)
    policy, other = numpy_policy(live, seed=1), numpy_policy(live, seed=2)
    live.reset(seed=SEED)
    for _ in range(3):
        lives.assert_lived(live.rollout(policy, 9))
        live.evaluate(other, 5)


def test_a_stream_after_evaluating_another_policy_goes_on_with_the_one_that_was_published(live):
    lives = Lives(ENVS["short CartPole"], NUM_ENVS, SEED)
    policy, other = numpy_policy(live, seed=1), numpy_policy(live, seed=2)
    live.reset(seed=SEED)
    live.publish(policy)
    live.evaluate(other, 5)
    lives.assert_lived(live.rollout(policy, 4))
    # What has changed since it was published is not published by an evaluation.
    kept = {name: array.copy() for name, array in policy.weights().items()}
    change(policy, seed=3)
    live.evaluate(other, 5)
    with closing(live.stream(8)) as fragments:
        fragment = next(fragments)
    rows = fragment.observations[:-1].reshape(-1, 4)
    acted = distribution_of(live.single_action_space, kept, rows).logits
    assert np.array_equal(fragment.distribution["logits"].reshape(-1, 2), acted)


def test_the_weights_are_the_newest_even_where_training_lags():
    make = ENVS["short CartPole"]
    with cluster_env("in-process", make, NUM_ENVS, 2, sync=EveryNth(3)) as envs:
        policy = numpy_policy(envs)
        assert (envs.rollout(policy, 4).versions == 1).all()
        change(policy, seed=3)
        episodes = envs.evaluate(policy, 6)
        assert rows_of(episodes) == expected_of(make, policy.weights(), 0, 6)
        assert (envs.rollout(policy, 4).versions == 1).all()


def test_the_same_seed_plays_the_same_episodes_and_another_one_others(envs):
    policy = numpy_policy(envs, seed=3)
    for deterministic in (True, False):
        first, again, other = (
            rows_of(envs.evaluate(policy, 10, deterministic=deterministic, seed=seed))
            for seed in (1, 1, 2)
        )
        assert first == again
        assert first != other


def test_sampled_actions_are_drawn_and_not_the_likeliest(envs):
    """Zero weights: the likeliest action is always 0, which CartPole survives for 8 to 11 steps."""
    policy = numpy_policy(envs)
    for array in policy.weights().values():
        array[...] = 0.0
    likeliest = envs.evaluate(policy, 20).lengths
    sampled = envs.evaluate(policy, 20, deterministic=False).lengths
    assert likeliest.max() <= 11
    assert sampled.max() == 12


def test_sampled_episodes_do_not_depend_on_the_number_of_workers():
    played = []
    for workers in (1, 3):
        with cluster_env("in-process", ENVS["Pendulum"], NUM_ENVS, workers) as envs:
            policy = numpy_policy(envs)
            envs.rollout(policy, 1)
            played.append(rows_of(envs.evaluate(policy, 8, deterministic=False, seed=4)))
    assert played[0] == played[1]


def test_evaluation_needs_no_reset():
    with cluster_env("in-process", ENVS["short CartPole"], 2, 1) as envs:
        policy = numpy_policy(envs)
        envs.rollout(policy, 1)
        first = rows_of(envs.evaluate(policy, 4, seed=8))
        envs.reset(seed=1)
        assert rows_of(envs.evaluate(policy, 4, seed=8)) == first


class Choosy(NumpyPolicy):
    """Does not load weights whose critic begins with a 13."""

    def load(self, weights):
        if weights["critic"].flat[0] == 13:
            raise ArithmeticError("not with a 13")
        super().load(weights)


@pytest.mark.parametrize("rule", [EveryVersion(), EveryNth(2)], ids=["every version", "every 2nd"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_training_goes_on_after_weights_that_an_evaluation_could_not_load(transport, rule):
    make = ENVS["short CartPole"]
    with cluster_env(transport, make, NUM_ENVS, 2, sync=rule) as envs:
        like = numpy_policy(envs)
        policy = Choosy(like._distribution, like.weights(), like._value)
        envs.rollout(policy, 4)
        policy.weights()["critic"][0, 0] = 13
        with pytest.raises(ArithmeticError, match="not with a 13"):
            envs.evaluate(policy, 3)
        change(policy, seed=1)
        version = envs.publish(policy)
        started = time.monotonic()
        rollout = envs.rollout(policy, 4)
        assert (rollout.versions == version).all()
        assert rows_of(envs.evaluate(policy, 6)) == expected_of(make, policy.weights(), 0, 6)
        # Nobody has waited for a deadline.
        assert time.monotonic() - started < 60.0


class Doubled(RewardWrapper):
    """Rewards for training, not for looking at."""

    def reward(self, reward):
        return 2 * reward


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_evaluation_may_have_other_wrappers_than_training(transport):
    make = ENVS["short CartPole"]
    with cluster_env(transport, make, NUM_ENVS, 2, wrappers=[Doubled]) as envs:
        policy = numpy_policy(envs)
        once = expected_of(make, policy.weights(), 0, 6)
        twice = [(slot, 2 * reward, length) for slot, reward, length in once]
        assert (envs.rollout(policy, 3).rewards == 2).all()
        for wrappers, expected in ((None, twice), ([], once), ([Doubled], twice), (None, twice)):
            assert rows_of(envs.evaluate(policy, 6, wrappers=wrappers)) == expected
        assert (envs.rollout(policy, 3).rewards == 2).all()
        fourfold = envs.evaluate(policy, 6, wrappers=[Doubled, Doubled])
        assert fourfold.returns.tolist() == [4 * reward for _, reward, _ in once]
        assert envs.evaluate(policy, 6, wrappers=Doubled).returns.tolist() == [
            reward for _, reward, _ in twice
        ]


def test_a_backend_of_ones_own_says_that_wrappers_are_its_own_business():
    backend = VectorBackend(lambda n: SyncVectorEnv([ENVS["short CartPole"]] * n))
    with (
        cluster_env("in-process", backend, 2, 1) as envs,
        pytest.raises(TypeError, match="wrappers= goes with an id or callables"),
    ):
        envs.evaluate(numpy_policy(envs), 2, wrappers=[])
