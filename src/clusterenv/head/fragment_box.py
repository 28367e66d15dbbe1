"""Fragments on their way from the hosts to the code that collects them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterenv.host.events import Voided
from clusterenv.protocol.fragments import FragmentPart


class FragmentBox:
    """Fragments that have come and were not taken yet, and a list of those that will not come."""

    def __init__(self) -> None:
        self.waiting: list[FragmentPart] = []
        """In order of arrival."""
        self.num_waiting = 0
        """How many slots they have; a slot with two fragments counts twice."""
        self._arrived: list[FragmentPart] = []
        self._missing: list[Voided] = []

    def put(self, part: FragmentPart) -> None:
        """Take in a fragment."""
        self.waiting.append(part)
        self.num_waiting += len(part.slots)
        self._arrived.append(part)

    def put_missing(self, voided: Iterable[Voided]) -> None:
        """Note that these requests will bring no fragments."""
        self._missing += voided

    @property
    def has_missing(self) -> bool:
        """Whether :meth:`take_missing` has something to return."""
        return bool(self._missing)

    def take_arrived(self) -> list[FragmentPart]:
        """What has come since the last call, even if it was dropped."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def take_missing(self) -> list[Voided]:
        """What turned out not to come since the last call."""
        missing, self._missing = self._missing, []
        return missing

    @property
    def num_different(self) -> int:
        """How many slots have a fragment waiting."""
        return sum(len(part.slots) for part in self._split()[0])

    def has_joined_later(self, number: int, slots: Sequence[int]) -> bool:
        """Whether a later request than this has brought some of these slots together with others.

        Such a fragment cannot take the place of an earlier one: the others may have theirs.
        """
        return any(
            part.request.request > number
            and len(part.slots) > 1
            and not set(slots).isdisjoint(part.slots)
            for part in self.waiting
        )

    def take_one_per_slot(self) -> list[FragmentPart]:
        """The first fragment of each slot, in slot order; the others keep waiting."""
        parts, others = self._split()
        self._keep(others)
        return sorted(parts, key=lambda part: part.slots)

    def _split(self) -> tuple[list[FragmentPart], list[FragmentPart]]:
        """The first fragment of each slot; and the others, for the next rollout."""
        seen: set[int] = set()
        firsts: list[FragmentPart] = []
        others: list[FragmentPart] = []
        for part in self.waiting:
            (firsts if seen.isdisjoint(part.slots) else others).append(part)
            seen.update(part.slots)
        return firsts, others

    def _keep(self, parts: list[FragmentPart]) -> None:
        self.waiting[:] = parts
        self.num_waiting = sum(len(part.slots) for part in parts)

    def take_first(self) -> FragmentPart:
        """The one that has waited longest."""
        part = self.waiting.pop(0)
        self.num_waiting -= len(part.slots)
        return part

    def drop_moved(self, moved: Sequence[int]) -> None:
        """Drop the fragments of slots that start over elsewhere: they do not fit later ones."""
        gone = set(moved)
        parts = self.waiting.copy()
        self._keep([part for part in parts if gone.isdisjoint(part.slots)])
        for part in parts:
            if not gone.isdisjoint(part.slots):
                part.release()

    def drop_later(self) -> None:
        """Keep only the first fragment of each slot."""
        parts, others = self._split()
        self._keep(parts)
        for part in others:
            part.release()

    def drop(self) -> None:
        """Drop the fragments that have come."""
        for part in self.waiting:
            part.release()
        self._keep([])

    def clear(self) -> None:
        """Drop what has come, and forget what has not."""
        self.drop()
        self._arrived.clear()
        self._missing.clear()
