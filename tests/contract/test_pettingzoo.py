"""A PettingZoo env in a slot gives what the same env gives by hand, for each of its agents."""

import subprocess
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from clusterenv import NumpyPolicy
from clusterenv.adapters.pettingzoo import PettingZooEnv, by_agent, per_agent
from tests.contract.policies import distribution_of, random_weights, value_of
from tests.contract.replay import pick
from tests.contract.transports import cluster_env
from tests.environments.agents import (
    LIMIT,
    SKIRMISH,
    ByHand,
    Skirmish,
    crowd,
    in_a_slot,
    knights,
    pettingzoo,
    seen_by,
)

NUM_ENVS = 3
SEED = 11
WAYS = [("shared_memory", 1), ("shared_memory", 2), ("in-process", 2), ("tcp", 2)]
CASES = [
    *((Skirmish, *way) for way in WAYS),
    (knights, "shared_memory", 2),
    (knights, "in-process", 2),
]


# Lockstep.


@pytest.mark.parametrize(("make", "transport", "workers"), CASES)
def test_steps_are_those_of_envs_driven_by_hand(make, transport, workers):
    hands = [ByHand(make, SEED + slot) for slot in range(NUM_ENVS)]
    with cluster_env(transport, partial(in_a_slot, make), NUM_ENVS, workers) as envs:
        envs.action_space.seed(SEED)
        observations, _ = envs.reset(seed=SEED)
        for slot, hand in enumerate(hands):
            hand.assert_observed(pick(observations, slot), "reset")
        for _ in range(250):
            actions = envs.action_space.sample()
            found = envs.step(actions)
            for slot, hand in enumerate(hands):
                assert_stepped(hand, slot, pick(actions, slot), *found)
    seen = seen_by(hands)
    assert seen["ends"] > 2
    assert seen["left early"] > 2
    assert make is knights or seen["joined"] > 2


def assert_stepped(hand, slot, actions, observations, rewards, terminated, truncated, infos):
    """As Gymnasium's next-step autoreset has it: the step after an end is the reset."""
    if hand.is_over:
        hand.start()
        assert rewards[slot] == 0
        assert not any(infos["alive"][agent][slot] for agent in hand.env.possible_agents)
        hand.assert_observed(pick(observations, slot), "reset")
        return
    gots = hand.step(actions)
    hand.assert_observed(pick(observations, slot), "step")
    for agent, (*expected, info) in gots.items():
        names = ("alive", "rewards", "terminations", "truncations")
        assert [infos[name][agent][slot] for name in names] == expected
        assert infos["returns"][agent][slot] == hand.returns[agent]
        if info:
            assert infos["infos"][agent]["chance"][slot] == info["chance"]
    assert rewards[slot] == pytest.approx(sum(got[1] for got in gots.values()), abs=1e-12)
    assert terminated[slot] | truncated[slot] == hand.is_over
    assert truncated[slot] == (hand.is_over and any(got[3] for got in gots.values()))


def test_the_env_inside_is_reached_by_call_and_set_attr():
    with cluster_env("in-process", in_a_slot, 2, 2) as envs:
        envs.reset(seed=SEED)
        assert [state.tolist() for state in envs.call("state")] == [[0, 3], [0, 3]]
        assert envs.get_attr("possible_agents") == (tuple(SKIRMISH),) * 2
        envs.set_attr("difficulty", [2.0, 3.0])
        actions = {agent: np.ones_like(rows) for agent, rows in envs.action_space.sample().items()}
        *_, infos = envs.step(actions)
    assert infos["rewards"]["scout"].astype(int).tolist() == [2, 3]


class Abrupt(Skirmish):
    """All ends at once; the agents may stay in the list, which PettingZoo does not allow."""

    def __init__(self, terminations, truncates, keeps_agents):
        super().__init__()
        self.said = terminations, truncates, keeps_agents

    def step(self, actions):
        observations, rewards, *_, infos = super().step(actions)
        terminations, truncates, keeps_agents = self.said
        self.agents = list(rewards) if keeps_agents else []
        by_name = dict(zip(rewards, terminations, strict=True))
        return observations, rewards, by_name, dict.fromkeys(rewards, truncates), infos


@pytest.mark.parametrize("keeps_agents", [False, True])
@pytest.mark.parametrize(
    ("terminations", "truncates", "ended"),
    [
        ((True, True, True), False, (True, False)),
        ((True, True, False), True, (False, True)),
        ((True, True, True), True, (True, True)),
    ],
)
def test_an_episode_is_over_when_every_agent_has_ended(
    terminations, truncates, ended, keeps_agents
):
    env = PettingZooEnv(Abrupt(terminations, truncates, keeps_agents))
    env.reset(seed=0)
    assert env.step(env.action_space.sample())[2:4] == ended


def test_an_aec_env_takes_part_as_the_parallel_env_that_pettingzoo_makes_of_it():
    aec_env = pettingzoo.make("aec", "classic/rps-v2")
    env = PettingZooEnv(pettingzoo.utils.aec_to_parallel(aec_env))
    env.reset(seed=0)
    *_, infos = env.step({"player_0": 0, "player_1": 1})
    assert infos["rewards"] == {"player_0": -1.0, "player_1": 1.0}


# Rollouts, by a policy per agent.


def policies_of(spaces):
    return {
        agent: NumpyPolicy(
            partial(distribution_of, action_space),
            random_weights(observation_space, action_space, seed),
            value_of,
        )
        for seed, (agent, (observation_space, action_space)) in enumerate(spaces.items())
    }


@pytest.mark.parametrize(("transport", "workers"), WAYS)
def test_rollouts_are_those_of_envs_given_the_recorded_actions(transport, workers):
    hands = [ByHand(Skirmish, SEED + slot) for slot in range(NUM_ENVS)]
    policy = per_agent(policies_of(SKIRMISH))
    with cluster_env(transport, in_a_slot, NUM_ENVS, workers) as envs:
        envs.reset(seed=SEED)
        rollouts = [envs.rollout(policy, num_steps) for num_steps in (60, 1, 90, 100)]
    for rollout in rollouts:
        agents = by_agent(rollout)
        assert list(agents) == list(envs.single_observation_space)
        for slot, hand in enumerate(hands):
            assert_lived(hand, slot, rollout, agents)
    assert all(count > 2 for count in seen_by(hands).values())


def assert_lived(hand, slot, rollout, agents):
    """Fail unless every row of this slot is what the env does next, for each agent."""
    returns = {agent: [] for agent in agents}
    for t in range(rollout.num_steps):
        hand.assert_observed(pick(rollout.observations, t, slot), f"step {t}")
        gots = hand.step(pick(rollout.actions, t, slot))
        after = {agent: pick(one.next_observations, t, slot) for agent, one in agents.items()}
        hand.assert_observed(after, f"after step {t}")
        for agent, one in agents.items():
            alive, reward, *ends, _ = gots[agent]
            assert one.infos["alive"][t, slot] == alive
            assert one.rewards[t, slot] == reward
            # One that left earlier ends with the env: its next episode begins there.
            expected = ends if alive else [hand.is_over, False]
            assert [one.terminated[t, slot], one.truncated[t, slot]] == expected
        if hand.is_over:
            for agent, reward in hand.returns.items():
                returns[agent].append(reward)
            hand.start()
    hand.assert_observed(pick(rollout.observations, rollout.num_steps, slot), "the last")
    for agent, one in agents.items():
        assert one.episodes.returns[one.episodes.slots == slot].tolist() == returns[agent]


def test_a_policy_steps_and_is_evaluated():
    policy = per_agent(policies_of(SKIRMISH))
    with cluster_env("in-process", in_a_slot, NUM_ENVS, 2) as envs:
        envs.reset(seed=SEED)
        *_, infos = envs.step(policy)
        episodes = envs.evaluate(policy, episodes=6, seed=1)
    assert infos["scout.log_prob"].shape == (NUM_ENVS,)
    assert infos["value"].shape == (NUM_ENVS, len(SKIRMISH))
    assert len(episodes.returns) == 6
    assert episodes.lengths.max() <= LIMIT


# What is refused.


def test_an_aec_env_is_refused_with_what_to_do():
    with pytest.raises(TypeError, match=r"rps_v2 is an AEC env.*aec_to_parallel"):
        PettingZooEnv(pettingzoo.make("aec", "classic/rps-v2"))


def test_what_is_no_parallel_env_is_refused():
    with pytest.raises(
        TypeError, match="not a ParallelEnv of PettingZoo: it has no possible_agents"
    ):
        PettingZooEnv(gym.make("CartPole-v1"))


def test_an_env_that_does_not_say_which_agents_it_may_have_is_refused():
    env = Skirmish()
    del env.possible_agents
    with pytest.raises(TypeError, match="it has no possible_agents"):
        PettingZooEnv(env)


@pytest.mark.parametrize("name", ["a.b", 3])
def test_agents_whose_names_would_be_ambiguous_are_refused(name):
    with pytest.raises(ValueError, match="needs another name"):
        PettingZooEnv(Skirmish({name: SKIRMISH["scout"]}))


class Changing(Skirmish):
    def reset(self, seed=None, options=None):
        self.possible_agents = [*self.possible_agents, "one_more"]
        return super().reset(seed, options)


class Growing(Skirmish):
    def step(self, actions):
        observations, *others = super().step(actions)
        return {**observations, "stranger": np.zeros(2, np.float32)}, *others


def test_agents_that_change_are_refused():
    with pytest.raises(ValueError, match=r"skirmish have changed from .* to .*'one_more'"):
        PettingZooEnv(Changing()).reset(seed=0)


def test_an_agent_that_was_not_announced_is_refused_at_the_head():
    with cluster_env("shared_memory", partial(in_a_slot, Growing), 1, 1) as envs:
        envs.reset(seed=0)
        with pytest.raises(ValueError, match="list every agent that may ever appear"):
            envs.step(envs.action_space.sample())


def test_a_rollout_without_infos_cannot_be_split():
    policy = per_agent(policies_of({"guard_0": crowd().spaces["guard_0"]})["guard_0"])
    with cluster_env("in-process", partial(in_a_slot, crowd), 1, 1) as envs:
        rollout = envs.rollout(policy, 3, infos=False)
    with pytest.raises(ValueError, match="infos=False"):
        by_agent(rollout)


def test_the_adapter_does_not_need_pettingzoo_itself():
    code = "import sys; sys.modules['pettingzoo'] = None; import clusterenv.adapters.pettingzoo"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
