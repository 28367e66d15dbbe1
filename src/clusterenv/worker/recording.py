"""The arrays of one fragment, filled step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.distributions import Distribution
from clusterenv.policies import recurrent
from clusterenv.policies.base import Acted
from clusterenv.worker.episode_ends import EpisodeEnds
from clusterenv.worker.not_a_number import LOOKED_AT, refuse_nan_outputs
from clusterenv.worker.rows import Landing, Outcome, fill_flags
from clusterenv.worker.translator import Translator


class Recording:
    """What a policy did in the envs of a worker, and what came of it.

    Args:
        translator: Knows the spaces.
        column: Slot → its column in the fragment.
        newest: The observations with which the fragment begins.
        num_steps: How many steps it will have.
    """

    def __init__(
        self,
        translator: Translator,
        column: Mapping[int, int],
        newest: list[Array],
        num_steps: int,
    ) -> None:
        self._translator, self._slots = translator, tuple(column)
        self._lands = Landing.is_possible(translator.leaves)
        count = len(column)
        self._observations = translator.empty(num_steps + 1, count)
        self._rewards = np.empty((num_steps, count))
        self._terminated, self._truncated = np.empty((2, num_steps, count), np.bool_)
        self._acts: list[Acted] = []
        self.ends = EpisodeEnds(translator, column)
        for array, leaf in zip(self._observations, newest, strict=True):
            array[0] = leaf

    def observed(self, step: int) -> Any:
        """The observations before a step, as a policy gets them."""
        # Copies: a policy may write to its input, and the recording must not change.
        return self._translator.join([array.copy() for array in self.rows(step)])

    def rows(self, step: int) -> list[Array]:
        """The observations before a step, one array per leaf."""
        return [array[step] for array in self._observations]

    def landing(self, step: int) -> Landing | None:
        """Where the results of a step may go one by one."""
        if not self._lands:
            return None
        array, leaf = self._observations[0][step + 1], self._translator.leaves[0]
        return Landing(array, *self._columns(step), leaf)

    def add(self, step: int, acted: Acted, outcome: Outcome) -> list[int]:
        """Record a step; returns the columns whose episodes it has ended."""
        if not outcome.landed:
            self._translator.put(self.rows(step + 1), outcome)
            fill_flags(*self._columns(step), outcome)
        self._acts.append(acted)
        return [] if outcome.none_ended else self.ends.add(step, outcome, acted.state)

    def add_up(self, returns: Array, lengths: Array) -> tuple[Array, Array]:
        """Return and length of each episode that has ended so far.

        Args:
            returns: What the episodes had collected before; what they have now is written to it.
            lengths: Likewise.
        """
        return self.ends.returns_and_lengths(self._rewards[: len(self._acts)], returns, lengths)

    def arrays(self, first_state: Any, returns: Array, lengths: Array) -> dict[str, Array]:
        """Everything by name, when all steps are recorded.

        Args:
            first_state: The recurrent state with which the fragment began.
            returns: As in :meth:`add_up`.
            lengths: Likewise.
        """
        acted = self._acts[0]
        return {
            **{f"observations/{i}": array for i, array in enumerate(self._observations)},
            "rewards": self._rewards,
            "terminated": self._terminated,
            "truncated": self._truncated,
            **self._actions(),
            **{f"outputs/{name}": self._output(name) for name in acted.outputs},
            **_stack_distributions([acted.distribution for acted in self._acts]),
            **recurrent.named_arrays(first_state, acted.state),
            **self._table(*self.add_up(returns, lengths)),
        }

    def _columns(self, step: int) -> tuple[Array, Array, Array]:
        return self._rewards[step], self._terminated[step], self._truncated[step]

    def _actions(self) -> dict[str, Array]:
        leaves = self._translator.action_leaves
        arrays = [_stack([leaf.of(acted.actions) for acted in self._acts]) for leaf in leaves]
        self._translator.check_range(arrays)
        return {f"actions/{index}": array for index, array in enumerate(arrays)}

    def _output(self, name: str) -> Array:
        array = _stack([acted.outputs[name] for acted in self._acts])
        if name in LOOKED_AT:
            refuse_nan_outputs(name, np.swapaxes(array, 0, 1), self._slots)
        return array

    def _table(self, returns: Array, lengths: Array) -> dict[str, Array]:
        """One row per ended episode."""
        ends = self.ends
        return {
            "finals/steps": np.array(ends.steps, np.int64),
            "finals/slots": np.array(self._slots, np.int64)[ends.columns],
            "finals/returns": returns,
            "finals/lengths": lengths,
            **{f"finals/{index}": column for index, column in enumerate(ends.observations)},
        }


def _stack_distributions(distributions: Sequence[Distribution | None]) -> dict[str, Array]:
    """What the actions were drawn from, [T, n, …]."""
    parameters = [{} if one is None else one.arrays() for one in distributions]
    return {
        f"distribution/{name}": _stack([arrays[name] for arrays in parameters])
        for name in parameters[0]
    }


def _stack(steps: Sequence[Array]) -> Array:
    """One array [T, n, …], like ``np.stack``, which costs several times as much for small ones."""
    return np.concatenate(steps).reshape(len(steps), *np.shape(steps[0]))
