"""What VectorEnvs can do besides stepping, which each does in its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

AnyVectorEnv = VectorEnv[Any, Any, Any]
_STEPS_TO_TRY = 3


class DeviceEngine(Protocol):
    """A VectorEnv on a device, such as a GPU, that resets when told to.

    It knows ``options["reset_mask"]``.
    """

    on_device: Any
    """The last observations, as they are on the device; nobody may change them."""

    def choose_autoreset_mode(self, mode: AutoresetMode) -> None:
        """Make ``step`` reset as this mode says."""

    def step_and_reset(self, actions: Any) -> Any:
        """Like ``step``, but the end of an episode resets at once, with ``info["final_obs"]``."""


def device_engine(env: AnyVectorEnv) -> DeviceEngine | None:
    """``env`` itself if it is a device engine."""
    # The class is asked: an engine that is created later has no attributes of its own yet.
    return cast(DeviceEngine, env) if hasattr(type(env), "step_and_reset") else None


def call_every_env(
    env: AnyVectorEnv, name: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> list[Any]:
    """A method's result, or an attribute, of each env.

    A VectorEnv without ``call`` has values for all its envs together: one with a part for each env
    is split, any other is repeated for every env.
    """
    if hasattr(env, "call"):
        return list(env.call(name, *args, **kwargs))
    attribute = getattr(env, name)
    value = attribute(*args, **kwargs) if callable(attribute) else attribute
    if isinstance(value, list | tuple | np.ndarray) and np.shape(value)[:1] == (env.num_envs,):
        return list(value)
    return [value] * env.num_envs


def set_attr_of_every_env(env: AnyVectorEnv, name: str, values: Sequence[Any]) -> None:
    """Set an attribute of each env; of the whole VectorEnv if it has no ``set_attr``."""
    if hasattr(env, "set_attr"):
        env.set_attr(name, list(values))
        return
    if any(value is not values[0] and value != values[0] for value in values):
        raise ValueError(
            f"{type(env.unwrapped).__name__} has no set_attr: {name} can only be set to one value "
            "for all its envs"
        )
    setattr(env.unwrapped, name, values[0])


def resets_by_mask(env: AnyVectorEnv, make_two: Callable[[], AnyVectorEnv] | None) -> bool:
    """Whether ``options={"reset_mask": …}`` leaves the other envs where they are.

    Gymnasium's own do. For others it is not documented, so two envs are made to try it.
    """
    if make_two is None or isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        return True
    tried = make_two()
    try:
        return _keeps_the_second(tried)
    finally:
        tried.close()


def _keeps_the_second(env: AnyVectorEnv) -> bool:
    before, _ = env.reset(seed=0)
    actions = batch_space(env.single_action_space, env.num_envs)
    for _ in range(_STEPS_TO_TRY):
        before, *_ = env.step(actions.sample())
    before = _copy(before)
    mask = np.arange(env.num_envs) == 0
    after, _ = env.reset(options={"reset_mask": mask})
    return _first_leaf_len(after) == 1 or _has_row(after, before, 1)


def _copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copy(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(_copy, tree))
    return np.copy(tree)


def _first_leaf_len(tree: Any) -> int:
    while isinstance(tree, dict | tuple):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return len(tree)


def _has_row(after: Any, before: Any, row: int) -> bool:
    """Whether the observation in this row is the same in both."""
    if isinstance(before, dict):
        return all(_has_row(after[key], before[key], row) for key in before)
    if isinstance(before, tuple):
        return all(_has_row(one, other, row) for one, other in zip(after, before, strict=True))
    return np.array_equal(after[row], before[row])
