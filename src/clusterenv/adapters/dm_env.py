"""A dm_env.Environment as a Gymnasium env. The only file that imports dm_env."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

try:
    import dm_env
    from dm_env import specs
except ImportError as error:
    raise ImportError("DmEnvironment needs dm_env: pip install 'clusterenv[dm-env]'") from error


class DmEnvironment(gymnasium.Env[Any, Any]):
    """A Gymnasium env that is a ``dm_env.Environment`` inside.

    An episode that ends with a discount of 0 has terminated, and one that ends with any other
    discount was truncated. A discount that does not follow from these two, such as 0.9 within an
    episode, is in ``info["discount"]``.

    Specs become spaces: ``DiscreteArray`` is a ``Discrete``, any other array of numbers a ``Box``,
    a dict a ``Dict``, and a list or tuple a ``Tuple``. Strings have no space here.

    Args:
        environment: What to wrap. It belongs to this object, which closes it.
        seed_with: ``seed_with(environment, seed)`` seeds it, at a ``reset`` with a seed. By default
            the ``numpy.random.RandomState`` in ``environment.task.random`` (dm_control's suite) or
            ``environment.random_state`` (its composer) is seeded; where there is neither, a
            warning says that the seed has no effect.

    Attributes:
        environment: The ``dm_env.Environment``.

    Example:
        >>> make = lambda: DmEnvironment(suite.load("cartpole", "swingup"))  # doctest: +SKIP
        >>> envs = ClusterEnv(make, num_envs=64)  # doctest: +SKIP
    """

    def __init__(
        self,
        environment: dm_env.Environment,
        seed_with: Callable[[dm_env.Environment, int], object] | None = None,
    ) -> None:
        self.environment, self._seed_with = environment, seed_with or _seed_random_state
        _check_single_number("reward", environment.reward_spec())
        _check_single_number("discount", environment.discount_spec())
        self._action_spec = environment.action_spec()
        self.observation_space = space_of(environment.observation_spec())
        self.action_space = space_of(self._action_spec)
        self._is_over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; ``options`` have no counterpart in dm_env."""
        super().reset(seed=seed)
        if options:
            raise ValueError(f"a dm_env.Environment takes no options, got {sorted(options)}")
        if seed is not None:
            self._seed_with(self.environment, seed)
        observation = self.environment.reset().observation
        self._is_over = False
        return _to_space(observation, self.observation_space), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; dm_env itself would begin an episode if the last one is over."""
        if self._is_over:
            raise ResetNeeded("Cannot call `step` before calling `reset`: the episode is over")
        timestep = self.environment.step(_to_spec(action, self._action_spec))
        if timestep.first():
            raise RuntimeError(
                f"{type(self.environment).__name__}.step() began an episode although none had "
                "ended: it must return a LAST time step first"
            )
        reward, discount = (np.asarray(part).item() for part in timestep[1:3])
        self._is_over = timestep.last()
        terminated = self._is_over and discount == 0
        info = {} if discount == (not terminated) else {"discount": float(discount)}
        observation = _to_space(timestep.observation, self.observation_space)
        return observation, float(reward), terminated, self._is_over and not terminated, info

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()


def space_of(spec: Any) -> spaces.Space[Any]:
    """The Gymnasium space of a dm_env spec, or of a structure of specs."""
    match spec:
        case Mapping():
            return spaces.Dict({key: space_of(part) for key, part in spec.items()})
        case list() | tuple():
            return spaces.Tuple([space_of(part) for part in spec])
        case specs.DiscreteArray():
            return spaces.Discrete(spec.num_values)
        case specs.Array() if spec.dtype.kind in "biuf":
            low, high = _bounds_of(spec)
            return spaces.Box(low, high, spec.shape, spec.dtype.type)
    raise TypeError(
        f"there is no Gymnasium space for {spec!r}: specs must be arrays of numbers, or dicts, "
        "lists or tuples of these"
    )


def _bounds_of(spec: specs.Array) -> tuple[Any, Any]:
    if isinstance(spec, specs.BoundedArray):
        bounds = (spec.minimum, spec.maximum)
        low, high = (np.broadcast_to(bound, spec.shape).astype(spec.dtype) for bound in bounds)
        return low, high
    if spec.dtype.kind == "f":
        return -np.inf, np.inf
    if spec.dtype.kind == "b":
        return 0, 1
    return np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max


def _to_space(value: Any, space: spaces.Space[Any]) -> Any:
    """An observation in the structure and dtypes of ``space``; a copy, which nobody overwrites."""
    if isinstance(space, spaces.Dict):
        return {key: _to_space(value[key], part) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_to_space(v, part) for v, part in zip(value, space.spaces, strict=True))
    array = np.array(value, space.dtype)
    return array[()] if isinstance(space, spaces.Discrete) else array


def _to_spec(action: Any, spec: Any) -> Any:
    """An action in the structure and dtypes of ``spec``."""
    if isinstance(spec, Mapping):
        return {key: _to_spec(action[key], part) for key, part in spec.items()}
    if isinstance(spec, list | tuple):
        parts = [_to_spec(a, part) for a, part in zip(action, spec, strict=True)]
        return parts if isinstance(spec, list) else tuple(parts)
    return np.asarray(action, spec.dtype)[()]


def _check_single_number(name: str, spec: Any) -> None:
    if not isinstance(spec, specs.Array) or np.prod(spec.shape) != 1:
        raise ValueError(
            f"the {name} must be a single number, as in Gymnasium, but {name}_spec() is {spec!r}"
        )


def _seed_random_state(environment: Any, seed: int) -> None:
    task = getattr(environment, "task", None)
    for random in (getattr(task, "random", None), getattr(environment, "random_state", None)):
        if isinstance(random, np.random.RandomState):
            random.seed(seed % 2**32)
            return
    warnings.warn(
        f"seed={seed} has no effect: {type(environment).__name__} has a RandomState neither in "
        "task.random nor in random_state; pass seed_with= to DmEnvironment",
        stacklevel=3,
    )
