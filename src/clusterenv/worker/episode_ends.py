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
    ) -> tuple[Array, Array]:
        """Return and length of each ended episode.

        Args:
            rewards: [T, n].
            returns: What the episodes had collected before; what they have now is written to it.
            lengths: Likewise.
        """
        num_steps, count = rewards.shape
        steps, columns = np.array(self.steps, np.int64), np.array(self.columns, np.int64)
        # Every column consists of pieces of episodes: the first begins with the column, each other
        # one after an end. They are numbered column by column, in order of time.
        begins = np.concatenate([np.zeros(count, np.int64), steps + 1])
        owners = np.concatenate([np.arange(count), columns])
        order = np.lexsort((begins, owners))
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        first, ended = number[:count], number[count:] - 1
        last = np.append(first[1:], len(order)) - 1
        begins = (owners * num_steps + begins)[order]
        collected, lasted = _sums(rewards.T.ravel(), begins), np.diff(begins, append=rewards.size)
        collected[first] += returns
        lasted[first] += lengths
        returns[:], lengths[:] = collected[last], lasted[last]
        return collected[ended], lasted[ended]


def _sums(values: Array, begins: Array) -> Array:
    """The sum of each piece, to the last bit as ``np.sum`` of it; pieces may be empty."""
    # ``reduceat`` would start with a piece's first value, and sum those after it in other groups.
    padded = np.insert(values, begins, 0.0)
    return np.add.reduceat(padded, begins + np.arange(len(begins)))
