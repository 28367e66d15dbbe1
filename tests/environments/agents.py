"""PettingZoo envs, in a slot and driven by hand. Tests that import this need pettingzoo."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from clusterenv.adapters.pettingzoo import PettingZooEnv

pettingzoo = pytest.importorskip(
    "pettingzoo", minversion="1.27", reason="NOT TESTED: pip install pettingzoo"
)

GUARD = Dict(place=Box(-9.0, 9.0, (2,)), gear=Discrete(3))
SKIRMISH = {
    "scout": (Box(-9.0, 9.0, (3,)), Discrete(3)),
    "guard_0": (GUARD, Box(-1.0, 1.0, (2,))),
    "guard_1": (GUARD, Box(-1.0, 1.0, (2,))),
    "reserve": (Box(0, 255, (2, 2), np.uint8), Discrete(2, start=1)),
}
"""The spaces of each agent."""
CROWD = {f"guard_{i}": (Box(-9.0, 9.0, (2,)), Discrete(3)) for i in range(3)}
"""Agents that are alike."""
LIMIT = 12


class Skirmish(pettingzoo.ParallelEnv):
    """Some agents leave early, terminated or truncated; ``reserve`` comes later than the others."""

    def __init__(self, spaces=SKIRMISH):
        self.metadata = {"name": "skirmish"}
        self.spaces, self.difficulty = spaces, 1.0
        self.possible_agents, self.agents = list(spaces), []
        self.rng = np.random.default_rng()

    def observation_space(self, agent):
        return self.spaces[agent][0]

    def action_space(self, agent):
        return self.spaces[agent][1]

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.time, self.agents = 0, [agent for agent in self.spaces if agent != "reserve"]
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        acting, self.time = self.agents, self.time + 1
        assert actions.keys() == set(acting)
        chances = dict(zip(acting, self.rng.random(len(acting)), strict=True))
        terminations = {agent: chances[agent] < 0.1 for agent in acting}
        truncations = {agent: self.time == LIMIT or chances[agent] > 0.95 for agent in acting}
        rewards = {a: self.difficulty * float(np.sum(actions[a])) + chances[a] for a in acting}
        infos = {agent: {"chance": chances[agent]} if agent == "scout" else {} for agent in acting}
        staying = [a for a in acting if not (terminations[a] or truncations[a])]
        joining = [a for a in self.spaces if a == "reserve" and self.time == 3 and staying]
        self.agents = staying + joining
        observations = self._observe([*acting, *joining])
        return observations, rewards, terminations, truncations, infos

    def state(self):
        return np.array([self.time, len(self.agents)])

    def _observe(self, agents):
        return {agent: drawn(self.spaces[agent][0], self.rng) for agent in agents}


def drawn(space, rng):
    """Something of that space, from this generator."""
    match space:
        case Dict():
            return {key: drawn(child, rng) for key, child in space.spaces.items()}
        case Discrete():
            return rng.integers(space.n)
        case Box(dtype=np.uint8):
            return rng.integers(0, 256, space.shape, np.uint8)
        case Box():
            return rng.normal(size=space.shape).astype(space.dtype)


def crowd():
    return Skirmish(CROWD)


def knights():
    """A game that comes with PettingZoo, with more zombies than usual."""
    return pettingzoo.make(
        "parallel", "butterfly/knights_archers_zombies-v11", max_zombies=40, spawn_delay=2
    )


def in_a_slot(make=Skirmish):
    return PettingZooEnv(make())


class ByHand:
    """An env that is driven as PettingZoo's documentation does it; notes what it has seen."""

    def __init__(self, make, seed):
        self.env = make()
        self.seen = {"ends": 0, "left early": 0, "joined": 0}
        self.start(seed)

    def start(self, seed=None):
        self.observations, _ = self.env.reset(seed=seed)
        self.returns = dict.fromkeys(self.env.possible_agents, 0.0)

    @property
    def is_over(self):
        return not self.env.agents

    def step(self, actions):
        """(alive, reward, terminated, truncated, info) by agent."""
        acting = list(self.env.agents)
        found = self.env.step({agent: actions[agent] for agent in acting})
        self.observations, rewards, terminations, truncations, infos = found
        for agent, reward in rewards.items():
            self.returns[agent] += reward
        self.seen["ends"] += self.is_over
        self.seen["left early"] += 0 if self.is_over else len({*acting} - {*self.env.agents})
        self.seen["joined"] += len({*self.env.agents} - {*acting})
        return {
            agent: (
                agent in acting,
                rewards.get(agent, 0.0),
                terminations.get(agent, False),
                truncations.get(agent, False),
                infos.get(agent, {}),
            )
            for agent in self.env.possible_agents
        }

    def assert_observed(self, observations, place):
        """Each agent's own, or zeros if it was not there."""
        for agent in self.env.possible_agents:
            assert_equal(observations[agent], self.observations.get(agent, 0), f"{agent}, {place}")


def assert_equal(actual, expected, place):
    if isinstance(actual, dict):
        for key, part in actual.items():
            assert_equal(part, expected[key] if isinstance(expected, dict) else expected, place)
    else:
        assert np.array_equal(actual, np.broadcast_to(expected, np.shape(actual))), place


def seen_by(hands):
    return {name: sum(hand.seen[name] for hand in hands) for name in hands[0].seen}
