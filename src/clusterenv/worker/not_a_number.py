"""Refuses policies that return NaN although their weights are finite.

An env might accept NaN as an action, and if all scores are NaN, the likeliest action is 0, with a
log-probability of NaN. The outputs of a fragment are checked together, which costs next to nothing,
and real-valued actions in every step, before an env sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.plain.spaces import Leaf
from clusterenv.policies.base import Acted
from clusterenv.worker.stepper import UserCodeError

LOOKED_AT = ("log_prob", "value")
"""The outputs that every learner reads; in others of a policy, NaN may have a meaning."""


def holds_nan(array: Array) -> bool:
    """Whether any number is NaN, at a fraction of the cost of ``np.isnan(array).any()``."""
    array = np.asarray(array)
    # argmax treats NaN as the largest number and, unlike a sum, never warns.
    return array.dtype.kind == "f" and array.size > 0 and isnan(array.item(array.argmax()))


def refuse_nan_actions(acted: Acted, real_leaves: Sequence[Leaf], slots: Sequence[int]) -> None:
    """UserCodeError if an action (one row per slot) is NaN, before envs see it."""
    for leaf in real_leaves:
        action = leaf.of(acted.actions)
        if holds_nan(action):
            _blame("action", action, slots, acted)


def refuse_nan_outputs(name: str, array: Array, slots: Sequence[int]) -> None:
    """UserCodeError if one of these outputs (rows by slot) is NaN."""
    if holds_nan(array):
        _blame(name, array, slots)


def _blame(name: str, array: Array, slots: Sequence[int], acted: Acted | None = None) -> None:
    rows = np.isnan(array).reshape(len(slots), -1).any(1)
    slot = int(slots[int(rows.argmax())])
    others = int(rows.sum()) - 1
    count = f" (and of {others} more of this worker)" if others else ""
    raise UserCodeError(slot, _action_of(acted, int(rows.argmax()))) from ValueError(
        f"the policy's {name} of slot {slot}{count} is NaN, although its weights are finite: look "
        "at the observation that it acted on, for a division by 0 or the logarithm of 0 in the "
        "policy, and for a mask that allows no action"
    )


def _action_of(acted: Acted | None, row: int) -> Any:
    return None if acted is None or isinstance(acted.actions, dict | tuple) else acted.actions[row]
