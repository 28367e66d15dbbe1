"""Rows by slot: results are placed by slot, never by arrival."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import Space

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError
from clusterenv.head.episodes import EpisodeLog
from clusterenv.head.infos import AddInfo, Infos
from clusterenv.plain.row_layout import ResultRows
from clusterenv.plain.spaces import join_leaves, leaves_of, rows_of, single_array_leaf

# Fresh memory costs a page fault every 4 kB: more than the copying itself.
_WORTH_REUSING_BYTES = 1 << 17
_COPIES = 3
_MOST_VIEWS = 64


class Batch:
    """The latest observation, reward and flags of every slot.

    The arrays are the fleet's: on one machine workers write to them directly.

    It knows much because it keeps at hand what most loops ask for.
    """

    def __init__(
        self,
        space: Space[Any],
        results: ResultRows,
        trusted: bool = True,
        episodes: EpisodeLog | None = None,
    ) -> None:
        self._space = space
        self._leaves = leaves_of(space)
        self.rewards, self.terminated = results.rewards, results.terminated
        self.truncated, self._arrays = results.truncated, results.observations
        num_envs = len(self.rewards)
        self._only = self._arrays[0] if single_array_leaf(space) else None
        """The observations, if they are a single array."""
        is_small = self._only is not None and self._only.nbytes < _WORTH_REUSING_BYTES
        self._small = self._only if is_small else None
        self._objects: list[list[Any]] = [[None] * num_envs for leaf in self._leaves]
        self._slots = np.arange(num_envs)
        self.infos = Infos(num_envs, trusted)
        self.episodes = EpisodeLog(num_envs) if episodes is None else episodes
        self._copies: dict[int, list[Array]] = {}
        self._views: dict[tuple[int, int], tuple[Array, Array, Array, Array, Array]] = {}

    def put_objects(self, slots: Sequence[int], columns: Sequence[Sequence[Any]]) -> None:
        """Take the values of the leaves that are not arrays."""
        places = [index for index, leaf in enumerate(self._leaves) if not leaf.is_array]
        if not _are_lists_of(columns, len(places), len(slots)):
            raise ProtocolError(f"a reply for {len(slots)} slots has objects of another layout")
        for place, column in zip(places, columns, strict=True):
            for slot, value in zip(slots, column, strict=True):
                self._objects[place][slot] = value

    def note_info(self, slot: int, info: dict[str, Any]) -> None:
        """Put this into the next infos of a slot."""
        self.infos.note(slot, info)

    def forget_infos(self) -> None:
        """Drop the infos that have come."""
        self.infos.forget()

    def mark_lost(self, slot: int) -> None:
        """Mark a slot whose env is gone: its last good observation, reward 0, truncated."""
        self.rewards[slot] = 0.0
        self.terminated[slot] = False
        self.truncated[slot] = True
        self.infos.note(slot, {"env_lost": True})

    def start_episodes(self, slots: Sequence[int], has_row: bool) -> None:
        """Note that these slots start over; ``has_row`` if the reset's own row is returned too."""
        self.episodes.note_reset(slots, has_row)

    def lose_episodes(self, slots: Sequence[int]) -> None:
        """Note that these slots were lost in the middle of an episode."""
        self.episodes.forget(slots)

    def results(self, copy: bool, add_info: AddInfo) -> tuple[Any, Array, Array, Array, Any]:
        """The results of a step of all slots."""
        if self.episodes.is_watched:
            self.episodes.note_rows(self.rewards, self.terminated, self.truncated)
        return (
            # The most common case first: all workers wait meanwhile.
            self._small.copy() if copy and self._small is not None else self.observations(copy),
            self._rewards_of(self.rewards),
            self.terminated.copy(),
            self.truncated.copy(),
            self.infos.take(add_info),
        )

    def _rewards_of(self, rewards: Array) -> Array:
        """A copy, in the VectorEnvs' own dtype if they have one."""
        dtype = self.infos.reward_dtype
        return rewards.copy() if dtype is None else rewards.astype(dtype)

    def observations(self, copy: bool) -> Any:
        """The observations of all slots, in the structure of the observation space."""
        if self._only is not None:
            return self._copy(0, self._only) if copy else self._only
        values = [
            array if array is not None else tuple(objects)
            for array, objects in zip(self._arrays, self._objects, strict=True)
        ]
        if copy:
            values = [
                self._copy(index, value) if isinstance(value, np.ndarray) else deepcopy(value)
                for index, value in enumerate(values)
            ]
        return join_leaves(self._space, values)

    def _copy(self, leaf: int, array: Array) -> Array:
        """A copy, in memory that was handed out before if nobody holds it any more."""
        if array.nbytes < _WORTH_REUSING_BYTES:
            return array.copy()
        copies = self._copies.setdefault(leaf, [])
        for copy in copies:
            # Three references are the list's, `copy` and the call: every other holder has let go.
            if sys.getrefcount(copy) <= 3:
                np.copyto(copy, array)
                return copy
        copies.append(array.copy())
        del copies[:-_COPIES]
        return copies[-1]

    def results_of(self, slots: Sequence[int]) -> tuple[Any, Array, Array, Array, Any]:
        """The results of some slots (ascending), which ``infos["env_id"]`` names."""
        infos, first = self.infos.take_of(slots), slots[0]
        if self.episodes.is_watched:
            self.episodes.note_rows(self.rewards, self.terminated, self.truncated, slots)
        if self._only is not None and slots[-1] - first + 1 == len(slots):
            # Many loops ask for the same slots every time: keeping the views costs less.
            views = self._views.get((first, len(slots))) or self._view(first, len(slots))
            env_id, observations, rewards, terminated, truncated = views
            infos["env_id"] = env_id.copy()
            rewards = self._rewards_of(rewards)
            return observations.copy(), rewards, terminated.copy(), truncated.copy(), infos
        rows = infos["env_id"] = np.array(slots)
        flags = self._rewards_of(self.rewards[rows]), self.terminated[rows], self.truncated[rows]
        return self._observations_of(slots, rows), *flags, infos

    def _view(self, first: int, count: int) -> tuple[Array, Array, Array, Array, Array]:
        assert self._only is not None
        if len(self._views) == _MOST_VIEWS:
            self._views.clear()
        rows = slice(first, first + count)
        flags = self.rewards[rows], self.terminated[rows], self.truncated[rows]
        self._views[first, count] = views = self._slots[rows], self._only[rows], *flags
        return views

    def _observations_of(self, slots: Sequence[int], rows: Array) -> Any:
        values = [
            array[rows] if array is not None else deepcopy(tuple(objects[slot] for slot in slots))
            for array, objects in zip(self._arrays, self._objects, strict=True)
        ]
        return join_leaves(self._space, values)

    def leaves_of(self, slots: Sequence[int]) -> list[Array]:
        """A copy of the observations of some slots (ascending), for a policy; all are arrays."""
        return [array[rows_of(slots)].copy() for array in self._arrays if array is not None]

    def observation_of(self, slot: int) -> Any:
        """A copy of the observation of one slot, as its env gave it."""
        values = [
            array[slot].copy() if array is not None else deepcopy(objects[slot])
            for array, objects in zip(self._arrays, self._objects, strict=True)
        ]
        return join_leaves(self._space, values)


def _are_lists_of(columns: Any, count: int, length: int) -> bool:
    return (
        isinstance(columns, list)
        and len(columns) == count
        and all(isinstance(column, list) and len(column) == length for column in columns)
    )
