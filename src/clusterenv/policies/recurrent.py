"""Recurrent state: None, an array with a row per slot, or a dict of such arrays.

None stands for all zeros. Nothing here writes to its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import numpy as np

from clusterenv.arrays import Array


def shapes_of(state_shapes: Any) -> dict[str, tuple[int, ...]] | None:
    """The user's ``state_shapes``, or None if there is no state; TypeError if it has no shapes."""
    if state_shapes is not None and not isinstance(state_shapes, Mapping):
        raise TypeError(
            f"state_shapes={state_shapes!r:.80}: pass a dict of the shapes of one slot's state by "
            "name, such as {'hidden': (32,)}"
        )
    return {name: _shape_of(name, shape) for name, shape in (state_shapes or {}).items()} or None


def _shape_of(name: str, shape: Any) -> tuple[int, ...]:
    try:
        return (index(shape),) if hasattr(shape, "__index__") else tuple(map(index, shape))
    except TypeError:
        raise TypeError(
            f"state_shapes[{name!r}]={shape!r:.80}: pass the shape of one slot's state, such as "
            "(32,) or (2, 16)"
        ) from None


def rows_of(state: Any, rows: Sequence[int]) -> Any:
    """The state of some slots."""
    if isinstance(state, dict):
        return {name: array[list(rows)] for name, array in state.items()}
    return None if state is None else state[list(rows)]


def put_rows(state: Any, rows: Sequence[int], part: Any, count: int) -> Any:
    """The state of ``count`` slots, with these rows replaced by those of ``part``."""
    if isinstance(part, dict):
        known = state or dict.fromkeys(part)
        return {name: put_rows(known[name], rows, part[name], count) for name in part}
    if part is None:
        return None
    whole = np.zeros((count, *part.shape[1:]), part.dtype) if state is None else state.copy()
    whole[list(rows)] = part
    return whole


def join_rows(parts: Sequence[Any]) -> Any:
    """The states of several groups of slots, one after the other."""
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return None if parts[0] is None else np.concatenate(parts)


def forget_rows(state: Any, rows: Sequence[int]) -> Any:
    """The state with zeros for these slots, whose episodes have ended."""
    if isinstance(state, dict):
        return {name: forget_rows(array, rows) for name, array in state.items()}
    if state is None or not len(rows):
        return state
    forgetful = state.copy()
    forgetful[list(rows)] = 0
    return forgetful


def named_arrays(state: Any, like: Any) -> dict[str, Array]:
    """The state as it travels; ``like`` gives its shape in case it is None."""
    if like is None:
        return {}
    if isinstance(like, dict):
        return {
            f"state/{name}": np.zeros_like(array) if state is None else state[name]
            for name, array in like.items()
        }
    return {"state/": np.zeros_like(like) if state is None else state}
