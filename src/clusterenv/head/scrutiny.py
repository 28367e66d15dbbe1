"""What a worker says about its envs and its policy, checked before anything is made of it.

Later it is joined with what others did, in the user's thread, where a wrong shape would raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError
from clusterenv.plain.spaces import Leaf, leaves_of, space_from_plain
from clusterenv.plain.values import unpack
from clusterenv.rollout import FragmentPart

_FLOAT, _INT, _BOOL = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)
# Names that begin so are the policy's own; it is free in what each row of them is.
_BY_STEP = ("outputs/", "distribution/", "actions/")
_BY_SLOT = ("state/",)

Shape = tuple[int, ...]
Expected = dict[str, tuple[Shape, np.dtype[Any] | None]]


def read_description(data: bytes, count: int, allow_pickle: bool) -> dict[str, Any]:
    """What a worker says about its ``count`` envs; ProtocolError if nothing can be made of it."""
    description: dict[str, Any] = unpack(data, allow_pickle=allow_pickle)
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


class Scrutiny:
    """Knows what fits the spaces; raises ProtocolError at what does not."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self._observations, self._actions = leaves_of(observation_space), leaves_of(action_space)

    def check_part(self, part: FragmentPart, num_steps: int, newest: int) -> None:
        """A fragment of so many steps, by a version up to the newest."""
        if not 1 <= part.version <= newest:
            raise ProtocolError(f"version {part.version} was never published")
        arrays, count = part.arrays, len(part.slots)
        ends = _array(arrays, "finals/steps").size
        _check_exactly(arrays, self._expected(num_steps, count, ends))
        _check_policys_own(arrays, num_steps, count)
        _check_values(arrays, count, ends)
        if not np.isin(arrays["finals/slots"], part.slots).all():
            raise ProtocolError("finals of slots that are not its own")
        steps = arrays["finals/steps"]
        if not ((steps >= 0) & (steps < num_steps)).all():
            raise ProtocolError("finals of steps that are not in the fragment")

    def fit_together(self, part: FragmentPart, other: FragmentPart) -> bool:
        """Whether two fragments of the same policy can be joined."""
        return _signature(part.arrays) == _signature(other.arrays)

    def _expected(self, steps: int, count: int, ends: int) -> Expected:
        expected: Expected = {
            "rewards": ((steps, count), _FLOAT),
            "terminated": ((steps, count), _BOOL),
            "truncated": ((steps, count), _BOOL),
            "finals/steps": ((ends,), _INT),
            "finals/slots": ((ends,), _INT),
            "finals/returns": ((ends,), _FLOAT),
            "finals/lengths": ((ends,), _INT),
        }
        for index, leaf in enumerate(self._observations):
            expected[f"observations/{index}"] = ((steps + 1, count, *leaf.shape), leaf.dtype)
            expected[f"finals/{index}"] = ((ends, *leaf.shape), leaf.dtype)
        for index, leaf in enumerate(self._actions):
            # Of a dtype that the policy chooses.
            expected[f"actions/{index}"] = ((steps, count, *leaf.shape), None)
        return expected

    def check_acted(
        self, acted: Any, count: int, newest: int, others: Iterable[dict[str, Any]]
    ) -> None:
        """What a policy did in one step of so many slots, to be joined with ``others``."""
        if not (isinstance(acted, dict) and {"action", "version"} <= acted.keys()):
            raise ProtocolError("nothing that a policy could have done")
        for leaf in self._actions:
            _check_rows(_part_of(leaf, acted["action"]), count)
        for name, array in acted.items():
            if name != "action":
                _check_rows(array, count)
        versions = acted["version"]
        if versions.dtype != _INT or not ((versions >= 1) & (versions <= newest)).all():
            raise ProtocolError("versions that were never published")
        for other in others:
            same_policy = (other["version"] == versions[0]).all()
            if same_policy and _structure(other) != _structure(acted):
                raise ProtocolError("its policy says other things than that of other workers")


def _check_exactly(arrays: Mapping[str, Array], expected: Expected) -> None:
    for name, (shape, dtype) in expected.items():
        array = _array(arrays, name)
        if array.shape != shape or (dtype is not None and array.dtype != dtype):
            raise ProtocolError(
                f"{name} has shape {array.shape} of {array.dtype}, not {shape} of {dtype or 'any'}"
            )


def _check_policys_own(arrays: Mapping[str, Array], num_steps: int, count: int) -> None:
    for name, array in arrays.items():
        wanted: Shape = (num_steps, count) if name.startswith(_BY_STEP) else ()
        wanted = (count,) if name.startswith(_BY_SLOT) else wanted
        if array.shape[: len(wanted)] != wanted:
            raise ProtocolError(f"{name} has shape {array.shape}, not {wanted} and more")


def _check_values(arrays: Mapping[str, Array], count: int, ends: int) -> None:
    if "last_values" in arrays:
        row = _array(arrays, "outputs/value").shape[2:]
        expected: Expected = {
            "last_values": ((count, *row), None),
            "finals/values": ((ends, *row), None),
        }
        _check_exactly(arrays, expected)


def _array(arrays: Mapping[str, Array], name: str) -> Array:
    if name not in arrays:
        raise ProtocolError(f"a fragment without {name}")
    return arrays[name]


def _part_of(leaf: Leaf, action: Any) -> Any:
    try:
        return leaf.of(action)
    except (LookupError, TypeError) as error:
        raise ProtocolError("actions of another structure than the space") from error


def _check_rows(array: Any, count: int) -> None:
    if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) != count:
        raise ProtocolError(f"a policy's output is no array of {count} rows")


def _signature(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """What must be the same in fragments that are joined."""
    own = {name: array for name, array in arrays.items() if name.startswith(_BY_STEP + _BY_SLOT)}
    signature: dict[str, Any] = {
        name: (array.shape[1 if name.startswith(_BY_SLOT) else 2 :], array.dtype)
        for name, array in own.items()
    }
    signature["last_values"] = "last_values" in arrays
    return signature


def _structure(tree: Any) -> Any:
    """The same for trees whose arrays can be joined, place by place."""
    if isinstance(tree, dict):
        return {key: _structure(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(_structure, tree))
    return tree.shape[1:], tree.dtype
