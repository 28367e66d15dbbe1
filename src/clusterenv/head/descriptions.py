"""What workers say about their envs, checked before anything is made of it."""

from __future__ import annotations

from typing import Any

from clusterenv.errors import ProtocolError
from clusterenv.plain.spaces import space_from_plain
from clusterenv.plain.values import unpack

Description = dict[str, Any]
"""Spaces, metadata and render mode of some envs, see :mod:`clusterenv.worker.description`."""


def read_description(data: bytes, count: int, allow_pickle: bool) -> Description:
    """What a worker says about its ``count`` envs; ProtocolError if nothing can be made of it."""
    description: Description = unpack(data, allow_pickle=allow_pickle)
    match description:
        case {
            "observation_spaces": [_, *_] as observations,
            "action_spaces": [_, *_] as actions,
            "metadata": dict(),
            "render_mode": str() | None,
            "steps_together": bool(),
            **rest,
        } if not rest and {len(observations), len(actions)} <= {1, count}:
            for plain in [*observations, *actions]:
                _check_space(plain)
            return description
    raise ProtocolError("no description of envs")


def _check_space(plain: Any) -> None:
    try:
        space_from_plain(plain)
    except Exception as error:
        raise ProtocolError(f"no description of a space: {ProtocolError.of(error)}") from error
