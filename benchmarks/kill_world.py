"""Envs whose every observation says where it comes from, and a policy whose every action does.

They are as cheap as envs can be, so that a benchmark spends its time on what happens around them.
"""

import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from clusterenv import current_slot
from clusterenv.policies.base import Acted

NUM_ACTIONS = 8
SAYS_SOMETHING_EVERY = 3
"""Of so many steps one has an info: such an answer takes another way than one without."""


class Position(NamedTuple):
    """What an observation says."""

    slot: int
    pid: int
    born: int
    """When its env was built, in nanoseconds of the monotonic clock: no two have the same."""
    seed: int
    episode: int
    step: int

    @property
    def is_last(self) -> bool:
        """Whether the episode ends here."""
        return self.step == 3 + (self.seed + self.episode) % 6

    def after(self) -> "Position":
        """Where the next step of the same episode leads."""
        return self._replace(step=self.step + 1)

    def next_episode(self) -> "Position":
        """Where an episode begins that follows this one by itself."""
        return self._replace(episode=self.episode + 1, step=0)

    def reward(self, action: int) -> float:
        """For the step that led here with this action."""
        return float(self.born % 997 + 100 * self.episode + 10 * self.step) + action / 16


class Diary(gym.Env[Any, Any]):
    """An env that tells of itself; sometimes it takes its process down with it.

    Args:
        crash_share: The share of steps that end the process, without a word.
    """

    observation_space = Box(0.0, 2.0**63, (len(Position._fields),), np.float64)
    action_space = Discrete(NUM_ACTIONS)

    def __init__(self, crash_share: float = 0.0) -> None:
        # What a float64 holds exactly.
        born = time.monotonic_ns() % 2**53
        self._at = Position(current_slot(), os.getpid(), born, 0, 0, 0)
        self._crash_share, self._chance = crash_share, np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin another episode."""
        seed = self._at.seed if seed is None else seed
        self._at = self._at.next_episode()._replace(seed=seed)
        return np.array(self._at, np.float64), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step further, or the end."""
        if self._crash_share and self._chance.random() < self._crash_share:
            os._exit(3)
        self._at = self._at.after()
        info = {} if self._at.step % SAYS_SOMETHING_EVERY else {"at": self._at.step}
        observation = np.array(self._at, np.float64)
        return observation, self._at.reward(int(action)), self._at.is_last, False, info


class ShiftPolicy:
    """Its action follows from the step and from its only weight."""

    def __init__(self) -> None:
        self.shift = np.zeros(1, np.int64)

    def weights(self) -> Mapping[str, Any]:
        """The shift."""
        return {"shift": self.shift}

    def load(self, weights: Mapping[str, Any]) -> None:
        """Take another shift."""
        self.shift = np.asarray(weights["shift"])

    def act(self, observations: Any, state: Any, rng: Any) -> Acted:
        """Actions that show which weights they come from."""
        return Acted(shifted(observations[:, -1], int(self.shift[0])))


def shifted(steps: Any, shift: Any) -> Any:
    """The actions at these steps of an episode."""
    return (np.asarray(steps).astype(np.int64) + shift) % NUM_ACTIONS
