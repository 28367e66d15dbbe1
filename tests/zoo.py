"""Small deterministic environments: one for any space, plus a few with bad habits."""

import os
import time
import zlib
from copy import deepcopy
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, GraphInstance


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


class CounterEnv(gym.Env):
    """Counts its steps in one observation buffer; `reuse=True` hands out that very buffer."""

    observation_space = Box(0.0, 1e6, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, reuse, episode_length=3):
        self.reuse = reuse
        self.episode_length = episode_length
        self.buffer = np.zeros(3, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        self.buffer[:] = self.np_random.integers(1000)
        return self._observation(), {}

    def step(self, action):
        self.age += 1
        self.buffer += 1
        info = {"buffer": self._observation()}
        return self._observation(), 1.0, self.age == self.episode_length, False, info

    def _observation(self):
        return self.buffer if self.reuse else self.buffer.copy()


class LooseEnv(gym.Env):
    """Returns observations that fit its space only after a cast, as many real envs do."""

    observation_space = Dict(number=Discrete(9), vector=Box(-9.0, 9.0, (2,), np.float32))
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action):
        return self._observation(), 1, bool(self.np_random.random() < 0.2), False, {}

    def _observation(self):
        return {"vector": list(self.np_random.random(2)), "number": int(self.np_random.integers(9))}


class MisfitEnv(gym.Env):
    """Promises three numbers and returns `size` of them."""

    observation_space = Box(0.0, 9.0, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, size):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(self.size, np.float32), {}


class FailingEnv(gym.Env):
    """Raises ValueError on `reset(seed=13)`, and on action 1."""

    observation_space = Discrete(3)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed == 13:
            raise ValueError("no luck with seed 13")
        return 0, {}

    def step(self, action):
        if action == 1:
            raise ValueError("action 1 is broken")
        return 1, 0.0, False, False, {}


class GateEnv(gym.Env):
    """One of its verbs (`reset`, `step`, `knock`) waits until the file `gate` exists."""

    observation_space = Box(0.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, gate, verb):
        self.gate = gate
        self.verb = verb

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._wait("reset")
        return self.np_random.random(2).astype(np.float32), {}

    def step(self, action):
        self._wait("step")
        return self.np_random.random(2).astype(np.float32), 1.0, False, False, {}

    def knock(self):
        self._wait("knock")
        return "open"

    def _wait(self, verb):
        while verb == self.verb and not os.path.exists(self.gate):
            time.sleep(0.005)
