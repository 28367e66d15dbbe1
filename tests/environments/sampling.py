"""An environment for any space: it samples, and returns every kind of info and reward."""

import zlib
from copy import deepcopy
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
from gymnasium.spaces import GraphInstance


@dataclass(frozen=True)
class Note:
    """An info value that plain data cannot express."""

    text: str


INFO_KINDS = {
    "int": lambda rng: int(rng.integers(-9, 9)),
    "float": lambda rng: float(rng.random()),
    "nan": lambda rng: float("nan"),
    "bool": lambda rng: bool(rng.integers(2)),
    "float32": lambda rng: np.float32(rng.random()),
    "int16": lambda rng: np.int16(rng.integers(99)),
    "numpy_bool": lambda rng: np.bool_(rng.integers(2)),
    "complex": lambda rng: complex(rng.random(), 1.0),
    "array": lambda rng: rng.random(3),
    "array_0d": lambda rng: np.array(rng.random()),
    "array_transposed": lambda rng: rng.integers(9, size=(2, 3)).T,
    "array_of_text": lambda rng: np.array(["up", "down"]),
    "array_of_objects": lambda rng: np.array([None, "x", 3], dtype=object),
    "text": lambda rng: f"étape {rng.integers(9)} ☃",
    "none": lambda rng: None,
    "bytes": lambda rng: rng.bytes(3),
    "list": lambda rng: [1, "two", None, {3: 4.0}, [np.int8(5)]],
    "tuple": lambda rng: (1, (2.0, True), rng.random(2)),
    "set": lambda rng: {1, 2},
    "object": lambda rng: Note(f"note {rng.integers(9)}"),
    "graph": lambda rng: GraphInstance(rng.random((2, 1)), None, None),
    "nested": lambda rng: {
        "depth": int(rng.integers(9)),
        **({"inner": {"array": rng.random(2), "text": "deep"}} if rng.random() < 0.5 else {}),
    },
    "mixed": lambda rng: float(rng.random()) + 3 if rng.random() < 0.5 else int(rng.integers(9)),
}

REWARD_KINDS = (float, np.float32, lambda value: int(10 * value), np.array)


def describe(value):
    """Text that tells apart values of different type, dtype, shape or content."""
    match value:
        case np.ndarray():
            return f"array({value.dtype}, {value.shape}, {zlib.crc32(value.tobytes())})"
        case dict():
            return f"dict({[(key, describe(value[key])) for key in sorted(value)]})"
        case list() | tuple():
            return f"{type(value).__name__}({[describe(item) for item in value]})"
        case _:
            return f"{type(value).__name__}({value!r})"


class SpaceEnv(gym.Env):
    """Samples its observations, and returns every kind of info, reward and episode end.

    The action has no effect, but its exact type and value come back in `info["action"]`.
    """

    def __init__(self, space, action_space=None, episode_length=12, info_kinds=tuple(INFO_KINDS)):
        self.observation_space = deepcopy(space)
        self.action_space = deepcopy(space if action_space is None else action_space)
        self.episode_length = episode_length
        self.info_kinds = info_kinds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.age = 0
        return self.observation_space.sample(), self._infos() | {"options": repr(options)}

    def step(self, action):
        self.age += 1
        rng = self.np_random
        reward = REWARD_KINDS[self.age % len(REWARD_KINDS)](rng.random())
        terminated = rng.random() < 0.1
        truncated = np.bool_(self.age >= self.episode_length)
        infos = self._infos() | {"action": describe(action)}
        return self.observation_space.sample(), reward, terminated, truncated, infos

    def _infos(self):
        rng = self.np_random
        return {kind: INFO_KINDS[kind](rng) for kind in self.info_kinds if rng.random() < 0.3}
