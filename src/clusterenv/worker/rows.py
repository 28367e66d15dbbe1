"""Puts the results of a request into the rows that host and worker share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.memory.shared_rows import RowRange, SharedRows
from clusterenv.plain.batched_infos import BatchedInfos
from clusterenv.plain.infos import pack_infos
from clusterenv.plain.spaces import Leaf
from clusterenv.plain.values import pack
from clusterenv.protocol.replies import Stepped

# Usually the same few ranges, of all or some slots; single slots sent in any order make more.
_MOST_RANGES = 64


@dataclass(frozen=True, slots=True)
class BatchedEnds:
    """The episodes that a step of a VectorEnv has ended."""

    rows: Array
    """Ascending."""
    columns: list[Any]
    """For each leaf of the observation space, the last value in each of these rows."""


@dataclass(slots=True)
class Outcome:
    """The results of stepping or resetting some slots.

    ``observations`` has one observation per slot, or is a batched observation.
    ``infos`` may name a slot twice; the head adds them in this order. A VectorEnv's are arrays.
    """

    observations: Any
    rewards: Sequence[Any] | Array
    terminated: Sequence[bool] | Array
    truncated: Sequence[bool] | Array
    infos: list[tuple[int, dict[str, Any]]] | BatchedInfos = field(default_factory=list)
    batched: bool = False
    none_ended: bool = False
    """Whether it is known that none of the flags is set."""
    landed: bool = False
    """Whether all columns are in the arrays where they belong."""
    ends: BatchedEnds | None = None
    """The episodes that have ended, if a VectorEnv was stepped for a rollout."""
    on_device: Any = None
    """The observations on the engine's device, if it has one."""

    def final_observations(self, row_of: Mapping[int, int]) -> Iterator[tuple[int, Any]]:
        """Slot and last observation of each ended episode; ``row_of`` maps slots to rows.

        An info of this name while the episode goes on is the env's own.
        """
        if isinstance(self.infos, BatchedInfos):
            return
        for slot, info in self.infos:
            row = row_of[slot]
            if "final_obs" in info and (self.terminated[row] or self.truncated[row]):
                yield slot, info["final_obs"]

    def column(self, leaf: Leaf) -> Any:
        """The values of one leaf, one per slot."""
        if self.batched:
            return leaf.of(self.observations)
        if not leaf.path:
            return self.observations
        try:
            return [leaf.of(observation) for observation in self.observations]
        except (LookupError, TypeError) as error:
            raise ValueError(_what_is_missing(self.observations, leaf)) from error


class Landing:
    """Rows into which the results of single envs go one by one, each while it is in the cache.

    Collected until all envs have stepped, they would evict what the next env needs.
    """

    def __init__(
        self, observations: Array, rewards: Array, terminated: Array, truncated: Array, leaf: Leaf
    ) -> None:
        self.observations, self.rewards = observations, rewards
        self.terminated, self.truncated = terminated, truncated
        self.dtype, self.shape = observations.dtype, leaf.shape
        self.leaf = leaf
        self.outcome = Outcome(
            observations, rewards, terminated, truncated, batched=True, landed=True
        )

    @cached_property
    def rows(self) -> list[Array]:
        """A view of each row: indexing the array each time costs as much as filling the row."""
        return list(self.observations)

    @staticmethod
    def is_possible(leaves: Sequence[Leaf]) -> bool:
        """Whether an observation is a single array (single numbers are stacked faster)."""
        if len(leaves) != 1 or leaves[0].path:
            return False
        return leaves[0].dtype is not None and leaves[0].shape != ()

    @staticmethod
    def of_size(count: int, leaf: Leaf) -> Landing:
        """A landing in arrays of its own."""
        terminated, truncated = np.empty((2, count), np.bool_)
        observations = np.empty((count, *leaf.shape), leaf.dtype)
        return Landing(observations, np.empty(count), terminated, truncated, leaf)

    def put(self, row: int, observation: Any) -> None:
        """Copy an observation that is not exactly as expected, or say why it does not fit."""
        fill(self.observations[row : row + 1], [observation], self.leaf)


class RowWriter:
    """Writes results to their slots' rows of shared memory; the reply holds only the rest."""

    def __init__(
        self, shared: SharedRows, worker: int, leaves: Sequence[Leaf], trusted: bool
    ) -> None:
        self._shared, self._worker = shared, worker
        self._leaves, self._trusted = leaves, trusted
        self._lands = Landing.is_possible(leaves)
        self._has_objects = any(not leaf.is_array for leaf in leaves)
        self._ranges: dict[tuple[int, int], tuple[RowRange, Landing | None]] = {}
        self._written: RowRange | None = None
        self._kept: RowRange | None = None

    def landing(self, request: int, slots: Sequence[int]) -> Landing | None:
        """Where the results of a step may go one by one: the rows themselves, or None."""
        rows, landing = self._range_of(slots)
        if rows is not None and landing is not None:
            self._begin_to_write(rows, request)
        return landing

    def begin(self, request: int, slots: Sequence[int], dtype: str) -> tuple[Any, Landing | None]:
        """The actions in the rows of these slots, and what :meth:`landing` returns."""
        rows, landing = self._range_of(slots)
        if rows is None:
            return self._shared.copy_actions(dtype, slots), None
        if landing is not None:
            self._begin_to_write(rows, request)
        return rows.copy_actions(dtype), landing

    def write(self, request: int, slots: Sequence[int], outcome: Outcome) -> None:
        """Write the rows, unless they have landed already."""
        if outcome.landed:
            return
        rows, _ = self._range_of(slots)
        if rows is None:
            self._kept = self._written = None
            self._shared.begin_to_write(slots, self._worker, request)
            self._scatter(self._shared.rows_of(slots), outcome)
            return
        self._begin_to_write(rows, request)
        for leaf, array in zip(self._leaves, rows.observations, strict=True):
            if array is not None:
                fill(array, outcome.column(leaf), leaf)
        fill_flags(rows.rewards, rows.terminated, rows.truncated, outcome)

    def _begin_to_write(self, rows: RowRange, request: int) -> None:
        if self._kept is not rows:
            rows.keep()
        self._written, self._kept = rows, None
        self._shared.note_write(self._worker, request)

    def keep(self) -> None:
        """Back up what was just answered now, while nobody waits for it."""
        # From now on there is nothing to take back.
        self._shared.note_write(self._worker, 0)
        if self._written is not None:
            self._written.keep()
            self._written, self._kept = None, self._written

    def are_not_all(self, outcome: Outcome) -> bool:
        """Whether there is more to send than the rows."""
        return self._has_objects or bool(outcome.infos)

    def rest(self, request: int, outcome: Outcome) -> Stepped:
        """What the rows cannot hold."""
        return Stepped(request, *_pack_rest(self._leaves, outcome, self._trusted))

    def _range_of(self, slots: Sequence[int]) -> tuple[RowRange | None, Landing | None]:
        first, last = slots[0], slots[-1]
        if last - first + 1 != len(slots):
            return None, None
        return self._ranges.get((first, last)) or self._open(first, last)

    def _open(self, first: int, last: int) -> tuple[RowRange, Landing | None]:
        if len(self._ranges) == _MOST_RANGES:
            self._ranges.clear()
        rows, landing = RowRange(self._shared, range(first, last + 1)), None
        array = rows.observations[0] if self._lands else None
        if array is not None:
            columns = (rows.rewards, rows.terminated, rows.truncated)
            landing = Landing(array, *columns, self._leaves[0])
        self._ranges[first, last] = rows, landing
        return rows, landing

    def _scatter(self, rows: Any, outcome: Outcome) -> None:
        results = self._shared.results
        results.rewards[rows] = outcome.rewards
        results.terminated[rows] = outcome.terminated
        results.truncated[rows] = outcome.truncated
        arrays = [array for array in results.observations if array is not None]
        stacked = _stack(self._leaves, outcome, len(outcome.rewards))
        for array, values in zip(arrays, stacked, strict=True):
            array[rows] = values


def _stack(leaves: Sequence[Leaf], outcome: Outcome, count: int) -> list[Array]:
    """The observations, one array per leaf that can be one."""
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
            # One flat concatenation costs a fraction of a stack, but checks only the sum of the
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


def _what_is_missing(observations: Sequence[Any], leaf: Leaf) -> str:
    """The first part of a leaf's path that an observation lacks, in words."""
    for observation in observations:
        part, before = observation, ""
        for key in leaf.path:
            try:
                part = part[key]
            except (LookupError, TypeError):
                has = list(part) if isinstance(part, dict) else f"a {type(part).__name__}"
                return (
                    f"observation{before} has no {key!r}, which the observation space has; it is "
                    f"{f'a dict with {has}' if isinstance(has, list) else has}"
                )
            before += f"[{key!r}]"
    return f"observations do not fit the observation space at {leaf.path}"


def _pack_rest(leaves: Sequence[Leaf], outcome: Outcome, trusted: bool) -> tuple[bytes, bytes]:
    columns = [list(outcome.column(leaf)) for leaf in leaves if not leaf.is_array]
    objects = pack(columns, allow_pickle=trusted) if columns else b""
    return objects, pack_infos(outcome.infos, allow_pickle=trusted)
