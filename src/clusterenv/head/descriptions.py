"""What workers say about their envs, checked before it is used."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from typing import Any

from gymnasium import Space
from gymnasium.vector.utils import batch_space

from clusterenv.errors import ProtocolError
from clusterenv.plain.spaces import is_large, space_from_plain
from clusterenv.plain.values import unpack

Description = dict[str, Any]
"""Spaces, metadata and render mode of some envs, see :mod:`clusterenv.worker.description`."""


def description_reader(trusted: bool) -> Callable[[bytes, int], Description]:
    """Like :func:`read_description`, but equal descriptions of many workers are read only once.

    Reading takes a millisecond, and a run may have ten thousand workers.
    """
    return cache(partial(read_description, trusted=trusted))


def read_description(data: bytes, count: int, trusted: bool) -> Description:
    """What a worker says about its ``count`` envs; ProtocolError if it is malformed.

    If the worker is not ``trusted``, no pickle is opened and no random state is loaded.
    """
    description: Description = unpack(data, allow_pickle=trusted)
    match description:
        case {
            "observation_spaces": [_, *_] as observations,
            "action_spaces": [_, *_] as actions,
            "metadata": dict(),
            "render_mode": str() | None,
            "steps_together": bool(),
            **rest,
        } if not rest and {len(observations), len(actions)} <= {1, count}:
            return {
                **description,
                "observation_spaces": [_read_space(plain, trusted) for plain in observations],
                "action_spaces": [_read_space(plain, trusted) for plain in actions],
            }
    raise ProtocolError("malformed description of envs")


def _read_space(plain: Any, trusted: bool) -> Space[Any]:
    try:
        space = space_from_plain(plain, trusted=trusted)
        if not trusted and not is_large(space):
            # All that will be done with the space: whatever can go wrong should go wrong here.
            twin = deepcopy(space)
            assert repr(twin)
            assert space == twin
            batch_space(twin, 1)
    except Exception as error:
        problem = f"malformed description of a space: {ProtocolError.of(error)}"
        raise ProtocolError(problem) from error
    return space
