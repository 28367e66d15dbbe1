"""Environments written in JAX: pure functions, vmapped and jitted on the worker's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium import Space
from gymnasium.vector import VectorEnv

from clusterenv.building_slots import building


class JaxBackend:
    """Each worker runs one vmapped and jitted step of all its slots, on its JAX device.

    By default there is one worker per host; ``num_workers`` changes that. ``env`` is one of:

    - an object with gymnax's methods, ``reset(key) → (observation, state)`` and ``step(key, state,
      action) → (observation, state, reward, done, info)``. For gymnax's own envs, ``reset_env``
      and ``step_env`` are used, which do not reset by themselves;
    - an object with Brax' methods, ``reset(key) → state`` and ``step(state, action) → state``,
      where a state has ``.obs``, ``.reward`` and ``.done``, and maybe ``.info`` and ``.metrics``,
      which come out as infos;
    - a pair ``(reset, step)`` of such functions;
    - a function without arguments, or a class, that makes one of these on the worker.

    It must not reset itself: ClusterEnv does, and keeps the true last observation. An episode is
    truncated, and not terminated, where ``info["truncation"]`` or ``info["truncated"]`` says so.

    Slot *i* has the key ``jax.random.PRNGKey(seed + i)``, for any number of workers. Each of its
    resets and steps does ``key, own = jax.random.split(key)`` and gets ``own``.

    Args:
        env: The env of one slot.
        params: The last argument of gymnax's methods; by default its ``default_params``.
        observation_space: A Gymnasium space; by default the env's own, or one that fits the arrays
            that ``reset`` returns.
        action_space: A Gymnasium space; by default the env's own.
        max_episode_steps: Truncates episodes after this many steps.

    Example:
        >>> JaxBackend((reset, step), action_space=Discrete(2))  # doctest: +SKIP
    """

    has_own_threads = True
    num_threads = 0

    def __init__(
        self,
        env: Any,
        *,
        params: Any = None,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        _refuse_what_is_no_env(env)
        for name, space in (
            ("observation_space", observation_space),
            ("action_space", action_space),
        ):
            if space is not None and not isinstance(space, Space):
                raise TypeError(
                    f"{name}={space!r:.80} must be a gymnasium.spaces object, such as "
                    "Box(-1, 1, (3,))"
                )
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps={max_episode_steps} must be at least 1")
        self.env, self.params = env, params
        self.observation_space, self.action_space = observation_space, action_space
        self.max_episode_steps = max_episode_steps

    def build(self, slots: Sequence[int]) -> VectorEnv[Any, Any, Any]:
        """The envs of these slots, compiled here, so that no step waits for compilation."""
        from clusterenv.backends.jax_engine import JaxVectorEnv

        env = self.env
        if isinstance(env, type) or not _has_methods(env):
            with building(slots[0]):
                env = env()
            _refuse_what_is_no_env(env, made=True)
        return JaxVectorEnv(
            env,
            len(slots),
            self.params,
            self.observation_space,
            self.action_space,
            self.max_episode_steps,
        )

    def for_slots(self, slots: Sequence[int]) -> JaxBackend:
        """The same for every worker."""
        return self


def _has_methods(env: Any) -> bool:
    is_pair = isinstance(env, tuple) and len(env) == 2 and all(map(callable, env))
    return is_pair or (hasattr(env, "reset") and hasattr(env, "step"))


def _refuse_what_is_no_env(env: Any, made: bool = False) -> None:
    """TypeError that says what ``env`` is and what it should be, unless it is an env."""
    if isinstance(env, gymnasium.Env | VectorEnv):
        raise TypeError(
            f"{type(env).__name__} is no pure function: pass ClusterEnv a function that makes "
            "this env (a VectorEnv: VectorBackend), or JaxBackend an env of gymnax's or Brax' form"
        )
    if _has_methods(env) or (callable(env) and not made):
        return
    what = "the function given to JaxBackend returned" if made else "JaxBackend got"
    raise TypeError(
        f"{what} {env!r:.80} of type {type(env).__qualname__}: it takes an object with reset and "
        "step, a pair (reset, step) of functions, or a function that makes one of these"
    )
