"""By name, an environment for every kind of observation and action that policies deal with."""

from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tests.environments.counting import Count
from tests.environments.sampling import SpaceEnv
from tests.environments.spaces import ALL_SPACES

COMPOSITE_ACTIONS = {
    "dict": Dict(kind=Discrete(3), push=Box(-1.0, 1.0, (2,), np.float32)),
    "tuple": Tuple((Discrete(3), Tuple((Box(-1.0, 1.0, (2,), np.float32),)))),
}
ENVS = {
    "CartPole": partial(gym.make, "CartPole-v1"),
    "short CartPole": partial(gym.make, "CartPole-v1", max_episode_steps=12),
    "Pendulum": partial(gym.make, "Pendulum-v1", max_episode_steps=9),
    "dict observations": partial(SpaceEnv, ALL_SPACES["dict"], Discrete(3), info_kinds=()),
    "tuple observations": partial(SpaceEnv, ALL_SPACES["tuple"], Discrete(3), info_kinds=()),
    "count": Count,
    "dict actions": partial(Count, action_space=COMPOSITE_ACTIONS["dict"]),
    "tuple actions": partial(Count, action_space=COMPOSITE_ACTIONS["tuple"]),
    "several discrete actions": partial(Count, action_space=MultiDiscrete([3, 2, 4])),
    "binary actions": partial(Count, action_space=MultiBinary(4)),
}
