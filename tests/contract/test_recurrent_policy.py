"""Recurrent state lives on the worker, per slot, and begins anew with every episode."""

from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from clusterenv.policies.base import Acted
from clusterenv.policies.torch import TorchPolicy
from tests.contract.replay import Lives
from tests.contract.torch_modules import STATE_SHAPES, Memory
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.environments.catalogue import ENVS
from tests.environments.counting import Count

NUM_ENVS = 4
SEED = 21


def memory_policy():
    return TorchPolicy(Memory(3, 2), state_shapes=STATE_SHAPES)


@pytest.fixture(scope="module", params=TRANSPORTS)
def live(request):
    with cluster_env(request.param, Count, NUM_ENVS, 2) as envs:
        yield envs


@pytest.fixture
def counts(live):
    live.reset(seed=SEED)
    return live


def unroll(module, fragment):
    """Log-probs, values, the values of finals by (step, column), and the state afterwards."""
    state = {name: torch.from_numpy(array) for name, array in fragment.state.items()}
    ended = torch.from_numpy(fragment.terminated | fragment.truncated)
    final_of = dict(zip(zip(fragment.finals.steps, fragment.finals.columns), range(99)))
    log_probs, values, finals = [], [], {}
    with torch.no_grad():
        for t in range(fragment.num_steps):
            observations = torch.from_numpy(fragment.observations[t])
            distribution, value, state = module(observations, state)
            log_probs.append(distribution.log_prob(torch.from_numpy(fragment.actions[t])))
            values.append(value)
            for column in ended[t].nonzero().ravel().tolist():
                row = final_of[t, column]
                before = {name: array[column : column + 1] for name, array in state.items()}
                observation = torch.from_numpy(fragment.finals.observations[row : row + 1])
                finals[row] = float(module(observation, before)[1])
            state = {name: array.clone() for name, array in state.items()}
            for array in state.values():
                array[ended[t]] = 0
        last = module(torch.from_numpy(fragment.observations[-1]), state)[1]
    return torch.stack(log_probs), torch.stack(values), finals, last, state


def test_unrolling_from_the_recorded_state_gives_what_the_workers_did(counts):
    policy, lives = memory_policy(), Lives(Count, NUM_ENVS, SEED)
    for num_steps in (7, 1, 13, 8):
        rollout = counts.rollout(policy, num_steps)
        lives.assert_lived(rollout)
        log_probs, values, finals, last, _ = unroll(policy.module, rollout)
        assert np.allclose(rollout.outputs["log_prob"], log_probs, atol=1e-5)
        assert np.allclose(rollout.outputs["value"], values, atol=1e-5)
        assert np.allclose(rollout.last_values, last, atol=1e-5)
        expected = [finals[row] for row in range(len(rollout.finals.steps))]
        assert np.allclose(rollout.finals.values, expected, atol=1e-5)
    assert all(lives.ends)


def test_a_rollouts_first_state_is_the_last_one_of_the_rollout_before(counts):
    policy = memory_policy()
    before = counts.rollout(policy, 7)
    assert all((array == 0).all() for array in before.state.values())
    assert {name: array.shape for name, array in before.state.items()} == {
        "hidden": (NUM_ENVS, 6),
        "age": (NUM_ENVS,),
    }
    for num_steps in (5, 11):
        *_, expected = unroll(policy.module, before)
        after = counts.rollout(policy, num_steps)
        for name, array in after.state.items():
            assert np.allclose(array, expected[name], atol=1e-5)
        before = after


def test_state_begins_with_zeros_after_a_reset(counts):
    policy = memory_policy()
    first = counts.rollout(policy, 8)
    counts.reset(seed=SEED)
    again = counts.rollout(policy, 8)
    assert np.array_equal(again.outputs["log_prob"], first.outputs["log_prob"])
    assert not again.state["hidden"].any()


def test_fragments_of_a_stream_carry_their_state(counts):
    policy = memory_policy()
    counts.publish(policy)
    with closing(counts.stream(8)) as stream:
        for fragment in islice(stream, 8):
            log_probs, *_ = unroll(policy.module, fragment)
            assert np.allclose(fragment.outputs["log_prob"], log_probs, atol=1e-5)
            assert np.array_equal(fragment.state["age"], fragment.observations[0, :, 1])


def test_evaluation_begins_each_episode_with_zeros():
    """Counted by hand: the return of the likeliest actions."""
    make, policy = ENVS["short CartPole"], TorchPolicy(Memory(4, 2), state_shapes=STATE_SHAPES)
    with cluster_env("in-process", make, 3, 2) as envs:
        envs.rollout(policy, 5)
        episodes = envs.evaluate(policy, 9, seed=2)
    lengths = []
    for slot in range(3):
        env = make()
        observation, _ = env.reset(seed=2 + slot)
        for _ in range(3):
            lengths.append(play_episode(env, policy.module, observation))
            observation, _ = env.reset()
    assert episodes.lengths.tolist() == lengths
    assert len(set(lengths)) > 1


def play_episode(env, module, observation):
    state = {name: torch.zeros(1, *shape) for name, shape in STATE_SHAPES.items()}
    length, ended = 0, False
    while not ended:
        with torch.no_grad():
            found, _, state = module(torch.from_numpy(observation)[None], state)
        observation, _, terminated, truncated, _ = env.step(int(found.logits.argmax()))
        length, ended = length + 1, terminated or truncated
    return length


class Age:
    """Remembers for how many steps it has acted, and reports what it remembered."""

    def act(self, observations, state, rng):
        age = np.zeros(len(observations)) if state is None else state
        actions = np.zeros(len(observations), np.int64)
        return Acted(actions, None, {"age": age}, age + 1)

    def weights(self):
        return {}

    def load(self, weights):
        pass


def test_state_may_be_one_array_of_any_policy(counts):
    policy = Age()
    rollouts = [counts.rollout(policy, 7), counts.rollout(policy, 9)]
    for rollout in rollouts:
        assert np.array_equal(rollout.outputs["age"], rollout.observations[:-1, :, 1])
    assert not rollouts[0].state.any()
    assert np.array_equal(rollouts[1].state, rollouts[1].observations[0, :, 1])


class Wide(Age):
    """As `Age`, with so many numbers of state."""

    def __init__(self, width):
        self.width = width

    def act(self, observations, state, rng):
        before = np.zeros((len(observations), self.width)) if state is None else state
        acted = super().act(observations, before[:, 0], rng)
        return Acted(acted.actions, None, acted.outputs, before + 1)


def test_another_policy_object_does_not_get_the_state_of_the_one_before(counts):
    counts.rollout(Wide(3), 4)
    for width in (3, 5):
        rollout = counts.rollout(Wide(width), 2)
        assert rollout.state.shape == (NUM_ENVS, width)
        assert not rollout.state.any()
        assert (rollout.outputs["age"][0] == 0).all()
    *_, infos = (counts.reset(), counts.step(Wide(2)), *counts.step(Wide(4)))
    assert (infos["age"] == 0).all()


def test_evaluating_another_recurrent_policy_leaves_the_state_as_it_is(counts):
    policy, other = Wide(3), Wide(5)
    counts.rollout(policy, 4)
    counts.evaluate(other, 3)
    rollout = counts.rollout(policy, 3)
    assert rollout.state.any()
    assert np.array_equal(rollout.state[:, 0], rollout.observations[0, :, 1])


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_steps_with_a_policy_begin_each_episode_with_zeros(mode):
    with cluster_env("in-process", Count, NUM_ENVS, 2, autoreset_mode=mode) as envs:
        policy = Age()
        observations, _ = envs.reset(seed=SEED)
        ended = np.zeros(NUM_ENVS, np.bool_)
        for _ in range(15):
            ages = observations[:, 1]
            observations, _, terminated, truncated, infos = envs.step(policy)
            # In the step that only resets, nobody looks at what the policy did.
            acted = ~ended if mode is AutoresetMode.NEXT_STEP else np.ones(NUM_ENVS, np.bool_)
            assert np.array_equal(infos["age"][acted], ages[acted])
            ended = terminated | truncated
