"""Deals slots to hosts, and within hosts to workers."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator, Sequence

_MOST_GROUPS = 64


def shares(total: int, speeds: Sequence[float]) -> list[int]:
    """``total`` in whole parts, each at least 1, so that the slowest finishes as soon as it can."""
    parts = [1] * len(speeds)
    # Each unit goes where it would be done first; among equals, to the first.
    queue = [(2 / speed, index) for index, speed in enumerate(speeds)]
    heapq.heapify(queue)
    for _ in range(total - len(speeds)):
        _, index = queue[0]
        parts[index] += 1
        heapq.heapreplace(queue, ((parts[index] + 1) / speeds[index], index))
    return parts


def in_words(slots: Sequence[int]) -> str:
    """Slots (ascending) for messages: ``slot 3``, ``slots 4 to 7``."""
    if not slots:
        return "no slots"
    if len(slots) == 1:
        return f"slot {slots[0]}"
    if slots[-1] - slots[0] + 1 == len(slots):
        return f"slots {slots[0]} to {slots[-1]}"
    return f"slots {', '.join(map(str, slots))}"


Group = tuple[int, tuple[int, ...], slice]
"""An owner, some of its slots, and their place in what was split."""


def split(slots: Sequence[int], firsts: Sequence[int], num_parts: int = 1) -> Iterator[Group]:
    """``slots`` (ascending) by their owners.

    Owner *i* has the slots from ``firsts[i]`` up to ``firsts[i + 1]``, so there is one more of
    these than owners. An owner's slots are in ``num_parts`` parts, and a group is within one part.
    """
    start = 0
    while start < len(slots):
        slot = slots[start]
        owner = bisect.bisect_right(firsts, slot) - 1
        first, end = firsts[owner], firsts[owner + 1]
        size = -(-(end - first) // num_parts)
        last = min(end, slot - (slot - first) % size + size) - 1
        stop = bisect.bisect_right(slots, last, start)
        yield owner, tuple(slots[start:stop]), slice(start, stop)
        start = stop


class Splitter:
    """Remembers how consecutive slots were split, since loops ask for the same ones each time."""

    def __init__(self, firsts: Sequence[int]) -> None:
        self._firsts = firsts
        self._groups: dict[tuple[int, int, int], list[Group]] = {}

    def split(self, slots: Sequence[int], num_parts: int = 1) -> list[Group]:
        """Like :func:`split`."""
        key = slots[0], slots[-1], num_parts
        if key[1] - key[0] + 1 != len(slots):
            return list(split(slots, self._firsts, num_parts))
        groups = self._groups.get(key)
        if groups is None:
            if len(self._groups) == _MOST_GROUPS:
                self._groups.clear()
            groups = self._groups[key] = list(split(slots, self._firsts, num_parts))
        return groups
