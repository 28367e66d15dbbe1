"""Checks of the arguments of user calls, with Gymnasium's messages where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import iterate

from clusterenv.arrays import Array
from clusterenv.plain.spaces import Leaf

Seed = int | Sequence[int | None] | None


def seed_by_slot(seed: Seed, num_envs: int) -> list[int | None]:
    """Slot *i* gets ``seed + i``, or the *i*-th seed of a list."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, np.ndarray):
        seed = seed.tolist()
    if isinstance(seed, str) or not isinstance(seed, Sequence):
        return [_whole_seed(seed, num_envs) + slot for slot in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(
            "If seeds are passed as a list the length must match "
            f"num_envs={num_envs} but got length={len(seed)}."
        )
    return [None if one is None else _whole_seed(one, num_envs) for one in seed]


def _whole_seed(seed: Any, num_envs: int) -> int:
    try:
        return index(seed)
    except TypeError:
        raise TypeError(
            f"seed must be None, a whole number (slot i gets seed + i), or a list with a whole "
            f"number or None for each of num_envs={num_envs} slots; got {seed!r}"
        ) from None


def slots_to_reset(
    options: dict[str, Any] | None, num_envs: int
) -> tuple[list[int], dict[str, Any] | None]:
    """The slots of ``options["reset_mask"]`` (or all), and the options without it."""
    if options is None or "reset_mask" not in options:
        return list(range(num_envs)), options
    mask = options.pop("reset_mask")
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(
            f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}"
        )
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            "`options['reset_mask']` must contain a boolean array with at least one True "
            f"value, got reset_mask={mask}"
        )
    return [int(slot) for slot in np.flatnonzero(mask)], options


def actions_by_row(
    actions: Any, count: int, leaf: Leaf | None, single: Space[Any], batched: Space[Any]
) -> Array | list[Any]:
    """An array with a row per slot; or a list, if the action space is not a single array."""
    if leaf is None:
        listed = list(iterate(batched, actions))
        if len(listed) != count:
            raise ValueError(f"got {len(listed)} actions for {count} envs: pass one for each")
        return listed
    array = np.asarray(actions)
    if not array.ndim:
        raise TypeError(
            f"got {actions!r} instead of actions of shape {(count, *leaf.shape)}: one of {single} "
            f"for each of {count} envs"
        )
    if array.shape != (count, *leaf.shape):
        raise ValueError(
            f"actions have shape {array.shape}, expected {(count, *leaf.shape)}: one of "
            f"{single} for each of {count} envs"
        )
    if array.dtype != leaf.dtype and not _fits(array.dtype, leaf.dtype):
        raise TypeError(
            f"actions have dtype {array.dtype}, which does not fit {single} of dtype {leaf.dtype}: "
            f"convert them, as by actions.astype({str(leaf.dtype)!r})"
        )
    return array


def _fits(given: np.dtype[Any], wanted: np.dtype[Any] | None) -> bool:
    if wanted is None:
        return False
    # Plain Python ints become int64, which numpy refuses to cast to unsigned integers.
    both_integers = given.kind in "iu" and wanted.kind in "iu"
    return both_integers or np.can_cast(given, wanted, "same_kind")


def values_by_slot(values: Any, num_envs: int) -> Sequence[Any]:
    """One value per slot if ``values`` is a list or tuple, else the same for all."""
    if not isinstance(values, list | tuple):
        return [values] * num_envs
    if len(values) != num_envs:
        raise ValueError(
            "Values must be a list or tuple with length equal to the number of environments. "
            f"Got `{len(values)}` values for {num_envs} environments."
        )
    return values


def slots_of(env_id: Any) -> list[int]:
    """``env_id`` as a list of integers."""
    array = np.asarray(env_id).reshape(-1)
    if array.dtype.kind not in "iu" or not array.size:
        raise ValueError(
            f"env_id must be one or more slots, as in info['env_id'] of recv(); got {env_id!r}"
        )
    slots: list[int] = array.tolist()
    return slots
