"""The newest observations of a worker's envs, for a policy to act on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clusterenv.arrays import Array
from clusterenv.memory.shared_rows import RowRange, SharedRows


class NewestObservations:
    """The newest observation of each slot, whether from a reset, a step or a fragment.

    Resets and steps leave it in the shared rows; a fragment leaves it in arrays of its own.
    """

    def __init__(self, shared: SharedRows, slots: tuple[int, ...]) -> None:
        self._slots, self._column = slots, {slot: column for column, slot in enumerate(slots)}
        self._rows = RowRange(shared, slots)
        self._collected: list[Array] = []
        self.ahead: set[int] = set()
        """The slots whose newest observation is from a fragment, and not in their rows."""
        self._unknown = set(slots)

    def note_reset(self, slots: Sequence[int]) -> None:
        """Note that these slots were reset, and that their rows are written."""
        self._unknown.difference_update(slots)
        self.note_rows(slots)

    def note_rows(self, slots: Sequence[int]) -> None:
        """Note that the rows of these slots were written and are the newest."""
        self.ahead.difference_update(slots)
        if not self.ahead:
            self._collected = []

    def lose_track(self) -> None:
        """Forget the observations: if the fragment that begins now fails, they are unknown."""
        self._unknown.update(self._slots)

    def note_fragment(self, last: list[Array]) -> None:
        """Note a fragment that has ended with these observations, one array per leaf."""
        self._unknown.clear()
        self._collected, self.ahead = last, set(self._slots)

    def of(self, slots: tuple[int, ...]) -> list[Array]:
        """One array per leaf, with a row for each of these slots; not to be written to."""
        if self._unknown.intersection(slots):
            raise RuntimeError(
                f"a policy can only act on envs that were reset: reset slots "
                f"{sorted(self._unknown)} first"
            )
        if len(self.ahead) == len(self._slots) == len(slots):
            return self._collected
        leaves = [array for array in self._rows.observations if array is not None]
        return leaves if slots == self._slots and not self.ahead else self._pick(leaves, slots)

    def _pick(self, leaves: list[Array], slots: Sequence[int]) -> list[Array]:
        columns = [self._column[slot] for slot in slots]
        picked = [leaf[columns] for leaf in leaves]
        for row, slot in enumerate(slots):
            if slot in self.ahead:
                for leaf, last in zip(picked, self._collected, strict=True):
                    leaf[row] = last[self._column[slot]]
        return picked

    def ended(self, slots: Sequence[int]) -> list[int]:
        """Those of ``slots`` whose episode is over; after a fragment there are none."""
        over = np.flatnonzero(np.logical_or(self._rows.terminated, self._rows.truncated))
        ended = [self._slots[column] for column in over.tolist()]
        return [slot for slot in ended if slot in slots and slot not in self.ahead]
