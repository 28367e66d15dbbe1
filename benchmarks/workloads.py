"""The environments that the benchmarks step, and the actions that they are given.

Every system under measurement builds its environments with the same ``Workload.make``, so that all
carry the same wrappers, and receives actions drawn beforehand, so that sampling costs nobody.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

ACTION_ROWS = 512


class NullEnv(gym.Env[np.ndarray, int]):
    """An environment whose step does nothing: what is left to measure is the system around it."""

    def __init__(self, observation_size: int, num_actions: int) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (observation_size,), np.float32)
        self.action_space = gym.spaces.Discrete(num_actions)
        self._observation = np.zeros(observation_size, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the one observation there is."""
        return self._observation, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Return the one observation there is; the episode never ends."""
        return self._observation, 0.0, False, False, {}


def make_pong() -> gym.Env[Any, Any]:
    """ALE Pong with the standard preprocessing: 4 stacked grey frames of 84x84, every 4th frame."""
    import ale_py
    import cv2

    cv2.setNumThreads(1)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, frame_skip=4, screen_size=84, grayscale_obs=True)
    return gym.wrappers.FrameStackObservation(env, 4)


@dataclass(frozen=True)
class Workload:
    """One environment to measure."""

    make: Callable[[], gym.Env[Any, Any]]
    num_actions: int
    own_module: str
    """Importing it imports the packages that the environment needs besides Gymnasium."""
    null_twin: Callable[[], gym.Env[Any, Any]] | None = None
    """An environment with the same spaces whose step does nothing."""
    process_mb: int = 25
    """Memory, generously, of one more process that runs one such env."""


WORKLOADS = {
    "CartPole-v1": Workload(
        make=partial(gym.make, "CartPole-v1"),
        num_actions=2,
        own_module="gymnasium.envs.classic_control.cartpole",
        null_twin=partial(NullEnv, 4, 2),
    ),
    "LunarLander-v3": Workload(
        make=partial(gym.make, "LunarLander-v3"),
        num_actions=4,
        own_module="gymnasium.envs.box2d.lunar_lander",
        null_twin=partial(NullEnv, 8, 4),
    ),
    "Pong": Workload(make=make_pong, num_actions=6, own_module="ale_py"),
}


def predrawn_actions(num_actions: int, num_envs: int) -> list[np.ndarray]:
    """Rows of random actions, one action per env; the same rows for every system."""
    actions = np.random.default_rng(0).integers(num_actions, size=(ACTION_ROWS, num_envs))
    return list(actions)
