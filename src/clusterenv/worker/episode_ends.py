"""The ends of episodes within a fragment, with the true last observations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.policies import recurrent
from clusterenv.worker.rows import Outcome, fill
from clusterenv.worker.translator import Translator


class EpisodeEnds:
    """Collects ends step by step; arrays of a VectorEnv stay arrays.

    Args:
        translator: Knows the observation space.
        column: Slot → its column in the fragment.
    """

    def __init__(self, translator: Translator, column: Mapping[int, int]) -> None:
        self._translator, self._column = translator, column
        self.steps: list[int] = []
        self.columns: list[int] = []
        """In which step, and in which column, each episode has ended; in order of time."""
        self._observations: list[Any] = []
        """One by one, from single envs."""
        self._batches: list[list[Any]] = []
        """One column per leaf, from each step of a VectorEnv."""
        self._states: list[Any] = []

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: int, outcome: Outcome, state: Any) -> list[int]:
        """Note which episodes a step has ended; returns their columns."""
        ends = outcome.ends
        if ends is not None:
            columns: list[int] = ends.rows.tolist()
            self._batches.append(ends.columns)
        else:
            found = list(outcome.final_observations(self._column))
            columns = [self._column[slot] for slot, _ in found]
            self._observations += [observation for _, observation in found]
        if columns:
            self.steps += [step] * len(columns)
            self.columns += columns
            self._states.append(recurrent.rows_of(state, columns))
        return columns

    @cached_property
    def observations(self) -> list[Array]:
        """The last observations, an array per leaf; asked for when all ends are known."""
        translator = self._translator
        if not self._batches:
            return translator.stack(self._observations)
        arrays, first = translator.empty(len(self)), 0
        for columns in self._batches:
            last = first + len(columns[0])
            for leaf, array, column in zip(translator.leaves, arrays, columns, strict=True):
                fill(array[first:last], column, leaf)
            first = last
        return arrays

    @property
    def states(self) -> Any:
        """The recurrent states after the last observations."""
        return recurrent.join_rows(self._states)

    def returns_and_lengths(
        self, rewards: Array, returns: Array, lengths: Array
    ) -> tuple[list[float], list[int]]:
        """Return and length of each ended episode.

        Args:
            rewards: [T, n].
            returns: What the episodes had collected before; what they have now is written to it.
            lengths: Likewise.
        """
        by_column, add = list(np.ascontiguousarray(rewards.T)), np.add.reduce
        begun, sums = [0] * len(by_column), returns.tolist()
        ended_returns, ended_lengths = [], []
        for step, column in zip(self.steps, self.columns, strict=True):
            first, begun[column] = begun[column], step + 1
            ended_returns.append(float(sums[column] + add(by_column[column][first : step + 1])))
            ended_lengths.append(int(lengths[column]) + step + 1 - first)
            sums[column], lengths[column] = 0.0, 0
        returns[:] = [
            one + add(rest[first:]) for one, rest, first in zip(sums, by_column, begun, strict=True)
        ]
        lengths += len(rewards) - np.array(begun, lengths.dtype)
        return ended_returns, ended_lengths
