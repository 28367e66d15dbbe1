"""An env that counts, and a policy whose actions can be foretold: every row can be checked.

The observation says who the env is (its seed), how many steps it has made and what the last action
was. The policy acts with the parity of who + steps + version, so that a row also shows which
version acted.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import clusterenv
from clusterenv import NumpyPolicy
from clusterenv.arrays import Array
from clusterenv.distributions import Categorical

WIDTH = 8
CERTAIN = 50.0
"""The logit of the action that is sure to be taken."""


class Tally(gymnasium.Env[Any, Any]):
    """Says who it is, how many steps it has made and what it was told last."""

    observation_space = Box(-np.inf, np.inf, (WIDTH,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._who, self._age = float(seed or 0), 0
        return self._observe(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._age += 1
        return self._observe(action), float(self._age), False, False, {}

    def _observe(self, action: Any) -> Any:
        return np.array([self._who, self._age, action, 0, 0, 0, 0, 0], np.float32)


def parity(weights: Any, observations: Any) -> Categorical:
    """Surely the parity of who + steps + version, which is the first weight."""
    odd = (observations[:, 0] + observations[:, 1] + weights["version"][0]) % 2
    return Categorical(CERTAIN * np.stack([1 - odd, odd], axis=1).astype(np.float32))


class CountedPolicy:
    """A policy that knows its version, with weights of any size."""

    def __init__(self, num_weights: int) -> None:
        self._version = np.ones(1, np.float32)
        ballast = np.zeros(num_weights, np.float32)
        self.policy = NumpyPolicy(parity, {"version": self._version, "ballast": ballast})

    def advance(self) -> None:
        """The next version."""
        self._version += 1


class Rows:
    """Counts rows that are lost, doubled, in another's place or by another version."""

    def __init__(self, num_envs: int) -> None:
        self._ages = np.zeros(num_envs)
        self.checked = self.wrong = 0

    def restart(self) -> None:
        """All envs were reset with ``seed=0``."""
        self._ages[:] = 0

    def check_fragment(self, fragment: clusterenv.Fragment) -> None:
        """Take a fragment: the next steps of its slots."""
        seen, slots, steps = fragment.observations, fragment.slots, len(fragment.rewards)
        ages = self._ages[slots] + np.arange(steps + 1)[:, None]
        actions = (slots + ages[:-1] + fragment.versions) % 2
        wrong = (
            (seen[:-1, :, 0] != slots)
            | (seen[:-1, :, 1] != ages[:-1])
            | (seen[1:, :, 1] != ages[1:])
            | (seen[1:, :, 2] != actions)
            | (fragment.actions != actions)
            | (fragment.rewards != ages[1:])
            | fragment.terminated
            | fragment.truncated
        )
        self._count(wrong)
        self._ages[slots] += steps

    def check_step(self, actions: Array, results: tuple[Any, Array, Array, Array, Any]) -> None:
        """Take a step of all slots with these actions."""
        seen, rewards, terminated, truncated, _ = results
        self._ages += 1
        wrong = (
            (seen[:, 0] != np.arange(len(seen)))
            | (seen[:, 1] != self._ages)
            | (seen[:, 2] != actions)
            | (rewards != self._ages)
            | terminated
            | truncated
        )
        self._count(wrong)

    def _count(self, wrong: Array) -> None:
        self.checked += wrong.size
        self.wrong += int(wrong.sum())
