"""Fragment and Rollout: what a policy did, as arrays by slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space

from clusterenv.wire.codec import Array
from clusterenv.wire.spaces import join_leaves, leaves_of


@dataclass(frozen=True)
class Fragment:
    """T consecutive steps of one worker's slots, as named arrays of shape [T, n, …].

    ``observations/0`` … have T+1 steps, one array per leaf of the observation space. Every row is
    a real transition: an episode that ends is reset within the step, and its true last
    observation is in the table ``finals/steps``, ``finals/slots``, ``finals/0`` …
    """

    slots: tuple[int, ...]
    version: int
    """The version of the policy that acted, the same for the whole fragment."""
    arrays: dict[str, Array]


@dataclass(frozen=True)
class Finals:
    """The true last observations of the episodes that ended: a row per episode."""

    steps: Array
    slots: Array
    observations: Any


@dataclass(frozen=True)
class Rollout:
    """T steps of all N slots, by slot. The arrays are the caller's own."""

    observations: Any
    """[T+1, N, …], in the structure of the observation space."""
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    outputs: dict[str, Array]
    """The policy's named outputs, [T, N] each: ``log_prob`` …"""
    versions: Array
    """[T, N]: the version that acted."""
    finals: Finals


def assemble(fragments: Sequence[Fragment], num_envs: int, space: Space[Any]) -> Rollout:
    """One rollout from the fragments of all slots."""

    def column(name: str) -> Array:
        return _by_slot([(f.slots, f.arrays[name]) for f in fragments], num_envs)

    def table(name: str) -> Array:
        return np.concatenate([fragment.arrays[name] for fragment in fragments])

    leaves = range(len(leaves_of(space)))
    rewards = column("rewards")
    versions = np.empty(rewards.shape, np.int64)
    for fragment in fragments:
        versions[:, list(fragment.slots)] = fragment.version
    names = [name for name in fragments[0].arrays if name.startswith("outputs/")]
    return Rollout(
        observations=join_leaves(space, [column(f"observations/{leaf}") for leaf in leaves]),
        actions=column("actions"),
        rewards=rewards,
        terminated=column("terminated"),
        truncated=column("truncated"),
        outputs={name.removeprefix("outputs/"): column(name) for name in names},
        versions=versions,
        finals=Finals(
            table("finals/steps"),
            table("finals/slots"),
            join_leaves(space, [table(f"finals/{leaf}") for leaf in leaves]),
        ),
    )


def _by_slot(parts: Sequence[tuple[Sequence[int], Array]], num_envs: int) -> Array:
    first = parts[0][1]
    joined = np.empty((first.shape[0], num_envs, *first.shape[2:]), first.dtype)
    for slots, array in parts:
        joined[:, list(slots)] = array
    return joined
