"""Envs with policies for ``same_rollouts.py``: small, of every kind, with episodes that end.

Weights come from NumPy's generator, so that both sides begin with the same ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from array_policies import policy_for, value_of
from either_side import public
from gymnasium.spaces import Box, Dict, Discrete

Acted = public("Acted", "policies.base")
Categorical = public("Categorical", "distributions")
DiagonalGaussian = public("DiagonalGaussian", "distributions")
NumpyPolicy = public("NumpyPolicy", "policies.numpy")
MEMORY = 5


class DictEnv(gym.Env[dict[str, Any], int]):
    """Observes an image, a vector and a number; episodes terminate by chance, or after 17 steps."""

    observation_space = Dict(
        image=Box(0, 255, (4, 4), np.uint8),
        inner=Dict(kind=Discrete(5), speed=Box(-np.inf, np.inf, (3,), np.float32)),
    )
    action_space = Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin with a random speed."""
        super().reset(seed=seed)
        self._age = 0
        self._speed = self.np_random.normal(size=3).astype(np.float32)
        return self._observation(), {"age": self._age}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """The action changes the speed."""
        self._age += 1
        self._speed += np.float32(0.1) * (int(action) - 1)
        terminated = bool(self.np_random.random() < 0.05)
        info = {"age": self._age, "speed": self._speed.copy()}
        return self._observation(), float(self._speed.sum()), terminated, self._age >= 17, info

    def _observation(self) -> dict[str, Any]:
        image = self.np_random.integers(256, size=(4, 4), dtype=np.uint8)
        return {"image": image, "inner": {"kind": self._age % 5, "speed": self._speed.copy()}}


def _mlp(space: Any) -> Any:
    return policy_for(space, 4 if space.shape == (8,) else 2)


def _gaussian(space: Any) -> Any:
    weights = {
        "mean": np.zeros((1, *space.shape), np.float32),
        "log_std": np.zeros(1, np.float32),
        "critic": np.zeros((1, *space.shape), np.float32),
    }
    return NumpyPolicy(_gaussian_of, weights, value_of)


def _gaussian_of(weights: Any, observations: Any) -> Any:
    mean = observations @ weights["mean"].T
    return DiagonalGaussian(mean, np.broadcast_to(weights["log_std"], mean.shape).copy())


def _of_dict(space: Any) -> Any:
    return NumpyPolicy(
        _categorical_of_dict, {"actor": np.zeros((3, 20)), "critic": np.zeros(20)}, _value_of_dict
    )


def _flat(observations: Any) -> np.ndarray:
    inner = observations["inner"]
    image = observations["image"].reshape(len(inner["kind"]), -1) / 255
    return np.concatenate([image, inner["kind"][:, None], inner["speed"]], axis=1)


def _categorical_of_dict(weights: Any, observations: Any) -> Any:
    return Categorical(_flat(observations) @ weights["actor"].T)


def _value_of_dict(weights: Any, observations: Any) -> np.ndarray:
    return np.asarray(_flat(observations) @ weights["critic"])


class RecurrentPolicy:
    """What it has seen before tells what it does next."""

    def __init__(self, inputs: int, num_actions: int) -> None:
        sizes = {"in": (MEMORY, inputs), "memory": (MEMORY, MEMORY), "out": (num_actions, MEMORY)}
        self._weights = {name: np.zeros(size) for name, size in sizes.items()}

    def act(self, observations: Any, state: Any, rng: Any) -> Any:
        """Draws from the distribution, and remembers."""
        memory = self._next(observations, state)
        distribution = Categorical(memory["seen"] @ self._weights["out"].T)
        actions = distribution.mode() if rng is None else distribution.sample(rng)
        outputs = {"log_prob": distribution.log_prob(actions), "value": memory["seen"].sum(axis=1)}
        return Acted(actions, distribution, outputs, memory)

    def _next(self, observations: Any, state: Any) -> dict[str, np.ndarray]:
        rows = len(observations)
        if state is None:
            state = {"seen": np.zeros((rows, MEMORY)), "age": np.zeros(rows)}
        seen = observations @ self._weights["in"].T + state["seen"] @ self._weights["memory"].T
        return {"seen": np.tanh(seen), "age": state["age"] + 1}

    def distribution(self, observations: Any, state: Any) -> Any:
        """What :meth:`act` draws from."""
        return Categorical(self._next(observations, state)["seen"] @ self._weights["out"].T)

    def weights(self) -> dict[str, np.ndarray]:
        """Named arrays."""
        return self._weights

    def load(self, weights: Any) -> None:
        """Take these."""
        self._weights = dict(weights)


def _recurrent(space: Any) -> RecurrentPolicy:
    return RecurrentPolicy(space.shape[0], 2)


def _torch_mlp(space: Any) -> Any:
    from networks import make_network

    network = make_network("MLP 64x64", space.shape, 2)
    return public("TorchPolicy", "policies.torch")(network, _torch_distribution_of)


def _torch_distribution_of(module: Any, observations: Any) -> tuple[Any, Any]:
    from torch.distributions import Categorical

    logits, values = module(observations)
    return Categorical(logits=logits), values


def set_weights(policy: Any, seed: int) -> None:
    """Other weights in the arrays that the policy has; a torch module's arrays are its tensors."""
    rng = np.random.default_rng(seed)
    for array in policy.weights().values():
        array[...] = rng.normal(0, 0.3, array.shape)


@dataclass(frozen=True)
class World:
    """An env, and the policies that act in it."""

    make: Callable[[], gym.Env[Any, Any]]
    policies: dict[str, Callable[[Any], Any]]
    """Name → a policy for the observation space of one env."""


WORLDS = {
    "CartPole": World(
        partial(gym.make, "CartPole-v1", max_episode_steps=30),
        {"MLP": _mlp, "recurrent": _recurrent, "TorchPolicy": _torch_mlp},
    ),
    "LunarLander": World(partial(gym.make, "LunarLander-v3", max_episode_steps=75), {"MLP": _mlp}),
    "Pendulum": World(
        partial(gym.make, "Pendulum-v1", max_episode_steps=40), {"Gaussian": _gaussian}
    ),
    "Dict observations": World(DictEnv, {"Categorical": _of_dict}),
}
