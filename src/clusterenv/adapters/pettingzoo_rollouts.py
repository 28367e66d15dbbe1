"""A rollout of all agents → a rollout of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clusterenv.adapters.pettingzoo_policies import part_of, state_of
from clusterenv.arrays import Array
from clusterenv.rollout import AnyFragment, Episodes, Finals

_SAID = ("alive", "rewards", "terminations", "truncations", "returns")


def by_agent(rollout: AnyFragment) -> dict[str, AnyFragment]:
    """Split a rollout or fragment into one per agent, as if each agent were alone in its env.

    An agent's rollout has its own observations, actions, rewards, ``terminated`` and
    ``truncated``, and the outputs, values and distribution of its policy, so functions such as
    :func:`clusterenv.gae` work for each agent. Observations, actions and outputs are not copied.

    ``infos["alive"]`` is a mask [T, n] of the rows in which the agent acted. All other rows are
    padding between the end of the agent and the end of the episode (or between the episode's
    beginning and an agent that joins later): leave them out of the loss. They end where the
    episode ends, so nothing leaks from one episode into the next. ``episodes`` has the agent's
    returns, and the lengths of whole episodes.

    Args:
        rollout: Collected from envs in :class:`clusterenv.adapters.pettingzoo.PettingZooEnv`, with
            infos and before ``torch()``.

    Raises:
        TypeError: If the rollout has tensors.
        ValueError: If the rollout has no infos about agents.
    """
    rollout.refuse_tensors("by_agent")
    if not all(name in rollout.infos for name in _SAID[1:]):
        raise ValueError(
            "this rollout does not say what each agent got: wrap the envs in PettingZooEnv, and do "
            "not pass infos=False"
        )
    agents = enumerate(rollout.observations)
    return {agent: _rollout_of(agent, column, rollout) for column, agent in agents}


def _rollout_of(agent: str, column: int, rollout: AnyFragment) -> AnyFragment:
    said = {name: _said_to(agent, rollout.infos, name) for name in _SAID}
    terminated, truncated = _ends(rollout.terminated, rollout.truncated, said)
    outputs = part_of(agent, rollout.outputs)
    values = rollout.outputs.get("value")
    has_values = values is not None and np.ndim(values) == 3
    if has_values:
        outputs["value"] = rollout.outputs["value"][:, :, column]
    finals, episodes = rollout.finals, rollout.episodes
    return replace(
        rollout,
        observations=rollout.observations[agent],
        actions=rollout.actions[agent],
        rewards=said["rewards"],
        terminated=terminated,
        truncated=truncated,
        outputs=outputs,
        distribution=part_of(agent, rollout.distribution),
        last_values=_column_of(rollout.last_values, column) if has_values else None,
        state=state_of(agent, rollout.state),
        finals=Finals(
            finals.steps,
            finals.columns,
            finals.observations[agent],
            _column_of(finals.values, column) if has_values else None,
        ),
        episodes=Episodes(
            episodes.slots, said["returns"][finals.steps, finals.columns], episodes.lengths
        ),
        infos={"alive": said["alive"]},
    )


def _said_to(agent: str, infos: Mapping[str, Any], name: str) -> Array:
    """What the agent got in each step. For the last step of an episode, ``final_info`` has it."""
    said: Array = infos[name][agent]
    if "final_info" not in infos:
        return said
    return np.where(infos["_final_info"], infos["final_info"][name][agent], said)


def _ends(terminated: Array, truncated: Array, said: Mapping[str, Array]) -> tuple[Array, Array]:
    """Where the agent's own episodes ended: ``terminated`` and ``truncated``.

    If the env's episode ends and the agent has no flag set in that step, then either it left
    earlier, or a wrapper such as a time limit has ended the episode for all agents.
    """
    own_terminated, own_truncated, alive = (
        said["terminations"],
        said["truncations"],
        said["alive"],
    )
    unsaid = (terminated | truncated) & ~(own_terminated | own_truncated)
    return (
        own_terminated | unsaid & (terminated | ~alive),
        own_truncated | unsaid & truncated & alive,
    )


def _column_of(values: Array | None, column: int) -> Array | None:
    return None if values is None else values[:, column]
