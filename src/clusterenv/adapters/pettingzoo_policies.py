"""A policy for all agents of an env, made of one per agent or of a shared one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.as_policy import AsPolicy
from clusterenv.distributions import Joint
from clusterenv.policies.base import Acted, Policy
from clusterenv.randomness import SlotRandom
from clusterenv.rollout import map_structure


def per_agent(policies: Any) -> PerAgentPolicy:
    """Make one policy of several, for envs whose observations and actions are dicts by agent.

    Call it once, not before each rollout. The policies that you pass remain yours to train, and
    publishing the result publishes their newest weights.

    Args:
        policies: ``{agent: policy}``, where several agents may have the same policy, or one policy
            that all agents share. Each policy can be anything that
            :meth:`clusterenv.ClusterEnv.rollout` accepts.
    """
    return PerAgentPolicy(policies)


class PerAgentPolicy:
    """Each agent acts by its own policy or by a shared one. Made by :func:`per_agent`.

    The output ``log_prob`` is the log-probability of all agents' actions together. ``value`` has a
    column per agent, in the order of the observation space, if every policy has a value. All other
    outputs have the agent in their names, such as ``"agent_0.log_prob"``.
    :func:`clusterenv.adapters.pettingzoo.by_agent` splits a rollout into those of the agents.
    """

    def __init__(self, policies: Any) -> None:
        given = policies if isinstance(policies, Mapping) else {"shared": policies}
        if not given:
            raise ValueError("per_agent({}) has no policy: pass {agent: policy}, or one for all")
        # The same object stays one policy, whose weights travel once.
        known = {id(policy): AsPolicy()(policy) for policy in given.values()}
        self._by_agent = {agent: known[id(policy)] for agent, policy in given.items()}
        self._is_shared = given is not policies
        self._can_be_split: dict[str, bool] = {}
        """By the first of the agents that share a policy, once it is known."""

    def act(self, observations: Any, state: Any, rng: SlotRandom | None) -> Acted:
        """An action for each agent. Agents that share a policy act in a single call."""
        found: dict[str, Acted] = {}
        for policy, agents in self._groups(observations):
            found |= self._act_together(policy, agents, observations, state, rng)
        acted = {agent: found[agent] for agent in observations}
        drawn_from = {
            agent: one.distribution for agent, one in acted.items() if one.distribution is not None
        }
        outputs = _joined_outputs({agent: one.outputs for agent, one in acted.items()})
        # Without `rng` nothing is played: a last observation may well allow no action.
        if rng is not None and "log_prob" in outputs and np.isnan(outputs["log_prob"]).any():
            _blame_for_nan(acted)
        return Acted(
            {agent: one.actions for agent, one in acted.items()},
            Joint(drawn_from) if len(drawn_from) == len(acted) else None,
            outputs,
            _joined_states({agent: one.state for agent, one in acted.items()}),
        )

    def _act_together(
        self,
        policy: Policy,
        agents: Sequence[str],
        observations: Any,
        state: Any,
        rng: SlotRandom | None,
    ) -> dict[str, Acted]:
        if len(agents) > 1:
            rows, states = _stacked(agents, observations), _stacked_state(agents, state)
            if agents[0] not in self._can_be_split:
                # Tried without `rng`: what is drawn must not depend on when a copy first acts.
                self._can_be_split[agents[0]] = _can_be_split(policy.act(rows, states, None))
            if self._can_be_split[agents[0]]:
                own_rng = None if rng is None else _RandomOfAgents(rng, len(agents))
                acted = policy.act(rows, states, own_rng)
                return {a: _split(acted, i, len(agents)) for i, a in enumerate(agents)}
        return {
            agent: policy.act(observations[agent], state_of(agent, state), rng) for agent in agents
        }

    def weights(self) -> Mapping[str, Array]:
        """The weights of each policy, named after the first agent that uses it."""
        return {
            f"{agent}.{name}": array
            for agent, policy in self._distinct().items()
            for name, array in policy.weights().items()
        }

    def load(self, weights: Mapping[str, Array]) -> None:
        """Give each policy its own weights."""
        for agent, policy in self._distinct().items():
            policy.load(part_of(agent, weights))

    def _distinct(self) -> dict[str, Policy]:
        """Each policy once, by the first agent that uses it."""
        first: dict[int, str] = {}
        for agent, policy in self._by_agent.items():
            first.setdefault(id(policy), agent)
        return {agent: self._by_agent[agent] for agent in first.values()}

    def _groups(self, observations: Any) -> list[tuple[Policy, list[str]]]:
        """Each policy with the agents that use it, in the order of the observations."""
        if not isinstance(observations, dict):
            raise TypeError(
                "per_agent is for envs whose observations are dicts by agent, such as "
                f"PettingZooEnv; these are {type(observations).__name__}"
            )
        if self._is_shared:
            return [(self._by_agent["shared"], list(observations))]
        if observations.keys() != self._by_agent.keys():
            raise ValueError(
                f"per_agent has policies for {sorted(self._by_agent)}, but the env's agents are "
                f"{sorted(observations)}: pass one policy for each of them"
            )
        agents: dict[int, list[str]] = {}
        for agent in observations:
            agents.setdefault(id(self._by_agent[agent]), []).append(agent)
        return [(self._by_agent[alike[0]], alike) for alike in agents.values()]


class _RandomOfAgents(SlotRandom):
    """Random numbers for the stacked rows of several agents, each of whom has a row per slot."""

    def __init__(self, rng: SlotRandom, num_agents: int) -> None:
        self._rng, self._num_agents, self.seed = rng, num_agents, rng.seed

    def uniform(self, draws: int = 1) -> Array:
        """Numbers in [0, 1), shape (agents · slots, draws)."""
        drawn = self._rng.uniform(self._num_agents * draws)
        by_agent = drawn.reshape(len(drawn), self._num_agents, draws).swapaxes(0, 1)
        return by_agent.reshape(-1, draws)


def _stacked(agents: Sequence[str], by_agent: Mapping[str, Any]) -> Any:
    """The rows of these agents in one array, one agent after the other."""
    try:
        return map_structure(lambda *rows: np.concatenate(rows), *(by_agent[a] for a in agents))
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"the agents {list(agents)} share a policy, but their observations differ in shape or "
            f"structure ({error}): give them policies of their own, or pad the observations"
        ) from error


def _stacked_state(agents: Sequence[str], state: Any) -> Any:
    states = {agent: state_of(agent, state) for agent in agents}
    return None if states[agents[0]] is None else _stacked(agents, states)


def _can_be_split(acted: Acted) -> bool:
    """Whether the distribution consists of arrays with a row per action."""
    if acted.distribution is None:
        return True
    rows = len(_first_leaf(acted.actions))
    arrays = acted.distribution.arrays().values()
    return len(arrays) > 0 and all(len(array) == rows for array in arrays)


def _split(acted: Acted, index: int, num_agents: int) -> Acted:
    """The rows of one of these agents."""

    def pick(array: Array) -> Array:
        count = len(array) // num_agents
        return array[index * count : (index + 1) * count]

    distribution = acted.distribution
    if distribution is not None:
        distribution = distribution.with_arrays(map_structure(pick, distribution.arrays()))
    return Acted(
        map_structure(pick, acted.actions),
        distribution,
        map_structure(pick, acted.outputs),
        None if acted.state is None else map_structure(pick, acted.state),
    )


def _first_leaf(tree: Any) -> Any:
    while isinstance(tree, dict | tuple):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree


def part_of(agent: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of one agent: ``"agent_0.log_prob"`` becomes ``"log_prob"``."""
    prefix = f"{agent}."
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }


def _joined_outputs(outputs: Mapping[str, Mapping[str, Array]]) -> dict[str, Array]:
    joined = {
        f"{agent}.{name}": array for agent, own in outputs.items() for name, array in own.items()
    }
    every = list(outputs.values())
    if all("log_prob" in own for own in every):
        joined["log_prob"] = np.asarray(np.sum([own["log_prob"] for own in every], axis=0))
    if all("value" in own for own in every):
        # One array, because workers look for this name when they evaluate last observations.
        joined["value"] = np.stack([own["value"] for own in every], axis=1)
        for agent in outputs:
            del joined[f"{agent}.value"]
    return joined


def _blame_for_nan(acted: Mapping[str, Acted]) -> None:
    wrong = [agent for agent, one in acted.items() if np.isnan(one.outputs["log_prob"]).any()]
    raise ValueError(
        f"the log_prob of {', '.join(wrong)} is NaN: look for a division by 0 or the logarithm of "
        "0 in the policy, and for a mask that allows no action. An agent that has left observes "
        "zeros, also as its mask; allow all actions then: allowed | ~allowed.any(-1, keepdim=True)"
    )


def _joined_states(states: Mapping[str, Any]) -> dict[str, Array] | None:
    """One flat dict, as workers store it. A state that is a single array has an empty name."""
    named = {
        f"{agent}.{name}": array
        for agent, state in states.items()
        if state is not None
        for name, array in (state if isinstance(state, dict) else {"": state}).items()
    }
    return named or None


def state_of(agent: str, state: Any) -> Any:
    """The recurrent state of one agent, in the form that its policy returned."""
    own = part_of(agent, state) if isinstance(state, Mapping) else {}
    return own.get("", own or None)
