"""Checks what policies did on a remote host before it is used.

Later it is joined with the results of others in the user's thread, where a wrong shape would raise.
A host is compared with the spaces and with the head's own copy of the policy, never with others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete

from clusterenv.arrays import Array, bytes_of
from clusterenv.errors import ProtocolError
from clusterenv.plain.spaces import Leaf, leaves_of
from clusterenv.plain.values import check_bools
from clusterenv.protocol.fragment_infos import PREFIX as INFOS
from clusterenv.protocol.fragment_infos import read_columns
from clusterenv.protocol.fragments import FragmentPart, Kinds, kinds_of
from clusterenv.protocol.requests import (
    AnyRequest,
    Call,
    Collect,
    CountTime,
    Evaluate,
    Newest,
    SetAttr,
)

_FLOAT, _INT, _BOOL = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)
# Names that begin with these are the policy's own; it decides what each row of them is.
_BY_STEP = ("outputs/", "distribution/")
_BY_SLOT = ("state/",)
_VALUES = ("last_values", "finals/values")
_POLICYS = (*_BY_STEP, *_BY_SLOT, *_VALUES, "actions/")
# Which of these it is may depend on the machine; the user gets the head's own.
_FLOATS = {np.dtype(np.float32), _FLOAT}
_OF_A_STEP = ("actions/", "outputs/")
_MOST_STEPS = 2**62

Shape = tuple[int, ...]
Expected = dict[str, tuple[Shape, np.dtype[Any] | None]]


class Published(Protocol):
    """What the head knows about its versions."""

    @property
    def version(self) -> int:
        """The newest."""

    def policy_of(self, version: int) -> int:
        """The number of the policy object: one more with each change to another object."""

    def policy_id_of(self, version: int) -> int:
        """The id by which hosts know the policy; one that comes back has its old id."""


class KnownPolicies(Protocol):
    """What the head knows about the outputs of its policies."""

    def knows(self, policy_id: int) -> bool:
        """Whether this policy has acted at the head."""

    def kinds_of(self, policy_id: int, observe: Callable[[], list[Array]]) -> Kinds | None:
        """Shape and dtype of a row of each array that a policy makes, which may act on what
        ``observe`` returns; None if it cannot act at the head."""


class ReplyChecks:
    """Knows what fits the spaces and the policy; raises ProtocolError for what does not.

    Args:
        observation_space: That of one env.
        action_space: That of one env.
        published: The versions so far.
        own: The head's own copies of the policies; None if hosts are trusted anyway.
        trusted: Whether hosts may send pickles.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        published: Published,
        own: KnownPolicies | None = None,
        trusted: bool = False,
    ) -> None:
        self._trusted = trusted
        self._observations, self._actions = leaves_of(observation_space), leaves_of(action_space)
        self._ranges = [_range_of(leaf.of(action_space)) for leaf in self._actions]
        self._published, self._own = published, own

    def knows(self, policy_id: int) -> bool:
        """Whether errors in this policy's rows cannot be the policy's own fault."""
        return self._own is not None and self._own.knows(policy_id)

    def check_part(self, part: FragmentPart) -> None:
        """Check a fragment: as many steps as requested, by a published version, and all arrays."""
        num_steps = part.request.num_steps
        self._check_version(part.version, part.request.newest)
        arrays, count = self._without_infos(part), len(part.slots)
        ends = _array(arrays, "finals/steps").size
        expected = self._expected(num_steps, count, ends) | _expected_values(arrays, count, ends)
        _check_exactly(arrays, expected)
        _check_policys_own(arrays, expected, num_steps, count)
        if ends and not np.isin(arrays["finals/slots"], part.slots).all():
            raise ProtocolError("finals of slots that are not its own")
        steps = arrays["finals/steps"]
        if not ((steps >= 0) & (steps < num_steps)).all():
            raise ProtocolError("finals of steps that are not in the fragment")
        self._check_flags(arrays)
        self._check_policys(part)
        self._check_ranges(arrays)

    def _check_flags(self, arrays: Mapping[str, Array]) -> None:
        for name, array in arrays.items():
            if array.dtype == _BOOL:
                check_bools(array, name)

    def _check_policys(self, part: FragmentPart) -> None:
        """Check that a policy's outputs are like those it makes at the head."""
        arrays, leaves = part.arrays, range(len(self._observations))
        kinds = self._kinds_for(
            part.version, lambda: [arrays[f"observations/{leaf}"][0] for leaf in leaves]
        )
        if kinds is not None:
            own = {name: array for name, array in arrays.items() if name.startswith(_POLICYS)}
            arrays.update(_as_expected(own, kinds_of(own), kinds))

    def _kinds_for(self, version: int, observe: Callable[[], list[Array]]) -> Kinds | None:
        policy_id = self._published.policy_id_of(version)
        return None if self._own is None else self._own.kinds_of(policy_id, observe)

    def _check_ranges(self, arrays: Mapping[str, Array]) -> None:
        for index, bounds in enumerate(self._ranges):
            array = arrays[f"actions/{index}"]
            # Not "outside of them": NaN is neither inside nor outside.
            if bounds is not None and not ((array >= bounds[0]) & (array <= bounds[1])).all():
                raise ProtocolError("actions that are not in the action space")

    def kind_of_coded(
        self, name: str, dtype: str, shape: Shape, num_steps: int, count: int
    ) -> np.dtype[Any]:
        """The dtype of observations that came coded, if they have the requested shape."""
        for index, leaf in enumerate(self._observations):
            if leaf.dtype is None or dtype != leaf.dtype.str:
                continue
            if name == f"observations/{index}" and shape == (num_steps + 1, count, *leaf.shape):
                return leaf.dtype
            num_ends = shape[0] if shape else -1
            is_final = 0 <= num_ends <= num_steps * count and shape[1:] == leaf.shape
            if name == f"finals/{index}" and is_final:
                return leaf.dtype
        raise ProtocolError(f"{name!r:.80} of shape {shape!r:.80} is not an observation to decode")

    def check_joined(self, part: FragmentPart, other: Collect) -> None:
        """Check that a fragment which also answers another request has what that one asked for."""
        if other.together or other.num_steps != part.request.num_steps:
            raise ProtocolError("a fragment answers requests that cannot be answered together")
        self._check_version(part.version, other.newest)

    def _without_infos(self, part: FragmentPart) -> dict[str, Array]:
        """The other arrays, after reading the infos as they will be read for the user."""
        infos = {name: array for name, array in part.arrays.items() if name.startswith(INFOS)}
        if infos and not part.request.infos:
            raise ProtocolError("infos, which were not asked for")
        for array in infos.values():
            num_steps, data = part.request.num_steps, bytes_of(array)
            read_columns(data, num_steps, part.slots, allow_pickle=self._trusted)
        return {name: array for name, array in part.arrays.items() if name not in infos}

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
            # The policy chooses the dtype.
            expected[f"actions/{index}"] = ((steps, count, *leaf.shape), None)
        return expected

    def check_acted(
        self, acted: Any, num_slots: int, asked: Newest, observe: Callable[[], list[Array]]
    ) -> None:
        """Check what a policy did in one step of these slots; ``observe`` returns observations."""
        if not (isinstance(acted, dict) and {"action", "version"} <= acted.keys()):
            raise ProtocolError("malformed policy output: expected a dict with action and version")
        made = {f"actions/{index}": array for index, array in self._leaves_in(acted["action"])}
        made |= {f"outputs/{name}": acted[name] for name in acted.keys() - {"action", "version"}}
        for array in (*made.values(), acted["version"]):
            _check_rows(array, num_slots)
        for index, leaf in enumerate(self._actions):
            shape = made[f"actions/{index}"].shape
            if shape[1:] != leaf.shape:
                raise ProtocolError(f"actions of shape {shape}, not {leaf.shape} a row")
        self._check_versions(acted["version"], num_slots, asked)
        kinds = self._kinds_for(int(acted["version"].max()), observe)
        if kinds is not None:
            found = {name: (array.shape[1:], array.dtype) for name, array in made.items()}
            wanted = {
                n: kind for n, kind in kinds.items() if n.startswith(("actions/", "outputs/"))
            }
            for name, array in _as_expected(made, found, wanted).items():
                if name.startswith("outputs/"):
                    acted[name.removeprefix("outputs/")] = array

    def _leaves_in(self, action: Any) -> Iterator[tuple[int, Any]]:
        """The leaves of an action by index; there must be exactly as many as the space has."""
        if _num_leaves(action) != len(self._actions):
            raise ProtocolError("actions of another structure than the space")
        for index, leaf in enumerate(self._actions):
            yield index, _part_of(leaf, action)

    def _check_versions(self, versions: Array, num_slots: int, asked: Newest) -> None:
        if versions.shape != (num_slots,) or versions.dtype != _INT:
            raise ProtocolError("expected one int64 version per slot")
        policies = set()
        for version in {int(versions.min()), int(versions.max())}:
            self._check_version(version, asked)
            policies.add(self._published.policy_of(version))
        if len(policies) > 1:
            raise ProtocolError("versions of two policies in one step")

    def _check_version(self, version: int, asked: Newest) -> None:
        if not 1 <= version <= self._published.version:
            raise ProtocolError(f"version {version} was never published")
        if self._published.policy_of(version) < self._published.policy_of(asked.version):
            raise ProtocolError(f"version {version} is of an earlier policy than was asked for")


def check_values(request: AnyRequest, slots: Sequence[int], values: Any) -> None:
    """Check what a call or an evaluation of these slots returned."""
    if isinstance(request, CountTime):
        if not isinstance(values, list) or not all(map(_are_seconds, values)):
            raise ProtocolError("malformed worker times")
        return
    count = {Call: len(slots), Evaluate: len(slots), SetAttr: 0}.get(type(request), 1)
    if not isinstance(values, list) or len(values) != count:
        raise ProtocolError(f"an answer to {type(request).__name__} without {count} values")
    if isinstance(request, Evaluate):
        wanted = dict(zip(request.slots, request.episodes, strict=True))
        for slot, played in zip(slots, values, strict=True):
            if not _are_episodes(played, wanted[slot]):
                raise ProtocolError(f"an evaluation without {wanted[slot]} episodes of slot {slot}")


def _are_seconds(value: Any) -> bool:
    """Whether this is a worker's times, or empty if it was not there all along."""
    return not value or (
        isinstance(value, dict)
        and {"idle", "behind"} <= value.keys()
        and all(isinstance(name, str) and type(s) is float for name, s in value.items())
        and all(0 <= seconds < math.inf for seconds in value.values())
    )


def _are_episodes(played: Any, count: int) -> bool:
    if not isinstance(played, list) or len(played) != count:
        return False
    for episode in played:
        match episode:
            # A bool is an int too, but not a length.
            case (float(), int(length)) if type(length) is int and 0 <= length < _MOST_STEPS:
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


def _num_leaves(tree: Any) -> int:
    if isinstance(tree, dict):
        return sum(map(_num_leaves, tree.values()))
    return sum(map(_num_leaves, tree)) if isinstance(tree, tuple) else 1


def _as_expected(arrays: Mapping[str, Array], found: Kinds, wanted: Kinds) -> dict[str, Array]:
    """Check that the arrays are as wanted; returns those whose float type had to be converted."""
    if found.keys() != wanted.keys():
        raise ProtocolError(f"its policy has other outputs than here: {_odd(found, wanted)}")
    converted = {}
    for name, (shape, dtype) in wanted.items():
        if found[name] == (shape, dtype):
            continue
        if found[name][0] != shape or not {found[name][1], dtype} <= _FLOATS:
            raise ProtocolError(
                f"{name!r:.80} has rows of shape {found[name][0]} and dtype {found[name][1]}; "
                f"here the policy makes {shape} and {dtype}"
            )
        converted[name] = arrays[name].astype(dtype)
    return converted


def _odd(found: Kinds, wanted: Kinds) -> str:
    return ", ".join(f"{name!r:.80}" for name in sorted(found.keys() ^ wanted.keys())[:5])


def _range_of(space: Space[Any]) -> tuple[Any, Any] | None:
    """The least and greatest value of each number of an action; None if there are no bounds."""
    match space:
        case Discrete(start=low, n=n):
            return low, low + n - 1
        case MultiDiscrete(start=low, nvec=nvec):
            return low, low + nvec - 1
        case MultiBinary():
            return 0, 1
    return None


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
    """The values at the fragment's end and of its finals, if the policy has values."""
    if not any(name in arrays for name in _VALUES):
        return {}
    row = _array(arrays, "outputs/value").shape[2:]
    return {"last_values": ((count, *row), None), "finals/values": ((ends, *row), None)}


def _array(arrays: Mapping[str, Array], name: str) -> Array:
    if name not in arrays:
        raise ProtocolError(f"a fragment without {name}")
    return arrays[name]
