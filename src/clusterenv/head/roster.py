"""The workers of a run, the slots each owns, and how often each may be replaced."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

RESTART_WINDOW_S = 60.0
_MOST_GROUPS = 64


@dataclass
class Member:
    """A place in the run: its slots stay, the worker in it may be replaced."""

    index: int
    slots: tuple[int, ...]
    worker: str
    """The name of the worker that holds this place now."""
    incarnation: int = 0
    deal: int = 0
    """How often its slots were dealt anew; what a worker built for an earlier deal is void."""
    joined: bool = False
    leaving: str = ""
    """Why its worker will have to end soon, if it has said so."""
    gone: bool = False
    """Its worker was lost at the start, and nobody came in its place."""
    restarts: deque[float] = field(default_factory=deque)
    rows: int = 0
    """Rows that came back from this place so far: steps and resets of single slots."""


class Roster:
    """Who owns which slots. Decides; opens nothing."""

    def __init__(
        self,
        num_envs: int,
        num_workers: int,
        max_restarts_per_minute: int,
        min_workers: int | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.members = [Member(index, (), f"worker-{index}.0") for index in range(num_workers)]
        self.staffed: list[Member] = []
        """The members that own slots, in the order of these."""
        self.min_workers = num_workers if min_workers is None else min_workers
        self.incomplete = ""
        """Why a place stays empty for good, if one does."""
        self._max_restarts = max_restarts_per_minute
        self._member_by_worker = {member.worker: member for member in self.members}
        self._member_by_slot: list[Member] = []
        self._groups: dict[tuple[int, int, int], list[tuple[Member, tuple[int, ...]]]] = {}
        self._incarnations = [0] * num_envs
        self.deal(self.members)

    def deal(self, present: Sequence[Member], speeds: Sequence[float] = ()) -> list[Member]:
        """Deal all slots to these members, evenly or by speed; give those whose slots change."""
        sizes = shares(self.num_envs, speeds or [1.0] * len(present))
        ends = list(itertools.accumulate(sizes, initial=0))
        blocks = {m.index: tuple(range(*ends[i : i + 2])) for i, m in enumerate(present)}
        changed = [m for m in self.members if m.slots != blocks.get(m.index, ())]
        for member in changed:
            member.slots = blocks.get(member.index, ())
            member.deal += 1
            member.joined = False
        self.staffed = [member for member in self.members if member.slots]
        self._member_by_slot = [member for member in self.staffed for _ in member.slots]
        self._groups.clear()
        return changed

    def can_do_without(self, absent: Member) -> bool:
        """Whether enough other workers are there to own all slots."""
        return len(self.others(absent)) >= max(1, self.min_workers)

    def others(self, absent: Member) -> list[Member]:
        """The members whose workers are there, but for this one."""
        return [member for member in self.members if member.joined and member is not absent]

    def owner_of(self, slot: int) -> Member:
        """The place that owns ``slot``."""
        return self._member_by_slot[slot]

    def find(self, worker: str) -> Member | None:
        """The place that ``worker`` holds, unless it has been replaced."""
        return self._member_by_worker.get(worker)

    def may_restart(self, member: Member, now: float) -> bool:
        """Whether the budget has room for another restart; if so, spend it."""
        while member.restarts and now > member.restarts[0] + RESTART_WINDOW_S:
            member.restarts.popleft()
        if len(member.restarts) >= self._max_restarts:
            return False
        member.restarts.append(now)
        return True

    def next_seed(self, run_seed: int, slot: int) -> int:
        """The seed with which this slot starts over, another each time."""
        self._incarnations[slot] += 1
        return restart_seed(run_seed, slot, self._incarnations[slot])

    def replace(self, member: Member) -> None:
        """Make room for a new worker in this place."""
        del self._member_by_worker[member.worker]
        member.incarnation += 1
        member.worker = f"worker-{member.index}.{member.incarnation}"
        member.joined, member.leaving = False, ""
        self._member_by_worker[member.worker] = member

    def groups_of(
        self, slots: Sequence[int], num_parts: int
    ) -> list[tuple[Member, tuple[int, ...]]]:
        """``slots`` (ascending) by their owners and parts, remembered where they are neighbours."""
        key = slots[0], slots[-1], num_parts
        are_neighbours = key[1] - key[0] + 1 == len(slots)
        if are_neighbours and key in self._groups:
            return self._groups[key]
        groups = [(member, group) for member, group, _ in self.split_by_member(slots, num_parts)]
        if are_neighbours:
            if len(self._groups) == _MOST_GROUPS:
                self._groups.clear()
            self._groups[key] = groups
        return groups

    def split_by_member(
        self, slots: Sequence[int], num_parts: int = 1
    ) -> Iterator[tuple[Member, tuple[int, ...], slice]]:
        """``slots`` (ascending) by their owners, and where in ``slots`` each group is.

        An owner's slots are in ``num_parts``, and only those of one part are in a group.
        """
        start = 0
        while start < len(slots):
            slot = slots[start]
            member = self._member_by_slot[slot]
            size = -(-len(member.slots) // num_parts)
            place_in_part = (slot - member.slots[0]) % size
            last = min(member.slots[-1], slot - place_in_part + size - 1)
            stop = bisect.bisect_right(slots, last, start)
            yield member, tuple(slots[start:stop]), slice(start, stop)
            start = stop


def restart_seed(run_seed: int, slot: int, incarnation: int) -> int:
    """The seed of a slot that starts over under a replacement."""
    return int(np.random.SeedSequence((run_seed, slot, incarnation)).generate_state(1)[0])


def shares(total: int, speeds: Sequence[float]) -> list[int]:
    """``total`` in whole parts, each at least 1, so that the slowest is done as soon as can be."""
    parts = [1] * len(speeds)
    # Each goes where it would be done first; to the first ones of equals.
    queue = [(2 / speed, index) for index, speed in enumerate(speeds)]
    heapq.heapify(queue)
    for _ in range(total - len(speeds)):
        _, index = queue[0]
        parts[index] += 1
        heapq.heapreplace(queue, ((parts[index] + 1) / speeds[index], index))
    return parts
