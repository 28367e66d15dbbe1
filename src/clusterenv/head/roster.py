"""The workers of a run, the slots each owns, and how often each may be replaced."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

RESTART_WINDOW_S = 60.0


@dataclass
class Member:
    """A place in the run: its slots stay, the worker in it may be replaced."""

    index: int
    slots: tuple[int, ...]
    worker: str
    """The name of the worker that holds this place now."""
    incarnation: int = 0
    joined: bool = False
    leaving: str = ""
    """Why its worker will have to end soon, if it has said so."""
    restarts: deque[float] = field(default_factory=deque)
    rows: int = 0
    """Rows that came back from this place so far: steps and resets of single slots."""


class Roster:
    """Who owns which slots. Decides; opens nothing."""

    def __init__(self, num_envs: int, num_workers: int, max_restarts_per_minute: int) -> None:
        blocks = np.array_split(np.arange(num_envs), num_workers)
        self.members = [
            Member(index, tuple(int(slot) for slot in block), f"worker-{index}.0")
            for index, block in enumerate(blocks)
        ]
        self.incomplete = ""
        """Why a place stays empty for good, if one does."""
        self._max_restarts = max_restarts_per_minute
        self._member_by_worker = {member.worker: member for member in self.members}
        self._member_by_slot = {slot: m for m in self.members for slot in m.slots}

    def owner_of(self, slot: int) -> Member:
        """The place that owns ``slot``."""
        return self._member_by_slot[slot]

    def find(self, worker: str) -> Member | None:
        """The place that ``worker`` holds, unless it has been replaced."""
        return self._member_by_worker.get(worker)

    def may_restart(self, member: Member, now: float) -> bool:
        """Whether the budget has room for another restart; if so, spend it."""
        while member.restarts and now - member.restarts[0] > RESTART_WINDOW_S:
            member.restarts.popleft()
        if len(member.restarts) >= self._max_restarts:
            return False
        member.restarts.append(now)
        return True

    def replace(self, member: Member) -> None:
        """Make room for a new worker in this place."""
        del self._member_by_worker[member.worker]
        member.incarnation += 1
        member.worker = f"worker-{member.index}.{member.incarnation}"
        member.joined, member.leaving = False, ""
        self._member_by_worker[member.worker] = member

    def split_by_member(
        self, slots: Sequence[int]
    ) -> Iterator[tuple[Member, tuple[int, ...], slice]]:
        """``slots`` (ascending) by their owners, and where in ``slots`` each part is."""
        start = 0
        while start < len(slots):
            member = self._member_by_slot[slots[start]]
            stop = bisect.bisect_right(slots, member.slots[-1], start)
            yield member, tuple(slots[start:stop]), slice(start, stop)
            start = stop


def restart_seed(run_seed: int, slot: int, incarnation: int) -> int:
    """The seed of a slot that starts over under a replacement."""
    return int(np.random.SeedSequence((run_seed, slot, incarnation)).generate_state(1)[0])
