"""Envs that observe images: a dot that walks, with the last frames stacked."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FrameStackObservation

SIZE = 40


class Dot(gym.Env):
    """A dot on noise that stays the same for an episode; an episode lasts 7 to 18 steps."""

    observation_space = Box(0, 255, (SIZE, SIZE), np.uint8)
    action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._ground = self.np_random.integers(0, 4, (SIZE, SIZE), dtype=np.uint8)
        self._at, self._left = self.np_random.integers(0, SIZE, 2), self.np_random.integers(7, 19)
        return self._image(), {}

    def step(self, action):
        self._at = (self._at + [(0, 1), (1, 0), (0, -1), (-1, 0)][int(action)]) % SIZE
        self._left -= 1
        return self._image(), float(self._at[0]), bool(self._left == 0), False, {}

    def _image(self):
        image = self._ground.copy()
        image[tuple(self._at)] = 255
        return image


def stacked_dot():
    """Frames along the first axis."""
    return FrameStackObservation(Dot(), 4)


def stacked_dot_last():
    """Frames along the last axis, as some libraries have them."""
    space = Box(0, 255, (SIZE, SIZE, 4), np.uint8)
    return gym.wrappers.TransformObservation(
        stacked_dot(), lambda image: np.moveaxis(image, 0, -1), space
    )
