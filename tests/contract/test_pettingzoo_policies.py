"""Agents of an env act by a policy each, or by a shared one, and each has its own numbers."""

from contextlib import closing
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit
from torch import nn

from clusterenv import AdaptiveSync, NumpyPolicy, TorchPolicy, distributions, gae, with_values
from clusterenv.adapters.pettingzoo import by_agent, per_agent
from tests.contract.policies import distribution_of, random_weights, value_of
from tests.contract.replay import pick
from tests.contract.transports import cluster_env
from tests.environments.agents import CROWD, SKIRMISH, Skirmish, crowd, in_a_slot
from tests.equality import assert_same

NUM_ENVS = 3
SEED = 11


def policy_for(spaces, seed=0):
    observation_space, action_space = spaces
    weights = random_weights(observation_space, action_space, seed)
    return NumpyPolicy(partial(distribution_of, action_space), weights, value_of)


@pytest.fixture
def policies():
    return {agent: policy_for(spaces, i) for i, (agent, spaces) in enumerate(SKIRMISH.items())}


def assert_acted(one, policy, action_space):
    """Fail unless every number of this agent is that of its policy."""
    num_steps, weights = one.num_steps, policy.weights()
    rows = one.flatten(pick(one.observations, slice(num_steps)))
    drawn_from = distribution_of(action_space, weights, rows)
    log_prob = drawn_from.log_prob(one.flatten(one.actions))
    assert np.array_equal(one.flatten(one.outputs["log_prob"]), log_prob)
    assert one.distribution.keys() == drawn_from.arrays().keys()
    for name, array in drawn_from.arrays().items():
        assert np.array_equal(one.flatten(one.distribution[name]), array)
    assert np.array_equal(one.flatten(one.outputs["value"]), value_of(weights, rows))
    next_values = value_of(weights, one.flatten(one.next_observations)).reshape(num_steps, -1)
    assert np.array_equal(one.next_values, np.where(one.terminated, 0.0, next_values))


def test_each_agent_has_the_log_prob_and_value_of_its_own_policy(policies):
    with cluster_env("shared_memory", in_a_slot, NUM_ENVS, 2) as envs:
        rollout = envs.rollout(per_agent(policies), 50)
    agents = by_agent(rollout)
    for agent, one in agents.items():
        assert_acted(one, policies[agent], SKIRMISH[agent][1])
    together = sum(one.outputs["log_prob"] for one in agents.values())
    assert np.allclose(rollout.outputs["log_prob"], together)


def test_advantages_of_an_agent_do_not_depend_on_what_comes_after_it_has_left(policies):
    with cluster_env("in-process", in_a_slot, NUM_ENVS, 1) as envs:
        rollout = envs.rollout(per_agent(policies), 80)
    for one in by_agent(rollout).values():
        advantages, _ = gae(one, 0.9, 0.8)
        deltas = one.rewards + 0.9 * one.next_values - one.outputs["value"]
        ended = one.infos["alive"] & (one.terminated | one.truncated)
        assert ended.sum() > 2
        assert np.allclose(advantages[ended], deltas[ended])


def test_a_value_that_not_all_agents_have_is_left_out(policies):
    space = SKIRMISH["scout"][1]
    policies["scout"] = NumpyPolicy(partial(distribution_of, space), policies["scout"].weights())
    with cluster_env("in-process", in_a_slot, NUM_ENVS, 1) as envs:
        rollout = envs.rollout(per_agent(policies), 5)
    agents = by_agent(rollout)
    assert "value" not in rollout.outputs
    assert "value" not in agents["scout"].outputs
    assert agents["reserve"].outputs["value"].shape == (5, NUM_ENVS)
    with pytest.raises(ValueError, match="no value function"):
        gae(agents["reserve"], 0.9, 0.8)


def test_fragments_of_a_stream_are_split_too(policies):
    policy = per_agent(policies)
    with cluster_env("in-process", in_a_slot, NUM_ENVS, 2) as envs:
        envs.publish(policy)
        with closing(envs.stream(num_steps=20)) as stream:
            fragments = list(islice(stream, 4))
    assert {slot for fragment in fragments for slot in fragment.slots} == set(range(NUM_ENVS))
    for fragment in fragments:
        for agent, one in by_agent(fragment).items():
            assert_acted(one, policies[agent], SKIRMISH[agent][1])


def test_a_critic_at_the_head_sees_all_agents():
    def value(observations):
        return sum(rows.sum(axis=-1) for rows in observations.values())

    rollout = with_values(rollout_of(per_agent(crowd_policy())), value)
    advantages, _ = gae(rollout, 0.9, 0.0)
    deltas = rollout.rewards + 0.9 * rollout.next_values - value(rollout.observations)[:-1]
    assert np.allclose(advantages, deltas)
    assert "value" not in by_agent(rollout)["guard_0"].outputs


def test_what_agents_learn_travels_to_the_workers(policies):
    policy = per_agent(policies)
    with cluster_env("tcp", in_a_slot, NUM_ENVS, 2) as envs:
        envs.rollout(policy, 5)
        policies["scout"].weights()["actor"][...] = 0.0
        rollout = envs.rollout(policy, 5)
    assert (rollout.versions == 2).all()
    for agent, one in by_agent(rollout).items():
        assert_acted(one, policies[agent], SKIRMISH[agent][1])


def test_a_divergence_of_one_agent_makes_hosts_pull(policies):
    policy, rule = per_agent(policies), AdaptiveSync(1e-3, max_lag=1000, spread=0.0)
    with cluster_env("shared_memory", in_a_slot, NUM_ENVS, 2, sync=rule) as envs:
        envs.rollout(policy, 20)
        policies["guard_0"].weights()["actor"][...] += 1e-9
        assert (envs.rollout(policy, 20).versions == 1).all()
        policies["guard_0"].weights()["actor"][...] += 1.0
        assert (envs.rollout(policy, 20).versions == 3).all()
        assert [pull.cause for pull in envs.ledger.pulls] == ["first", "threshold"]


# Shared policies.


def crowd_policy(seed=0):
    return policy_for(CROWD["guard_0"], seed)


def rollout_of(policy, workers=2):
    with cluster_env("shared_memory", partial(in_a_slot, crowd), NUM_ENVS, workers) as envs:
        envs.reset(seed=SEED)
        return envs.rollout(policy, 40)


def test_each_agent_that_shares_a_policy_has_its_log_prob_and_value():
    shared = crowd_policy()
    for one in by_agent(rollout_of(per_agent(shared))).values():
        assert_acted(one, shared, CROWD["guard_0"][1])
        assert one.torch().infos["alive"].dtype is torch.bool


def test_agents_that_share_a_policy_draw_numbers_of_their_own():
    shared = crowd_policy()
    shared.weights()["actor"][...] = 0.0
    actions = rollout_of(per_agent(shared)).actions
    for left, right in [("guard_0", "guard_1"), ("guard_1", "guard_2")]:
        assert (actions[left] != actions[right]).mean() == pytest.approx(2 / 3, abs=0.15)


def test_what_a_shared_policy_draws_does_not_depend_on_the_number_of_workers():
    one, two = (rollout_of(per_agent(crowd_policy()), workers) for workers in (1, 2))
    assert_same(one.outputs, two.outputs)
    assert_same(one.actions, two.actions)


def test_the_weights_of_a_policy_that_some_agents_share_travel_once():
    shared, own = crowd_policy(0), crowd_policy(1)
    policies = {"guard_0": shared, "guard_1": own, "guard_2": shared}
    policy = per_agent(policies)
    assert list(policy.weights()) == [
        f"{agent}.{name}" for agent in ("guard_0", "guard_1") for name in ("actor", "critic")
    ]
    for agent, one in by_agent(rollout_of(policy)).items():
        assert_acted(one, policies[agent], CROWD[agent][1])


class Spread(nn.Module):
    """Draws from a torch distribution for which ClusterEnv has no arrays."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, rows):
        sides = nn.functional.softplus(self.layer(rows)) + 1
        return torch.distributions.Independent(torch.distributions.Beta(sides, sides + 1), 1)


def test_agents_can_share_a_policy_whose_distribution_has_no_arrays():
    torch.manual_seed(0)
    module, action_space = Spread(), Box(0.0, 1.0, (2,))
    spaces = {agent: (rows, action_space) for agent, (rows, _) in CROWD.items()}
    make = partial(in_a_slot, partial(Skirmish, spaces))
    policy, rule = per_agent(module), AdaptiveSync(1e-3, max_lag=1000, spread=0.0)
    with cluster_env("in-process", make, NUM_ENVS, 2, sync=rule) as envs:
        envs.rollout(policy, 10)
        with torch.no_grad():
            module.layer.bias += 3.0
        rollout = envs.rollout(policy, 10)
    assert (rollout.versions == 2).all()
    for one in by_agent(rollout).values():
        arrays = one.observations[:-1], one.actions
        rows, actions = (torch.from_numpy(one.flatten(array)) for array in arrays)
        with torch.no_grad():
            expected = module(rows).log_prob(actions).numpy()
        assert one.flatten(one.outputs["log_prob"]) == pytest.approx(expected, abs=1e-5)


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.actor = nn.GRUCell(2, 4), nn.Linear(4, 3)

    def forward(self, rows, state):
        hidden = self.cell(rows, state["hidden"])
        return distributions.Categorical(self.actor(hidden)), {"hidden": hidden}


@pytest.mark.parametrize("is_shared", [True, False])
def test_each_agent_has_a_recurrent_state_of_its_own(is_shared):
    torch.manual_seed(0)
    inner = TorchPolicy(Memory(), state_shapes={"hidden": (4,)})
    policies = {"guard_0": inner, "guard_1": crowd_policy(), "guard_2": inner}
    policy = per_agent(inner if is_shared else policies)
    with cluster_env("in-process", partial(in_a_slot, crowd), NUM_ENVS, 2) as envs:
        envs.reset(seed=SEED)
        rollouts = [envs.rollout(policy, 30) for _ in range(2)]
    for rollout in rollouts:
        agents = by_agent(rollout)
        assert is_shared or agents["guard_1"].state is None
        for agent in ("guard_0", "guard_2"):
            assert_unrolled(inner.module, agents[agent])
    assert agents["guard_0"].state["hidden"].any()


def assert_unrolled(module, one):
    """What a learner does: unroll from the first state, and forget where episodes ended."""
    state = {"hidden": torch.from_numpy(one.state["hidden"].copy())}
    for t in range(one.num_steps):
        with torch.no_grad():
            found, state = module(torch.from_numpy(one.observations[t].copy()), state)
        log_prob = torch.log_softmax(found.logits, -1).numpy()
        expected = log_prob[np.arange(NUM_ENVS), one.actions[t]]
        alive = one.infos["alive"][t]
        assert one.outputs["log_prob"][t][alive] == pytest.approx(expected[alive], abs=1e-5)
        state["hidden"][torch.from_numpy(one.terminated[t] | one.truncated[t])] = 0.0


def limited_crowd():
    return TimeLimit(in_a_slot(crowd), max_episode_steps=2)


def test_a_time_limit_around_the_env_truncates_the_agents_that_are_left():
    with cluster_env("in-process", limited_crowd, NUM_ENVS, 1) as envs:
        envs.reset(seed=SEED)
        rollout = envs.rollout(per_agent(crowd_policy()), 20)
    last = rollout.infos["final_info"]
    for agent, one in by_agent(rollout).items():
        ended_itself = last["terminations"][agent] | last["truncations"][agent]
        cut = rollout.truncated & one.infos["alive"] & ~ended_itself
        assert cut.any()
        assert one.truncated[cut].all()
        assert not one.terminated[cut].any()


# What is refused.


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ValueError, "has no policy"),
        ({"a": NumpyPolicy}, TypeError, "NumpyPolicy is a class"),
        ({"a": 3}, TypeError, "is not a policy"),
    ],
)
def test_what_is_no_policy_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        per_agent(given)


def test_policies_for_other_agents_are_refused(policies):
    del policies["reserve"]
    refused = pytest.raises(ValueError, match=r"has policies for .*the env's agents are .*reserve")
    with cluster_env("in-process", in_a_slot, 1, 1) as envs, refused:
        envs.rollout(per_agent(policies), 1)


def test_agents_with_other_observations_cannot_share_a_policy():
    refused = pytest.raises(ValueError, match="share a policy, but their observations differ")
    with cluster_env("in-process", in_a_slot, 1, 1) as envs, refused:
        envs.rollout(per_agent(crowd_policy()), 1)


def test_a_rollout_of_tensors_cannot_be_split():
    rollout = rollout_of(per_agent(crowd_policy()), workers=1).torch()
    with pytest.raises(TypeError, match=r"by_agent takes a rollout of arrays: call it before roll"):
        by_agent(rollout)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_mask_that_allows_nothing_once_an_agent_has_left_is_told_with_its_agent(is_shared):
    masked = [NumpyPolicy(only_where_seen, {}) for _ in CROWD]
    policies = masked[0] if is_shared else dict(zip(CROWD, masked, strict=True))
    message = r"log_prob of guard_\d(, guard_\d)* is NaN: .* has left observes"
    with cluster_env("in-process", partial(in_a_slot, crowd), NUM_ENVS, 1) as envs:
        envs.reset(seed=SEED)
        with pytest.raises(ValueError, match=message):
            envs.rollout(per_agent(policies), 40)


def only_where_seen(weights, rows):
    """No action is allowed on an observation of zeros."""
    scores = np.where(rows.any(axis=1, keepdims=True), 0.0, -np.inf)
    return distributions.Categorical(np.repeat(scores, 3, axis=1))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_last_observation_may_allow_no_action():
    policy, rows = per_agent(NumpyPolicy(only_where_seen, {})), np.zeros((2, 2))
    acted = policy.act({"a": rows, "b": rows}, None, None)
    assert np.isnan(acted.outputs["log_prob"]).all()


def test_per_agent_and_by_agent_are_for_envs_with_agents():
    def two_actions(weights, rows):
        return distributions.Categorical(rows[:, :2])

    with cluster_env("in-process", "CartPole-v1", 1, 1) as envs:
        with pytest.raises(TypeError, match="per_agent is for envs whose observations are dicts"):
            envs.rollout(per_agent(crowd_policy()), 1)
        rollout = envs.rollout(NumpyPolicy(two_actions, {}), 1)
    with pytest.raises(ValueError, match="does not say what each agent got"):
        by_agent(rollout)
