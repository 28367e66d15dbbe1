"""PettingZoo's parallel envs, in which all agents act at the same time, as slots of a ClusterEnv.

This file does not import pettingzoo. It checks what an env can do, not which class it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from copy import deepcopy
from typing import Any

import gymnasium
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from clusterenv.adapters.pettingzoo_policies import PerAgentPolicy, per_agent
from clusterenv.adapters.pettingzoo_rollouts import by_agent

__all__ = ["PerAgentPolicy", "PettingZooEnv", "by_agent", "per_agent"]

ByAgent = dict[str, Any]
_NEEDED = ("possible_agents", "reset", "step", "observation_space", "action_space")


class PettingZooEnv(gymnasium.Env[ByAgent, ByAgent]):
    """A PettingZoo ``ParallelEnv`` as one Gymnasium env, for a slot of a ClusterEnv.

    Observations and actions are dicts with an entry for each of ``possible_agents``. An agent that
    has left the game gets observations of zeros, and its actions are ignored. The reward is the
    sum over all agents. The episode ends when no agent is left. It counts as truncated if any
    agent was truncated in that step, and as terminated if none was, or if all agents terminated.

    The infos have what each agent got, as dicts by agent: ``rewards``, ``terminations`` and
    ``truncations`` as in PettingZoo; ``alive``, whether the agent acted in this step; ``returns``,
    the sum of its rewards since the last reset; and ``infos``, if the env reported any.

    Attributes and methods of the ParallelEnv can be used directly, as in ``envs.call("state")``.

    Args:
        parallel_env: The env. Its ``possible_agents`` must stay the same.

    Example:
        >>> make = lambda: PettingZooEnv(simple_spread_v3.parallel_env())  # doctest: +SKIP
        >>> envs = ClusterEnv(make, num_envs=64)  # doctest: +SKIP
        >>> _ = envs.reset(seed=42)  # doctest: +SKIP
        >>> _, _, _, _, infos = envs.step(envs.action_space.sample())  # doctest: +SKIP
        >>> infos["rewards"]["agent_0"].shape  # doctest: +SKIP
        (64,)
    """

    def __init__(self, parallel_env: Any) -> None:
        _refuse_what_is_not_parallel(parallel_env)
        self.parallel_env = parallel_env
        self.possible_agents: tuple[str, ...] = tuple(parallel_env.possible_agents)
        _refuse_names(self.possible_agents)
        self.metadata = getattr(parallel_env, "metadata", {})
        self.render_mode = getattr(parallel_env, "render_mode", None)
        agents = self.possible_agents
        observed = {agent: parallel_env.observation_space(agent) for agent in agents}
        self.observation_space = spaces.Dict(observed)
        self.action_space = spaces.Dict({a: parallel_env.action_space(a) for a in agents})
        self._zeros = {agent: _zeros_of(space) for agent, space in observed.items()}
        self._returns: dict[str, float] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ByAgent, dict[str, Any]]:
        """Start an episode. In the infos, no agent is ``alive``, because none has acted."""
        observations, infos = self.parallel_env.reset(seed=seed, options=options)
        self._refuse_other_agents(observations.keys())
        self._returns = dict.fromkeys(self.possible_agents, 0.0)
        return self._observed(observations), self._said((), {}, {}, {}, infos)

    def step(self, action: ByAgent) -> tuple[ByAgent, float, bool, bool, dict[str, Any]]:
        """Let all agents that are in the game act."""
        env = self.parallel_env
        acting = tuple(env.agents)
        found = env.step({agent: action[agent] for agent in acting})
        observations, rewards, terminations, truncations, infos = found
        self._refuse_other_agents(observations.keys() | rewards.keys())
        has_ended = {
            agent: terminations.get(agent, False) or truncations.get(agent, False)
            for agent in env.agents
        }
        is_over = all(has_ended.values())
        truncated = is_over and any(truncations.values())
        all_terminated = all(terminations.get(agent, False) for agent in acting)
        terminated = is_over and (all_terminated or not truncated)
        said = self._said(acting, rewards, terminations, truncations, infos)
        reward = float(sum(rewards.values()))
        return self._observed(observations), reward, terminated, truncated, said

    def render(self) -> Any:
        """Render the ParallelEnv."""
        return self.parallel_env.render()

    def close(self) -> None:
        """Close the ParallelEnv."""
        self.parallel_env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "parallel_env":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.parallel_env, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the ParallelEnv if it has one of that name, else of this env."""
        if hasattr(self.parallel_env, name):
            setattr(self.parallel_env, name, value)
            return True
        return super().set_wrapper_attr(name, value, force=force)

    def _observed(self, observations: Mapping[str, Any]) -> ByAgent:
        return {
            agent: observations[agent] if agent in observations else deepcopy(zeros)
            for agent, zeros in self._zeros.items()
        }

    def _said(
        self,
        acting: Collection[str],
        rewards: Mapping[str, Any],
        terminations: Mapping[str, Any],
        truncations: Mapping[str, Any],
        infos: Mapping[str, Any],
    ) -> dict[str, Any]:
        agents, returns = self.possible_agents, self._returns
        for agent, reward in rewards.items():
            returns[agent] += float(reward)
        said: dict[str, Any] = {
            "alive": {agent: agent in acting for agent in agents},
            "rewards": {agent: float(rewards.get(agent, 0.0)) for agent in agents},
            "terminations": {agent: bool(terminations.get(agent, False)) for agent in agents},
            "truncations": {agent: bool(truncations.get(agent, False)) for agent in agents},
            "returns": dict(returns),
        }
        own = {agent: info for agent, info in infos.items() if info}
        return {**said, "infos": own} if own else said

    def _refuse_other_agents(self, named: Set[str]) -> None:
        known, now = set(self.possible_agents), set(self.parallel_env.possible_agents)
        if now != known or not named <= known:
            raise ValueError(
                f"the agents of {self.parallel_env} have changed from {sorted(known)} to "
                f"{sorted(now | named)}, but the spaces of a slot cannot change: list every agent "
                "that may ever appear in possible_agents, from the beginning"
            )


def _zeros_of(space: Space[Any]) -> Any:
    """An observation of zeros."""
    return next(iter(iterate(batch_space(space, 1), create_empty_array(space, 1))))


def _refuse_what_is_not_parallel(env: Any) -> None:
    if hasattr(env, "agent_iter"):
        raise TypeError(
            f"{env} is an AEC env, whose agents take turns: pass "
            "pettingzoo.utils.aec_to_parallel(env), or make a parallel env in the first place"
        )
    missing = [name for name in _NEEDED if not hasattr(env, name)]
    if missing:
        raise TypeError(
            f"{env!r:.80} is not a ParallelEnv of PettingZoo: it has no {', '.join(missing)}"
        )


def _refuse_names(agents: Collection[Any]) -> None:
    for agent in agents:
        if not isinstance(agent, str) or "." in agent:
            raise ValueError(
                f"the agent {agent!r} needs another name: a string without dots, because rollouts "
                "have outputs such as 'agent_0.log_prob'"
            )
