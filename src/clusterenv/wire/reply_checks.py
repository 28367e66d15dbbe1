"""What policies did on a remote host, checked before anything is made of it.

Later it is joined with what others did, in the user's thread, where a wrong shape would raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import Space

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError
from clusterenv.plain.spaces import Leaf, leaves_of
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import AnyRequest, Call, Evaluate, Newest, SetAttr

_FLOAT, _INT, _BOOL = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)
# Names that begin so are the policy's own; it is free in what each row of them is.
_BY_STEP = ("outputs/", "distribution/")
_BY_SLOT = ("state/",)
_VALUES = ("last_values", "finals/values")

OTHER_OUTPUTS = "the outputs of its policy have other names, dtypes or shapes than those of others"

Shape = tuple[int, ...]
Expected = dict[str, tuple[Shape, np.dtype[Any] | None]]


class Published(Protocol):
    """What the head knows of its versions."""

    @property
    def version(self) -> int:
        """The newest."""

    def policy_of(self, version: int) -> int:
        """The id of the policy that a version belongs to."""


class ReplyChecks:
    """Knows what fits the spaces; raises ProtocolError at what does not.

    Args:
        observation_space: Of one env.
        action_space: Of one env.
        published: The versions so far.
    """

    def __init__(
        self, observation_space: Space[Any], action_space: Space[Any], published: Published
    ) -> None:
        self._observations, self._actions = leaves_of(observation_space), leaves_of(action_space)
        self._published = published

    def check_part(self, part: FragmentPart) -> None:
        """A fragment of as many steps as were asked for, by a version up to the newest."""
        num_steps = part.request.num_steps
        self._check_version(part.version, part.request.newest)
        arrays, count = part.arrays, len(part.slots)
        ends = _array(arrays, "finals/steps").size
        expected = self._expected(num_steps, count, ends) | _expected_values(arrays, count, ends)
        _check_exactly(arrays, expected)
        _check_policys_own(arrays, expected, num_steps, count)
        if ends and not np.isin(arrays["finals/slots"], part.slots).all():
            raise ProtocolError("finals of slots that are not its own")
        steps = arrays["finals/steps"]
        if not ((steps >= 0) & (steps < num_steps)).all():
            raise ProtocolError("finals of steps that are not in the fragment")

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

    def fits(self, part: FragmentPart, other: FragmentPart) -> bool:
        """Whether two fragments can be joined, or are of different policies."""
        policies = {self._published.policy_of(one.version) for one in (part, other)}
        return len(policies) > 1 or _signature(part.arrays) == _signature(other.arrays)

    def check_acted(
        self, acted: Any, num_slots: int, asked: Newest, others: Iterable[dict[str, Any]]
    ) -> None:
        """What a policy did in one step of so many slots, to be joined with ``others``."""
        if not (isinstance(acted, dict) and {"action", "version"} <= acted.keys()):
            raise ProtocolError("nothing that a policy could have done")
        for leaf in self._actions:
            action = _part_of(leaf, acted["action"])
            _check_rows(action, num_slots)
            if action.shape[1:] != leaf.shape:
                raise ProtocolError(f"actions of shape {action.shape}, not {leaf.shape} a row")
        for name, array in acted.items():
            if name != "action":
                _check_rows(array, num_slots)
        versions = acted["version"]
        if versions.shape != (num_slots,) or versions.dtype != _INT:
            raise ProtocolError("no version for each slot")
        for version in {int(versions.min()), int(versions.max())}:
            self._check_version(version, asked)
        structure = _structure(acted)
        if any(_structure(other) != structure for other in others):
            raise ProtocolError(OTHER_OUTPUTS)

    def _check_version(self, version: int, asked: Newest) -> None:
        if not 1 <= version <= self._published.version:
            raise ProtocolError(f"version {version} was never published")
        if self._published.policy_of(version) < asked.policy_id:
            raise ProtocolError(f"version {version} is of an earlier policy than was asked for")


def check_values(request: AnyRequest, slots: Sequence[int], values: Any) -> None:
    """What a call or an evaluation of these slots returned."""
    count = {Call: len(slots), Evaluate: len(slots), SetAttr: 0}.get(type(request), 1)
    if not isinstance(values, list) or len(values) != count:
        raise ProtocolError(f"an answer to {type(request).__name__} without {count} values")
    if isinstance(request, Evaluate):
        wanted = dict(zip(request.slots, request.episodes, strict=True))
        for slot, played in zip(slots, values, strict=True):
            if not _are_episodes(played, wanted[slot]):
                raise ProtocolError(f"an evaluation without {wanted[slot]} episodes of slot {slot}")


def _are_episodes(played: Any, count: int) -> bool:
    if not isinstance(played, list) or len(played) != count:
        return False
    for episode in played:
        match episode:
            case (float(), int()):
                continue
        return False
    return True


def _part_of(leaf: Leaf, action: Any) -> Any:
    try:
        return leaf.of(action)
    except (LookupError, TypeError) as error:
        raise ProtocolError("actions of another structure than the space") from error


def _check_rows(array: Any, count: int) -> None:
    if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) != count:
        raise ProtocolError(f"a policy's output is no array of {count} rows")


def _structure(tree: Any) -> Any:
    """The same for trees whose arrays can be joined, place by place."""
    if isinstance(tree, dict):
        return {key: _structure(value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree), tuple(map(_structure, tree))
    if not isinstance(tree, np.ndarray):
        raise ProtocolError("a policy's output is no array")
    return tree.shape[1:], tree.dtype


def _signature(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """What must be the same in fragments that are joined."""
    by_step = (*_BY_STEP, "actions/")
    return {
        name: (array.shape[2 if name.startswith(by_step) else 1 :], array.dtype)
        for name, array in arrays.items()
        if name.startswith((*by_step, *_BY_SLOT, *_VALUES))
    }


def _check_exactly(arrays: Mapping[str, Array], expected: Expected) -> None:
    for name, (shape, dtype) in expected.items():
        array = _array(arrays, name)
        if array.shape != shape or (dtype is not None and array.dtype != dtype):
            raise ProtocolError(
                f"{name} has shape {array.shape} of {array.dtype}, not {shape} of {dtype or 'any'}"
            )


def _check_policys_own(
    arrays: Mapping[str, Array], expected: Expected, num_steps: int, count: int
) -> None:
    for name in arrays.keys() - expected.keys():
        array = arrays[name]
        if not name.startswith(_BY_STEP + _BY_SLOT):
            raise ProtocolError(f"no fragment has {name!r:.80}")
        wanted = (num_steps, count) if name.startswith(_BY_STEP) else (count,)
        if array.shape[: len(wanted)] != wanted:
            raise ProtocolError(f"{name!r:.80} has shape {array.shape}, not {wanted} and more")


def _expected_values(arrays: Mapping[str, Array], count: int, ends: int) -> Expected:
    """The values of what the fragment cuts off, where the policy has values."""
    if not any(name in arrays for name in _VALUES):
        return {}
    row = _array(arrays, "outputs/value").shape[2:]
    return {"last_values": ((count, *row), None), "finals/values": ((ends, *row), None)}


def _array(arrays: Mapping[str, Array], name: str) -> Array:
    if name not in arrays:
        raise ProtocolError(f"a fragment without {name}")
    return arrays[name]
