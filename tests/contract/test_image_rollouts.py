"""Images come back bit for bit, from whichever host, in a fraction of their bytes."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, MultiBinary

from clusterenv import ClusterEnv, LocalLauncher, Network
from tests.contract.policies import numpy_policy
from tests.environments.floats import Floats
from tests.environments.images import Dot, stacked_dot, stacked_dot_last
from tests.equality import assert_same

NUM_ENVS, NUM_STEPS = 4, 24


def rollouts_of(env, launcher, **kwargs):
    with ClusterEnv(env, NUM_ENVS, 2, launcher=launcher, **kwargs) as envs:
        envs.reset(seed=3)
        policy = numpy_policy(envs)
        rollouts = [envs.rollout(policy, NUM_STEPS) for _ in range(3)]
        return rollouts, envs.ledger


@pytest.mark.parametrize("env", [stacked_dot, stacked_dot_last, Dot])
def test_rollouts_of_images_are_the_same_through_sockets(env):
    here, own = rollouts_of(env, "local")
    there, ledger = rollouts_of(env, LocalLauncher(hosts=2))
    for one, other in zip(here, there, strict=True):
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.actions, other.actions)
        assert np.array_equal(one.finals.observations, other.finals.observations)
        assert len(one.finals.observations) > 0
    assert (own.observation_bytes, own.coded_bytes) == (0, 0)
    rows = sum(rollout.observations.nbytes for rollout in there)
    # The last observations of few episodes are too few bytes to be worth it.
    finals = sum(rollout.finals.observations.nbytes for rollout in there)
    assert rows <= ledger.observation_bytes <= rows + finals


def test_frames_of_a_stack_travel_once():
    _, ledger = rollouts_of(stacked_dot, LocalLauncher(hosts=2))
    assert ledger.coded_bytes * 8 < ledger.observation_bytes
    assert ledger.bytes_by_kind["FragmentMade"] * 6 < ledger.observation_bytes


class Mixed(gym.ObservationWrapper):
    """A stack of images, another that is not stacked, floats and bits, in one dictionary."""

    def __init__(self):
        super().__init__(stacked_dot())
        image = self.env.observation_space
        self.observation_space = Dict(
            {
                "bits": MultiBinary(1600),
                "floats": Box(0.0, 1.0, (200,), np.float64),
                "image": Box(0, 255, image.shape[1:], np.uint8),
                "stack": image,
            }
        )

    def observation(self, observation):
        newest = observation[-1]
        floats = np.sqrt(observation[0].reshape(-1)[:200] / 255.0)
        bits = (newest.reshape(-1) > 2).astype(np.int8)
        return {"bits": bits, "floats": floats, "image": newest, "stack": observation}


def test_dictionaries_come_back_as_those_that_are_not_coded():
    coded, ledger = rollouts_of(Mixed, LocalLauncher(hosts=2))
    raw, plain = rollouts_of(Mixed, LocalLauncher(hosts=2), network=Network(compress=False))
    for one, other in zip(coded, raw, strict=True):
        assert_same(one.observations, other.observations)
        assert_same(one.finals.observations, other.finals.observations)
        assert_same(one.next_observations, other.next_observations)
        assert len(one.finals.observations["stack"]) > 0
    assert plain.coded_bytes == 0
    stacks = sum(rollout.observations["stack"].nbytes for rollout in coded)
    assert ledger.coded_bytes * 4 < stacks <= ledger.observation_bytes


def test_floats_travel_as_they_are():
    _, ledger = rollouts_of(Floats, LocalLauncher(hosts=2))
    _, plain = rollouts_of(Floats, LocalLauncher(hosts=2), network=Network(compress=False))
    assert ledger.coded_bytes == 0
    # But for the headers, where fragments of slots came in other messages.
    ratio = ledger.bytes_by_kind["FragmentMade"] / plain.bytes_by_kind["FragmentMade"]
    assert 0.98 < ratio < 1.02


def test_a_head_may_want_them_as_they_are():
    network = Network(compress=False)
    _, ledger = rollouts_of(stacked_dot, LocalLauncher(hosts=2), network=network)
    assert ledger.observation_bytes == 0
    assert ledger.bytes_by_kind["FragmentMade"] > 3 * NUM_ENVS * NUM_STEPS * 4 * 40 * 40


def test_fragments_of_images_are_whole_episodes_of_their_slots():
    with ClusterEnv(stacked_dot, NUM_ENVS, 2, launcher=LocalLauncher(hosts=2)) as envs:
        envs.reset(seed=3)
        envs.publish(numpy_policy(envs))
        for number, fragment in enumerate(envs.stream(NUM_STEPS)):
            before, after = fragment.observations[:-1], fragment.observations[1:]
            goes_on = ~(fragment.terminated | fragment.truncated)
            assert np.array_equal(before[goes_on][:, 1:], after[goes_on][:, :-1])
            if number == 8:
                break
        assert ledger_shrank(envs.ledger)


def ledger_shrank(ledger):
    return 0 < ledger.coded_bytes * 8 < ledger.observation_bytes
