"""ClusterEnv as a Stable-Baselines3 VecEnv. The only file that imports stable_baselines3."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

try:
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import (
        VecEnvIndices,
        VecEnvObs,
        VecEnvStepReturn,
    )
except ImportError as error:
    raise ImportError(
        "StableBaselines3VecEnv needs Stable-Baselines3: "
        "pip install 'clusterenv[stable-baselines3]'"
    ) from error

from clusterenv.adapters.base import EnvsBySlot

_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class StableBaselines3VecEnv(VecEnv):
    """A Stable-Baselines3 VecEnv whose environments run in ClusterEnv's workers.

    It takes the arguments of :class:`clusterenv.ClusterEnv` and returns what SB3's own
    ``DummyVecEnv`` returns for the same seeds and actions. Where a worker was lost, the info has
    ``env_lost``, and the episode counts as truncated.

    Args:
        env: A Gymnasium id, a callable that makes one env, a list of such callables, or a backend
            object (whose envs' methods and attributes cannot be reached).
        num_envs: How many envs.
        num_workers: How many workers.
        **kwargs: Passed to :class:`clusterenv.ClusterEnv`. SB3's episode statistics come from
            ``VecMonitor``, or from ``wrappers=[Monitor]``, which needs SB3 on the workers.

    Attributes:
        envs: The ClusterEnv; single envs are reached by :meth:`get_attr`, :meth:`set_attr` and
            :meth:`env_method`.

    Example:
        >>> envs = StableBaselines3VecEnv("LunarLander-v3", num_envs=64)  # doctest: +SKIP
        >>> PPO("MlpPolicy", VecMonitor(envs)).learn(1_000_000)  # doctest: +SKIP
    """

    def __init__(
        self,
        env: Any,
        num_envs: int | None = None,
        num_workers: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.envs = EnvsBySlot(env, num_envs, num_workers, **kwargs)
        self._is_stepping = self._was_used = False
        super().__init__(
            self.envs.num_envs, self.envs.single_observation_space, self.envs.single_action_space
        )
        self.metadata = self.envs.metadata

    def reset(self) -> VecEnvObs:
        """Reset all envs with what :meth:`seed` and :meth:`set_options` said since the last one."""
        if self._is_stepping:
            self.step_wait()
        self._was_used = True
        infos: dict[Any, dict[str, Any]] = {}
        for options in self._options_of_each_reset():
            observations, some_infos = self.envs.reset(seed=self._seeds, options=options)
            infos.update(some_infos)
        self.reset_infos = [infos.get(slot, {}) for slot in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return observations  # type: ignore[no-any-return]

    def _options_of_each_reset(self) -> list[dict[str, Any] | None]:
        """One reset for all slots that share their options, usually one for all."""
        if len(self._options) != self.num_envs:
            raise ValueError(f"{len(self._options)} options were set for {self.num_envs} envs")
        slots_by_options: dict[int, list[int]] = {}
        for slot, options in enumerate(self._options):
            slots_by_options.setdefault(id(options) if options else 0, []).append(slot)
        if len(slots_by_options) == 1:
            return [self._options[0] or None]
        masks = [np.isin(np.arange(self.num_envs), slots) for slots in slots_by_options.values()]
        return [{**self._options[mask.argmax()], "reset_mask": mask} for mask in masks]

    def step_async(self, actions: Any) -> None:
        """Start a step; :meth:`step_wait` gets its result."""
        space = self.action_space
        if not isinstance(space, _ARRAY_SPACES):
            actions = concatenate(space, actions, create_empty_array(space, self.num_envs))  # type: ignore[arg-type]
        if not self._was_used:
            self._was_used = True
            self.envs.allow_step_before_reset()
        self.envs.step_async(actions)
        self._is_stepping = True

    def step_wait(self) -> VecEnvStepReturn:
        """Observations, rewards, dones, and one info per env.

        Where an episode has ended, the observation is the first of the next one, and the info has
        ``terminal_observation``.
        """
        self._is_stepping = False
        observations, rewards, terminated, truncated, found = self.envs.step_wait()
        dones = terminated | truncated
        by_slot: dict[Any, dict[str, Any]] = found
        infos = [by_slot.get(slot, {}) for slot in range(self.num_envs)]
        for slot in np.flatnonzero(dones).tolist():
            infos[slot], self.reset_infos[slot] = _split_at_the_end(infos[slot])
        for info, at_limit in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = at_limit
        # float32 as in DummyVecEnv: PPO adds values to these rewards in place.
        return observations, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Close the envs and end the workers."""
        self.envs.close()

    # Attributes and methods of the envs.

    def has_attr(self, attr_name: str) -> bool:
        """Whether every env has the attribute."""
        return all(self._apply(lambda env: env.has_wrapper_attr(attr_name)))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of these envs (None: of all)."""
        if attr_name == "render_mode":
            return [self.envs.render_mode for _ in self._slots(indices)]
        return self._apply(lambda env: env.get_wrapper_attr(attr_name), indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of these envs (None: of all), in the wrapper or env that has it."""
        self._apply(lambda env: env.set_wrapper_attr(attr_name, value), indices)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Call a method of these envs (None: of all)."""
        return self._apply(
            lambda env: env.get_wrapper_attr(method_name)(*method_args, **method_kwargs), indices
        )

    def env_is_wrapped(
        self,
        wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]],
        indices: VecEnvIndices = None,
    ) -> list[bool]:
        """Whether these envs (None: all) are wrapped in ``wrapper_class``.

        The envs of a backend object cannot be looked at, and count as not wrapped.
        """
        if not self.envs.is_reachable:
            return [False for _ in self._slots(indices)]
        # By name, so that a worker need not import the class, and SB3 with it, to say no.
        wanted = wrapper_class.__module__, wrapper_class.__qualname__

        def is_wrapped(env: gymnasium.Env[Any, Any]) -> bool:
            while isinstance(env, gymnasium.Wrapper):
                if wanted in [(kind.__module__, kind.__qualname__) for kind in type(env).__mro__]:
                    return True
                env = env.env
            return False

        return self._apply(is_wrapped, indices)

    def get_images(self) -> Sequence[np.ndarray[Any, Any] | None]:
        """What each env renders, if its ``render_mode`` is ``rgb_array``."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"render_mode is {self.render_mode!r}: images need render_mode='rgb_array'",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self.envs.render()

    def _apply(
        self, function: Callable[[gymnasium.Env[Any, Any]], Any], indices: VecEnvIndices = None
    ) -> list[Any]:
        return self.envs.apply(function, None if indices is None else self._slots(indices))

    def _slots(self, indices: VecEnvIndices) -> list[int]:
        return [range(self.num_envs)[index] for index in self._get_indices(indices)]


def _split_at_the_end(info: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The info of an episode's last step, and that of the reset that followed."""
    last: dict[str, Any] = info.pop("final_info", {})
    last["terminal_observation"] = info.pop("final_obs")
    if info.pop("env_lost", False):
        last["env_lost"] = True
    return last, info
