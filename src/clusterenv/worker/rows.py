"""Where the results of a request go: into the arena, or into frames of the reply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from clusterenv.wire.arena import Arena, Window
from clusterenv.wire.codec import Array, Buffer, frame_of, header_of
from clusterenv.wire.infos import pack_infos
from clusterenv.wire.messages import Stepped
from clusterenv.wire.spaces import Leaf
from clusterenv.wire.values import pack

# To stack small ones afterwards, all at once, costs less.
_WORTH_LANDING_BYTES = 1 << 10
# Of all or some slots, always the same: more would come of single slots that are sent as they like.
_MOST_WINDOWS = 64


@dataclass(slots=True)
class Outcome:
    """What stepping or resetting some slots gave.

    ``observations`` has one observation per slot, or is a batched observation.
    ``infos`` may name a slot twice; the head adds them in this order.
    """

    observations: Any
    rewards: Sequence[Any] | Array
    terminated: Sequence[bool] | Array
    truncated: Sequence[bool] | Array
    infos: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    batched: bool = False
    none_ended: bool = False
    """Known already: not one of the flags is set."""
    landed: bool = False
    """The observations are in the array that they were to go to."""

    def column(self, leaf: Leaf) -> Any:
        """The values of one leaf, one per slot."""
        if self.batched:
            return leaf.of(self.observations)
        if not leaf.path:
            return self.observations
        return [leaf.of(observation) for observation in self.observations]


class Landing:
    """An array to which observations go one by one, each while it is still in the cache."""

    def __init__(self, array: Array, leaf: Leaf) -> None:
        self.array, self._leaf = array, leaf
        self._dtype, self._shape = array.dtype, leaf.shape

    @staticmethod
    def is_worth_it(leaves: Sequence[Leaf]) -> bool:
        """Whether observations are one array that is not small."""
        leaf, *others = leaves or (None,)
        if leaf is None or others or leaf.path or leaf.dtype is None:
            return False
        return math.prod(leaf.shape) * leaf.dtype.itemsize >= _WORTH_LANDING_BYTES

    @staticmethod
    def of_size(count: int, leaf: Leaf) -> Landing:
        """In an array of its own."""
        return Landing(np.empty((count, *leaf.shape), leaf.dtype), leaf)

    def put(self, row: int, observation: Any) -> None:
        """Copy it, or say why it does not fit."""
        if (
            type(observation) is np.ndarray
            and observation.dtype == self._dtype
            and observation.shape == self._shape
        ):
            self.array[row] = observation
        else:
            fill(self.array[row : row + 1], [observation], self._leaf)


class Rows(Protocol):
    """Takes an outcome and makes the reply of it."""

    def landing(self, request: int, slots: Sequence[int]) -> Landing | None:
        """Where the observations of a step may go one by one, if that is worth it."""

    def reply(
        self, request: int, slots: Sequence[int], outcome: Outcome
    ) -> tuple[Stepped, list[Buffer]]:
        """The message for the head and its frames."""


class FrameRows:
    """Results travel as frames of the reply."""

    def __init__(self, leaves: Sequence[Leaf], trusted: bool) -> None:
        self._leaves, self._trusted = leaves, trusted
        self._lands = Landing.is_worth_it(leaves)

    def landing(self, request: int, slots: Sequence[int]) -> Landing | None:
        """In an array that is going to be a frame."""
        return Landing.of_size(len(slots), self._leaves[0]) if self._lands else None

    def reply(
        self, request: int, slots: Sequence[int], outcome: Outcome
    ) -> tuple[Stepped, list[Buffer]]:
        """Fresh arrays each time: libzmq reads them after this returns."""
        count = len(slots)
        arrays: list[Array] = [
            np.empty(count),
            np.empty(count, np.bool_),
            np.empty(count, np.bool_),
        ]
        fill_flags(arrays[0], arrays[1], arrays[2], outcome)
        arrays += _stack(self._leaves, outcome, count)
        objects, infos = _pack_rest(self._leaves, outcome, self._trusted)
        headers = tuple(header_of(array) for array in arrays)
        return Stepped(request, headers, objects, infos), [frame_of(array) for array in arrays]


class ArenaRows:
    """Results go to their slots' rows of the arena; the reply only says that they are there."""

    def __init__(self, arena: Arena, place: int, leaves: Sequence[Leaf], trusted: bool) -> None:
        self._arena, self._place = arena, place
        self._leaves, self._trusted = leaves, trusted
        self._lands = Landing.is_worth_it(leaves)
        self._has_objects = any(not leaf.is_array for leaf in leaves)
        self._windows: dict[tuple[int, int], Window] = {}

    def landing(self, request: int, slots: Sequence[int]) -> Landing | None:
        """In the arena itself, where the slots are neighbours."""
        if not self._lands:
            return None
        window = self._window_of(slots)
        array = None if window is None else window.observations[0]
        if window is None or array is None:
            return Landing.of_size(len(slots), self._leaves[0])
        window.begin_to_write(self._place, request)
        return Landing(array, self._leaves[0])

    def reply(
        self, request: int, slots: Sequence[int], outcome: Outcome
    ) -> tuple[Stepped, list[Buffer]]:
        """Write the rows, and say so."""
        self.write(request, slots, outcome)
        return self.rest(request, outcome), []

    def write(self, request: int, slots: Sequence[int], outcome: Outcome) -> None:
        """Write the rows, unless they are there already."""
        window = self._window_of(slots)
        if window is None:
            self._arena.begin_to_write(slots, self._place, request)
            self._scatter(list(slots), outcome)
        else:
            if not outcome.landed:
                window.begin_to_write(self._place, request)
                for leaf, array in zip(self._leaves, window.observations, strict=True):
                    if array is not None:
                        fill(array, outcome.column(leaf), leaf)
            fill_flags(window.rewards, window.terminated, window.truncated, outcome)

    def are_not_all(self, outcome: Outcome) -> bool:
        """Whether there is more to say than what the rows do."""
        return self._has_objects or bool(outcome.infos)

    def rest(self, request: int, outcome: Outcome) -> Stepped:
        """What the rows do not say."""
        return Stepped(request, (), *_pack_rest(self._leaves, outcome, self._trusted))

    def _window_of(self, slots: Sequence[int]) -> Window | None:
        first, last = slots[0], slots[-1]
        if last - first + 1 != len(slots):
            return None
        window = self._windows.get((first, last))
        if window is None:
            if len(self._windows) == _MOST_WINDOWS:
                self._windows.clear()
            window = self._windows[first, last] = Window(self._arena, slice(first, last + 1))
        return window

    def _scatter(self, rows: list[int], outcome: Outcome) -> None:
        arena = self._arena
        arena.rewards[rows] = outcome.rewards
        arena.terminated[rows] = outcome.terminated
        arena.truncated[rows] = outcome.truncated
        arrays = [array for array in arena.observations if array is not None]
        for array, values in zip(arrays, _stack(self._leaves, outcome, len(rows)), strict=True):
            array[rows] = values


def _stack(leaves: Sequence[Leaf], outcome: Outcome, count: int) -> list[Array]:
    """The observations, an array per leaf that can be one."""
    if outcome.landed:
        return [outcome.observations]
    arrays = []
    for leaf in leaves:
        if leaf.dtype is not None:
            arrays.append(np.empty((count, *leaf.shape), leaf.dtype))
            fill(arrays[-1], outcome.column(leaf), leaf)
    return arrays


def fill_flags(rewards: Array, terminated: Array, truncated: Array, outcome: Outcome) -> None:
    """Copy rewards and flags."""
    rewards[:] = outcome.rewards
    if outcome.none_ended:
        terminated[:] = truncated[:] = False
    else:
        terminated[:] = outcome.terminated
        truncated[:] = outcome.truncated


def fill(out: Array, column: Any, leaf: Leaf) -> None:
    """Stack ``column`` into ``out``, with the casts that ``np.stack(…, out=…)`` would allow."""
    try:
        if out.ndim > 1 and not isinstance(column, np.ndarray):
            # One flat concatenation costs a fraction of a stack, but looks at the sum only of the
            # first lengths.
            if not all(map(out.shape[1].__eq__, map(len, column))):
                raise ValueError("observations of other lengths")
            flat = (out.shape[0] * out.shape[1], *out.shape[2:])
            np.concatenate(column, out=out.reshape(flat))
        else:
            stacked = np.asarray(column)
            if stacked.shape != out.shape:  # copyto would broadcast
                raise ValueError("observations of another shape")
            np.copyto(out, stacked, casting="same_kind")
    except (TypeError, ValueError) as error:
        got = sorted({f"{np.shape(v)} {getattr(v, 'dtype', type(v).__name__)}" for v in column})
        place = "".join(f"[{key!r}]" for key in leaf.path)
        raise type(error)(
            f"observation{place} does not fit the observation space: expected {leaf.shape} "
            f"{leaf.dtype}, got {', '.join(got)}"
        ) from error


def _pack_rest(leaves: Sequence[Leaf], outcome: Outcome, trusted: bool) -> tuple[bytes, bytes]:
    columns = [list(outcome.column(leaf)) for leaf in leaves if not leaf.is_array]
    objects = pack(columns, allow_pickle=trusted) if columns else b""
    return objects, pack_infos(outcome.infos, allow_pickle=trusted)
