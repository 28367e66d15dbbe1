"""Rollouts as episodes of a Minari dataset. The only file that imports minari."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

try:
    import minari
    from minari.data_collector import EpisodeBuffer
except ImportError as error:
    raise ImportError("MinariRecorder needs Minari: pip install 'clusterenv[minari]'") from error

from clusterenv.env import ClusterEnv
from clusterenv.rollout import Fragment, map_structure

Unfinished = Literal["drop", "truncate"]


class MinariRecorder:
    """Makes the episodes of a Minari dataset out of rollouts, or fragments of a stream.

    Episodes that span several rollouts are joined, slot by slot. Each has its true last
    observation. An episode is *unfinished* if its end was not recorded: at the end of the
    recording, or because the envs were reset or a worker was lost between two rollouts. One whose
    beginning was not recorded is always dropped.

    Pass all rollouts, in order. ``torch()`` versions of them do not fit here.

    Args:
        envs: What the rollouts come from.
        unfinished: ``"drop"`` leaves unfinished episodes out; ``"truncate"`` keeps them, with
            ``truncated`` at their last step.
        infos: The names of infos to keep: an array per name and episode, with a row for each step.
            Every step must have them, and they must be numbers or arrays of one shape. What
            ``reset`` says is not in rollouts.

    Attributes:
        dropped_steps: How many steps were recorded and are in no episode.

    Example:
        >>> recorder = MinariRecorder(envs)  # doctest: +SKIP
        >>> for _ in range(10):  # doctest: +SKIP
        ...     recorder.add(envs.rollout(policy, num_steps=128))
        >>> dataset = recorder.create_dataset("lander/ppo-v0")  # doctest: +SKIP
    """

    def __init__(
        self, envs: ClusterEnv, unfinished: Unfinished = "drop", infos: Sequence[str] = ()
    ) -> None:
        if unfinished not in ("drop", "truncate"):
            raise ValueError(f"unfinished={unfinished!r} must be 'drop' or 'truncate'")
        if isinstance(infos, str):
            raise TypeError(f"infos={infos!r} must be a list of names, such as [{infos!r}]")
        self._envs, self._unfinished, self._infos = envs, unfinished, tuple(infos)
        self._open: dict[int, _Track] = {}
        self._finished: list[EpisodeBuffer] = []
        self.dropped_steps = 0

    def add(self, fragment: Fragment) -> None:
        """Record a rollout or a fragment, which begins where the last one of its slots ended."""
        if not isinstance(fragment.rewards, np.ndarray):
            raise TypeError("pass the rollout itself, not what its torch() returned")
        infos = {name: _info(fragment, name) for name in self._infos}
        ends = _ends_by_column(fragment)
        for column, slot in enumerate(fragment.slots.tolist()):
            part = _Part.of(fragment, infos, column)
            if slot in self._open and not _is_same(self._open[slot].following, part.first):
                self._cut(self._open.pop(slot))
            self._add_part(slot, part, ends.get(column, []))

    def _add_part(self, slot: int, part: _Part, ends: list[_End]) -> None:
        track, start = self._open.pop(slot, _Track()), 0
        for end in ends:
            track.append(part.between(start, end.step + 1), end.observation)
            self._finish(track, end.length)
            track, start = _Track(), end.step + 1
        if start < part.num_steps:
            # A copy, because the rollout's arrays are the user's own, and may be changed.
            rest = map_structure(np.copy, part.between(start, part.num_steps))
            track.append(rest, map_structure(np.copy, part.last))
            self._open[slot] = track

    def _finish(self, track: _Track, length: int) -> None:
        """The worker counted ``length`` steps; the rest of ``track`` was of an episode before."""
        if track.num_steps < length:
            self.dropped_steps += track.num_steps
            return
        before, episode = track.split(length)
        if before is not None:
            self._cut(before)
        self._finished.append(episode.to_buffer())

    def _cut(self, track: _Track) -> None:
        if self._unfinished == "drop":
            self.dropped_steps += track.num_steps
        else:
            self._finished.append(track.to_buffer(is_truncated=True))

    def take_episodes(self) -> list[EpisodeBuffer]:
        """The episodes that have ended since the last call; those under way go on.

        For datasets that are larger than memory:
        ``dataset.update_dataset_from_buffer(recorder.take_episodes())``.
        """
        episodes, self._finished = self._finished, []
        return episodes

    def cut(self) -> None:
        """End the episodes that are under way, as unfinished ones: after a ``reset``, say."""
        for track in self._open.values():
            self._cut(track)
        self._open.clear()

    def create_dataset(self, dataset_id: str, **kwargs: Any) -> minari.MinariDataset:
        """End the recording, and write what was recorded as a dataset of Minari.

        Args:
            dataset_id: The name of the dataset, such as ``"lander/ppo-v0"``.
            **kwargs: What else ``minari.create_dataset_from_buffers`` takes. Without ``env``, an
                id, spec or env, ``dataset.recover_environment()`` cannot make the env again.
        """
        self.cut()
        episodes = self.take_episodes()
        if not episodes:
            raise ValueError(
                f"there is no episode to write: {self.dropped_steps} steps were recorded and "
                "dropped; record more of them, or pass unfinished='truncate'"
            )
        kwargs.setdefault("observation_space", self._envs.single_observation_space)
        kwargs.setdefault("action_space", self._envs.single_action_space)
        return minari.create_dataset_from_buffers(dataset_id, episodes, **kwargs)


@dataclass(frozen=True)
class _End:
    """Where in a fragment an episode ends."""

    step: int
    length: int
    observation: Any


@dataclass(frozen=True)
class _Part:
    """Consecutive steps of one slot."""

    arrays: dict[str, Any]
    """[T, …]: observations before each step, actions, rewards, terminations …"""
    last: Any
    """The observation after the last step, in rows [1, …]."""

    @classmethod
    def of(cls, fragment: Fragment, infos: dict[str, Any], column: int) -> _Part:
        observations = _rows(fragment.observations, slice(None), column)
        arrays = {
            "observations": _rows(observations, slice(None, -1)),
            "actions": _rows(fragment.actions, slice(None), column),
            "rewards": fragment.rewards[:, column],
            "terminations": fragment.terminated[:, column],
            "truncations": fragment.truncated[:, column],
            "infos": {name: array[:, column] for name, array in infos.items()},
        }
        return cls(arrays, _rows(observations, slice(-1, None)))

    @property
    def num_steps(self) -> int:
        return len(self.arrays["rewards"])

    @property
    def first(self) -> Any:
        return _rows(self.arrays["observations"], slice(1))

    def between(self, start: int, stop: int) -> dict[str, Any]:
        part: dict[str, Any] = _rows(self.arrays, slice(start, stop))
        return part


@dataclass
class _Track:
    """What was recorded of a slot since its last episode ended."""

    parts: list[dict[str, Any]] = field(default_factory=list)
    following: Any = None
    """The observation after the last step, in rows [1, …]."""

    def append(self, part: dict[str, Any], following: Any) -> None:
        self.parts.append(part)
        self.following = following

    @property
    def num_steps(self) -> int:
        return sum(len(part["rewards"]) for part in self.parts)

    def split(self, length: int) -> tuple[_Track | None, _Track]:
        """What is before the last ``length`` steps, and these."""
        surplus = self.num_steps - length
        if not surplus:
            return None, self
        joined = _join(self.parts)
        early, late = _rows(joined, slice(surplus)), _rows(joined, slice(surplus, None))
        first = _rows(late["observations"], slice(1))
        return _Track([early], first), _Track([late], self.following)

    def to_buffer(self, is_truncated: bool = False) -> EpisodeBuffer:
        arrays = _join(self.parts)
        arrays["truncations"][-1] |= is_truncated
        arrays["observations"] = _join([arrays["observations"], self.following])
        infos = arrays.pop("infos") or None
        return EpisodeBuffer(infos=infos, **map_structure(_as_minari, arrays))


def _rows(tree: Any, *index: Any) -> Any:
    return map_structure(lambda array: array[index], tree)


def _join(trees: Sequence[Any]) -> Any:
    """The rows of the first, then those of the second …"""
    return map_structure(lambda *arrays: np.concatenate(arrays), *trees)


def _as_minari(array: Any) -> Any:
    """Minari knows texts by their being in a list."""
    return array.tolist() if array.dtype == object else array


def _is_same(one: Any, other: Any) -> bool:
    """Whether two observations are the same, bit by bit."""
    same: list[bool] = []

    def compare(left: Any, right: Any) -> None:
        is_object = left.dtype == object
        same.append((left == right).all() if is_object else left.tobytes() == right.tobytes())

    map_structure(compare, one, other)
    return all(same)


def _ends_by_column(fragment: Fragment) -> dict[int, list[_End]]:
    finals, ends = fragment.finals, dict[int, list[_End]]()
    for row in np.argsort(finals.steps, kind="stable").tolist():
        observation = _rows(finals.observations, slice(row, row + 1))
        end = _End(int(finals.steps[row]), int(fragment.episodes.lengths[row]), observation)
        ends.setdefault(int(finals.columns[row]), []).append(end)
    return ends


def _info(fragment: Fragment, name: str) -> Any:
    """[T, n, …]: what each step said, and where an episode ended, what its last step said."""
    ended = fragment.terminated | fragment.truncated
    sources = ((fragment.infos, ~ended), (fragment.infos.get("final_info", {}), ended))
    found = [(infos[name], infos[f"_{name}"] & rows) for infos, rows in sources if name in infos]
    if not found or any(not _is_array(values) for values, _ in found):
        raise ValueError(f"info {name!r} must be a number, or an array of one shape, in each step")
    arrays = [values for values, _ in found]
    joined, missing = np.zeros(arrays[0].shape, np.result_type(*arrays)), np.ones_like(ended)
    for values, rows in found:
        joined[rows], missing[rows] = values[rows], False
    if missing.any():
        raise ValueError(f"info {name!r} is missing in {missing.sum()} of {missing.size} steps")
    return joined


def _is_array(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype != object
