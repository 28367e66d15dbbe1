"""What a worker tells the head about the envs it has built."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv.plain.spaces import space_to_plain
from clusterenv.plain.values import pack
from clusterenv.worker.engine_calls import device_engine


def settle_autoreset_mode(env: VectorEnv[Any, Any, Any], mode: AutoresetMode) -> None:
    """Have a ready-made VectorEnv reset as the user asked; ValueError if it cannot."""
    engine = device_engine(env)
    if engine is not None:
        engine.choose_autoreset_mode(mode)
    own = env.metadata.get("autoreset_mode")
    if own is not None and AutoresetMode(own) is not mode:
        raise ValueError(
            f"the backend's VectorEnv resets with {AutoresetMode(own)}, but ClusterEnv was given "
            f"autoreset_mode={mode}: make the two equal"
        )


def describe_envs(envs: list[gymnasium.Env[Any, Any]], trusted: bool) -> dict[str, Any]:
    """Spaces, metadata and render mode of single envs."""
    return {
        "observation_spaces": _spaces_to_plain([env.observation_space for env in envs]),
        "action_spaces": _spaces_to_plain([env.action_space for env in envs]),
        "metadata": _plain_items(envs[0].metadata, trusted),
        "steps_together": False,
        "render_mode": envs[0].render_mode,
    }


def describe_vector(env: VectorEnv[Any, Any, Any]) -> dict[str, Any]:
    """Spaces, metadata and render mode of a ready-made VectorEnv."""
    return {
        "observation_spaces": _spaces_to_plain([env.single_observation_space]),
        "action_spaces": _spaces_to_plain([env.single_action_space]),
        "metadata": _plain_items(env.metadata, trusted=False),
        "steps_together": True,
        "render_mode": env.render_mode,
    }


def _spaces_to_plain(spaces: list[gymnasium.Space[Any]]) -> list[Any]:
    """One description if all are equal, else one per slot."""
    if all(space is spaces[0] or space == spaces[0] for space in spaces[1:]):
        spaces = spaces[:1]
    return [space_to_plain(space) for space in spaces]


def _plain_items(metadata: dict[str, Any], trusted: bool) -> dict[str, Any]:
    """The items that can travel; metadata that cannot is no reason to refuse a worker."""

    def may_travel(value: Any) -> bool:
        try:
            pack(value, allow_pickle=trusted)
        except Exception:
            return False
        return True

    return {key: value for key, value in metadata.items() if may_travel(value)}
