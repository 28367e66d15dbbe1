"""Gymnasium spaces for envs that describe themselves in other words, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces


def own_space(env: Any, name: str, params: Any) -> Space[Any] | None:
    """The env's ``observation_space`` or ``action_space``, which are methods in gymnax."""
    own = getattr(env, name, None)
    if own is None or isinstance(own, Space):
        return own
    return _to_gymnasium(own(params) if callable(own) else own, name)


def action_space_of_size(env: Any) -> Space[Any] | None:
    """The space of Brax' envs, which say only how many numbers an action has."""
    size = getattr(env, "action_size", None)
    return None if size is None else spaces.Box(-1.0, 1.0, (int(size),), np.float32)


def space_like(observation: Any, where: str) -> Space[Any]:
    """A space that holds any array of these shapes and dtypes."""
    if isinstance(observation, Mapping):
        parts = {key: space_like(part, f"{where}[{key!r}]") for key, part in observation.items()}
        return spaces.Dict(parts)
    if isinstance(observation, tuple):
        return spaces.Tuple(
            [space_like(part, f"{where}[{index}]") for index, part in enumerate(observation)]
        )
    dtype = _dtype_of(observation, where)
    if dtype.kind == "b":
        return spaces.Box(0, 1, observation.shape, np.bool_)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, observation.shape, dtype.type)
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, observation.shape, dtype.type)


def check_fits(space: Space[Any], observation: Any, where: str) -> None:
    """TypeError or ValueError if such observations are not in this space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in _parts(space, observation, where):
            check_fits(space[key], part, f"{where}[{key!r}]")
        return
    dtype = _dtype_of(observation, where)
    if space.shape is None or space.dtype is None:
        raise TypeError(f"{where}: JAX has no observations of the space {space}: take a Box")
    if observation.shape != space.shape or not np.can_cast(dtype, space.dtype, "safe"):
        raise ValueError(
            f"{where} is {dtype} of shape {observation.shape}, but the observation space has "
            f"{space.dtype} of shape {space.shape}: pass JaxBackend(observation_space=…) that fits"
        )


def _parts(space: Any, observation: Any, where: str) -> list[Any]:
    """The keys of a composite space, each with its part of the observation."""
    keys, found = _keys(space.spaces), _keys(observation)
    if set(found) != set(keys) or isinstance(space, spaces.Dict) != hasattr(observation, "keys"):
        raise ValueError(
            f"{where} is a {type(observation).__name__} with the parts {found}, but the "
            f"observation space is a {type(space).__name__} with {keys}"
        )
    return [(key, observation[key]) for key in keys]


def _keys(parts: Any) -> list[Any]:
    """The keys of a dict or tuple; none for an array."""
    if isinstance(parts, Mapping):
        return list(parts)
    return list(range(len(parts))) if isinstance(parts, tuple) else []


def _dtype_of(observation: Any, where: str) -> np.dtype[Any]:
    if not hasattr(observation, "dtype") or not hasattr(observation, "shape"):
        raise TypeError(
            f"{where} is a {type(observation).__name__}: an observation is an array, or a dict or "
            "tuple of arrays"
        )
    dtype: np.dtype[Any] = np.dtype(observation.dtype)
    if dtype.kind not in "biuf":
        raise TypeError(f"{where} is {dtype}, which no space has: convert it to float32 in the env")
    return dtype


def _to_gymnasium(space: Any, name: str) -> Space[Any]:
    """Convert one of gymnax's spaces, which have Gymnasium's names and fields."""
    if isinstance(space, Space):
        return space
    match type(space).__name__:
        case "Discrete":
            return spaces.Discrete(int(space.n))
        case "Box":
            dtype = np.dtype(space.dtype)
            low, high = (
                np.broadcast_to(np.asarray(bound).astype(dtype), space.shape)
                for bound in (space.low, space.high)
            )
            return spaces.Box(low, high, tuple(space.shape), dtype.type)
        case "Dict":
            parts = {key: _to_gymnasium(part, name) for key, part in space.spaces.items()}
            return spaces.Dict(parts)
        case "Tuple":
            return spaces.Tuple([_to_gymnasium(part, name) for part in space.spaces])
    raise TypeError(
        f"the env's {name} is {space!r:.80} of type {type(space).__qualname__}, which has no "
        f"counterpart in Gymnasium: pass JaxBackend({name}=…)"
    )
