"""Translates between envs, with one value per slot, and policies, with one row per slot."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete

from clusterenv.arrays import Array
from clusterenv.plain.spaces import join_leaves, leaves_of
from clusterenv.worker.rows import Outcome, fill

_WHAT_TO_CHECK = "check the policy's distribution and its output sizes"


class Translator:
    """Knows the spaces, and holds no state."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self._observation_space, self._action_space = observation_space, action_space
        self.leaves, self.action_leaves = leaves_of(observation_space), leaves_of(action_space)
        self.real_actions = [leaf for leaf in self.action_leaves if _is_real(leaf.dtype)]
        """The parts of an action that are real numbers."""
        self._is_plain = [leaf.path for leaf in self.leaves] == [()]
        for space, leaves in (
            (observation_space, self.leaves),
            (action_space, self.action_leaves),
        ):
            if not all(leaf.is_array for leaf in leaves):
                raise TypeError(
                    f"a policy on the workers needs spaces of arrays, and {space} has other parts: "
                    "use Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these, or "
                    "compute actions at the head and call step()"
                )

    def empty(self, *shape: int) -> list[Array]:
        """Arrays for observations, one per leaf, each [*shape, …]."""
        return [np.empty((*shape, *leaf.shape), leaf.dtype) for leaf in self.leaves]

    def put(self, targets: list[Array], outcome: Outcome) -> None:
        """Stack the observations of an outcome into ``targets``."""
        for leaf, array in zip(self.leaves, targets, strict=True):
            fill(array, outcome.column(leaf), leaf)

    def join(self, leaves: list[Array]) -> Any:
        """Leaves in the structure of the observation space, as a policy gets them."""
        return leaves[0] if self._is_plain else join_leaves(self._observation_space, leaves)

    def observe(self, outcome: Outcome, count: int, on_device: bool) -> Any:
        """The observations of an outcome, as a policy gets them; it may act on a device."""
        if on_device and outcome.on_device is not None:
            return outcome.on_device
        leaves = self.empty(count)
        self.put(leaves, outcome)
        return self.join(leaves)

    def stack(self, observations: list[Any]) -> list[Array]:
        """Single observations as one array per leaf."""
        columns = self.empty(len(observations))
        if observations:
            self.put(columns, Outcome(observations, (), (), ()))
        return columns

    def rows_of(self, actions: Any) -> Any:
        """A policy's actions, one per slot, as envs get them."""
        if not self.action_leaves[0].path:
            return actions
        columns = [leaf.of(actions) for leaf in self.action_leaves]
        return [join_leaves(self._action_space, list(row)) for row in zip(*columns, strict=True)]

    def check(self, actions: Any, count: int) -> None:
        """ValueError if a policy's actions do not fit the action space."""
        for leaf in self.action_leaves:
            try:
                array = np.asarray(leaf.of(actions))
            except (IndexError, KeyError, TypeError) as error:
                raise ValueError(
                    f"the policy does not fit the action space {self._action_space}: its actions "
                    f"have no {leaf.path}; {_WHAT_TO_CHECK}"
                ) from error
            expected = (count, *leaf.shape)
            if array.shape != expected or not _fits(array, leaf.dtype):
                raise ValueError(
                    f"the policy does not fit the action space {self._action_space}: its actions "
                    f"are {array.dtype} of shape {array.shape}, expected {leaf.dtype} of shape "
                    f"{expected}; {_WHAT_TO_CHECK}"
                )

    def check_range(self, columns: list[Array]) -> None:
        """ValueError if actions are out of range; ``columns`` has [T, n, …] of each leaf."""
        for leaf, array in zip(self.action_leaves, columns, strict=True):
            match leaf.of(self._action_space):
                case Discrete(start=low, n=n):
                    high = low + n - 1
                case MultiDiscrete(start=low, nvec=nvec):
                    high = low + nvec - 1
                case MultiBinary():
                    low, high = 0, 1
                case _:
                    continue
            if (array < low).any() or (array > high).any():
                raise ValueError(
                    f"the policy does not fit the action space {self._action_space}: its actions "
                    f"are between {array.min()} and {array.max()}; {_WHAT_TO_CHECK}"
                )


def _is_real(dtype: np.dtype[Any] | None) -> bool:
    return dtype is not None and dtype.kind == "f"


def _fits(array: Array, dtype: np.dtype[Any] | None) -> bool:
    return dtype is not None and np.can_cast(array.dtype, dtype, "same_kind")
