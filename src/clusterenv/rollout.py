"""Fragment and Rollout: what a policy did, as arrays by slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from gymnasium import Space

from clusterenv.arrays import Array
from clusterenv.plain.spaces import join_leaves, leaves_of
from clusterenv.protocol.fragments import FragmentPart, join_arrays


@dataclass(frozen=True)
class Finals:
    """The true last observation of each episode that ended: a row per episode."""

    steps: Array
    """The step (0 … T - 1) at which it ended …"""
    columns: Array
    """… and its column in the arrays [T, n, …]."""
    observations: Any
    values: Array | None
    """The policy's value of that observation, where the policy has a value."""


@dataclass(frozen=True)
class Episodes:
    """The episodes that ended: a row per episode."""

    slots: Array
    returns: Array
    lengths: Array


@dataclass(frozen=True)
class Fragment:
    """T consecutive steps of some slots. The arrays are the caller's own.

    Every row is a real transition: an episode that ends is reset within the step, so that
    ``observations[t + 1]`` is then the first of the next episode, and its true last observation
    is in ``finals``.
    """

    slots: Array
    """[n]: which slots the columns are."""
    versions: Array
    """[T, n]: the version of the policy that acted."""
    observations: Any
    """[T+1, n, …], in the structure of the observation space."""
    actions: Any
    """[T, n, …], in the structure of the action space."""
    rewards: Array
    terminated: Array
    truncated: Array
    outputs: dict[str, Array]
    """The policy's named outputs, [T, n] each: ``log_prob``, ``value`` …"""
    distribution: dict[str, Array]
    """[T, n, …]: the parameters of what each action was drawn from, such as ``logits``."""
    last_values: Array | None
    """[n]: the value of ``observations[T]``, where the policy has a value."""
    state: Any
    """[n, …]: the recurrent state before the first step, or None."""
    finals: Finals
    episodes: Episodes

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.rewards)

    @cached_property
    def next_observations(self) -> Any:
        """[T, n, …]: what each action led to; the true last observation where an episode ended."""

        def shift(array: Array, finals: Array) -> Array:
            shifted = array[1:].copy()
            shifted[self.finals.steps, self.finals.columns] = finals
            return shifted

        return map_structure(shift, self.observations, self.finals.observations)

    @cached_property
    def next_values(self) -> Array:
        """[T, n]: the value of ``next_observations``; 0 where the episode terminated."""
        if "value" not in self.outputs or self.last_values is None or self.finals.values is None:
            raise ValueError(
                "this policy has no value function on the workers: compute values of "
                "`next_observations` here, or give the policy a `value`"
            )
        shifted = np.concatenate([self.outputs["value"][1:], self.last_values[None]])
        shifted[self.finals.steps, self.finals.columns] = self.finals.values
        return np.where(self.terminated, 0.0, shifted)

    def flatten(self, tree: Any) -> Any:
        """Arrays [T, n, …] (or a structure of them) as [T·n, …], without a copy."""
        return map_structure(lambda array: array.reshape(-1, *array.shape[2:]), tree)

    def minibatches(self, size: int, rng: np.random.Generator) -> Iterator[Array]:
        """Indices into flattened arrays: each row once, in random order, ``size`` at a time."""
        order = rng.permutation(self.rewards.size)
        for start in range(0, len(order), size):
            yield order[start : start + size]


@dataclass(frozen=True)
class Rollout(Fragment):
    """T steps of all slots: column *i* is slot *i* (with ``wait_num``, slot ``slots[i]``)."""


AnyFragment = TypeVar("AnyFragment", bound=Fragment)


def assemble(
    kind: type[AnyFragment],
    parts: Sequence[FragmentPart],
    observation_space: Space[Any],
    action_space: Space[Any],
) -> AnyFragment:
    """One Fragment or Rollout (``kind``) from parts whose slots ascend, which are released."""
    try:
        return _assemble(kind, parts, observation_space, action_space)
    finally:
        # Even if Ctrl-C comes between: else the worker would never get this room back.
        for part in parts:
            part.release()


def _assemble(
    kind: type[AnyFragment],
    parts: Sequence[FragmentPart],
    observation_space: Space[Any],
    action_space: Space[Any],
) -> AnyFragment:
    arrays = [part.arrays for part in parts]
    slots = np.concatenate([part.slots for part in parts])

    def join(name: str) -> Array:
        return join_arrays(name, [named[name] for named in arrays])

    def join_all(prefix: str) -> dict[str, Array]:
        names = [name for name in arrays[0] if name.startswith(prefix)]
        return {name.removeprefix(prefix): join(name) for name in names}

    observation_leaves = range(len(leaves_of(observation_space)))
    action_leaves = range(len(leaves_of(action_space)))
    has_values = "last_values" in arrays[0]
    state = join_all("state/")
    rewards = join("rewards")
    versions = np.repeat([part.version for part in parts], [len(part.slots) for part in parts])
    return kind(
        slots=slots,
        versions=np.tile(versions, (len(rewards), 1)),
        observations=join_leaves(
            observation_space, [join(f"observations/{leaf}") for leaf in observation_leaves]
        ),
        actions=join_leaves(action_space, [join(f"actions/{leaf}") for leaf in action_leaves]),
        rewards=rewards,
        terminated=join("terminated"),
        truncated=join("truncated"),
        outputs=join_all("outputs/"),
        distribution=join_all("distribution/"),
        last_values=join("last_values") if has_values else None,
        state=state.get("", state or None),
        finals=Finals(
            join("finals/steps"),
            np.searchsorted(slots, join("finals/slots")),
            join_leaves(observation_space, [join(f"finals/{leaf}") for leaf in observation_leaves]),
            join("finals/values") if has_values else None,
        ),
        episodes=Episodes(join("finals/slots"), join("finals/returns"), join("finals/lengths")),
    )


def episodes_by_slot(results: Sequence[Sequence[tuple[float, int]]]) -> Episodes:
    """The episodes that each slot played, one slot after the other."""
    rows = [(slot, *episode) for slot, played in enumerate(results) for episode in played]
    slots, returns, lengths = zip(*rows, strict=True)
    return Episodes(np.array(slots), np.array(returns), np.array(lengths))


def map_structure(function: Any, tree: Any, *others: Any) -> Any:
    """``function`` of each array in ``tree`` (and of those in the same place of ``others``)."""
    if isinstance(tree, dict):
        return {key: map_structure(function, tree[key], *(o[key] for o in others)) for key in tree}
    if isinstance(tree, tuple):
        return tuple(map_structure(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)
