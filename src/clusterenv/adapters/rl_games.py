"""ClusterEnv as a vecenv of rl_games. The only file that imports rl_games."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

try:
    from rl_games.common import env_configurations, vecenv
    from rl_games.common.ivecenv import IVecEnv
except ImportError as error:
    raise ImportError("RlGamesVecEnv needs rl_games: pip install rl_games") from error

from clusterenv.env import ClusterEnv
from clusterenv.rollout import map_structure

_VECENV_TYPE = "CLUSTERENV"


def register_env(name: str, env: Any, **kwargs: Any) -> None:
    """Make ``env_name: name`` in a configuration of rl_games mean envs of a ClusterEnv.

    Args:
        name: What ``env_name`` says in the configuration.
        env: As in :class:`clusterenv.ClusterEnv`: a Gymnasium id, a callable, a backend object.
        **kwargs: What else :class:`clusterenv.ClusterEnv` takes, such as ``launcher``. The
            configuration's ``env_config`` overrides these; ``seed`` in it is the seed of the first
            reset. The configuration's ``num_actors`` is the number of envs.

    Example:
        >>> register_env("lander", "LunarLander-v3", launcher=launcher)  # doctest: +SKIP
        >>> runner.load({"params": {"config": {"env_name": "lander", …}, …}})  # doctest: +SKIP
    """

    def make(num_actors: int = 1, **env_config: Any) -> RlGamesVecEnv:
        return RlGamesVecEnv(env, num_actors, **{**kwargs, **env_config})

    def make_by_name(config_name: str, num_actors: int, **env_config: Any) -> Any:
        return env_configurations.configurations[config_name]["env_creator"](
            num_actors=num_actors, **env_config
        )

    vecenv.register(_VECENV_TYPE, make_by_name)
    env_configurations.register(name, {"env_creator": make, "vecenv_type": _VECENV_TYPE})


class RlGamesVecEnv(IVecEnv):  # type: ignore[misc]
    """The vecenv of rl_games whose environments run in ClusterEnv's workers.

    Usually made by rl_games itself, after :func:`register_env`. Envs are reset within the step
    that ends their episode. ``infos["time_outs"]`` says which episodes were truncated, lost
    workers included, so that rl_games bootstraps their values. Where an episode has ended, the
    other infos are those of its last step. rl_games never closes its envs; ClusterEnv does, when
    they are garbage-collected or the process ends.

    Observations are arrays or dicts of arrays; float64 becomes float32. Actions are ``Box``,
    ``Discrete``, ``MultiDiscrete``, or a ``Tuple`` of ``Discrete``. There are no action masks.

    Args:
        env: As in :class:`clusterenv.ClusterEnv`.
        num_actors: How many envs.
        seed: The seed of the first reset: slot *i* gets ``seed + i``.
        **kwargs: Passed to :class:`clusterenv.ClusterEnv`.

    Attributes:
        envs: The ClusterEnv.
        observation_space: That of one env.
        action_space: That of one env, as rl_games knows it: a ``MultiDiscrete`` is a ``Tuple``.
    """

    def __init__(self, env: Any, num_actors: int, seed: int | None = None, **kwargs: Any) -> None:
        mode = AutoresetMode(kwargs.setdefault("autoreset_mode", AutoresetMode.SAME_STEP))
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"autoreset_mode={mode} does not fit here: rl_games expects that an env is reset "
                "within the step that ends its episode; leave it out"
            )
        self.envs = ClusterEnv(env, num_actors, **kwargs)
        self._seed = seed
        try:
            self.observation_space = _checked(self.envs.single_observation_space)
            self.action_space = _action_space_of(self.envs.single_action_space)
        except TypeError:
            self.envs.close()
            raise
        self._has_columns = isinstance(self.envs.single_action_space, spaces.Tuple)
        self._action_shape = np.shape(self.action_space.sample())

    def reset(self) -> Any:
        """Reset all envs; the first time with the seed."""
        seed, self._seed = self._seed, None
        return map_structure(_as_float32, self.envs.reset(seed=seed)[0])

    def step(self, actions: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Observations, rewards, dones, and infos as a dict of arrays."""
        if self.envs.num_envs == 1:
            # Players leave out axes of length 1.
            actions = np.reshape(actions, (1, *self._action_shape))
        if self._has_columns:
            actions = tuple(np.moveaxis(actions, 1, 0))
        observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        infos.pop("final_obs", None)
        infos.pop("_final_obs", None)
        infos.pop("_final_info", None)
        infos = _overlaid(infos, infos.pop("final_info", {}))
        infos["time_outs"] = truncated & ~terminated
        return map_structure(_as_float32, observations), rewards, terminated | truncated, infos

    def seed(self, seed: int) -> None:
        """The seed of the next reset."""
        self._seed = seed

    def get_env_info(self) -> dict[str, Any]:
        """The spaces, in the form that rl_games asks for."""
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "state_space": None,
            "use_global_observations": False,
            "agents": self.get_number_of_agents(),
            "value_size": 1,
        }

    def close(self) -> None:
        """Close the envs and end the workers."""
        self.envs.close()


def _checked(space: spaces.Space[Any]) -> spaces.Space[Any]:
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    if all(isinstance(part, spaces.Box) for part in parts):
        return space
    raise TypeError(
        f"rl_games takes observations that are a Box or a Dict of Boxes, got {space}: wrap the "
        "env, as in gymnasium.wrappers.FlattenObservation"
    )


def _action_space_of(space: spaces.Space[Any]) -> spaces.Space[Any]:
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
        return spaces.Tuple([spaces.Discrete(int(count)) for count in space.nvec])
    parts = space.spaces if isinstance(space, spaces.Tuple) else (space,)
    if isinstance(space, spaces.Box) or all(
        isinstance(part, spaces.Discrete) and part.start == 0 for part in parts
    ):
        return space
    raise TypeError(
        "rl_games takes actions that are a Box, Discrete, MultiDiscrete or a Tuple of Discrete, "
        f"counted from 0; got {space}"
    )


def _overlaid(infos: Mapping[str, Any], finals: Mapping[str, Any]) -> dict[str, Any]:
    """``infos``, with those of ``finals`` in the rows that have them."""
    joined = dict(infos)
    for name in finals:
        if f"_{name}" not in finals:
            continue
        mask, values = finals[f"_{name}"], finals[name]
        others = infos.get(name)
        if isinstance(values, Mapping):
            values = _overlaid(others if isinstance(others, Mapping) else {}, values)
        elif isinstance(others, np.ndarray) and others.shape == values.shape:
            shape = (-1, *[1] * (values.ndim - 1))
            values = np.where(mask.reshape(shape), values, others)
        joined[name] = values
        joined[f"_{name}"] = mask | infos.get(f"_{name}", False)
    return joined


def _as_float32(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.float32) if array.dtype == np.float64 else array
