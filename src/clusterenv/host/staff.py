"""The workers of a host that own slots: which slots each owns, and how they get ready."""

from __future__ import annotations

import time
from collections.abc import Sequence

from clusterenv.host.plan import Plan, Spaces
from clusterenv.host.worker import Worker
from clusterenv.host.workers import Workers
from clusterenv.memory.messages import MapRows
from clusterenv.memory.segments import allocate
from clusterenv.memory.shared_rows import SharedRows
from clusterenv.plain.spaces import leaves_of, single_array_leaf, space_from_plain
from clusterenv.plain.values import unpack
from clusterenv.sharing import Splitter


class Staff:
    """The workers with slots, as they are now."""

    def __init__(self, workers: Workers, plan: Plan, spaces: Spaces) -> None:
        self._all, self._plan, self._spaces = workers, plan, spaces
        self.slots = plan.slots
        self.size = sum(1 for worker in workers if worker.slots)
        """How many there are; they are the first of the host's workers."""
        firsts = [worker.slots[0] for worker in self.members]
        self._splitter = Splitter([*firsts, self.slots.stop])

    @property
    def members(self) -> list[Worker]:
        """In the order of their slots."""
        return self._all.all[: self.size]

    @property
    def is_ready(self) -> bool:
        """Whether all of them are ready for work."""
        return all(worker.is_ready for worker in self.members)

    def split(
        self, slots: Sequence[int], num_parts: int = 1
    ) -> list[tuple[Worker, tuple[int, ...], slice]]:
        """``slots`` (ascending) by worker and part, and where in ``slots`` each group is."""
        workers = self._all.all
        groups = self._splitter.split(slots, num_parts)
        return [(workers[owner], group, part) for owner, group, part in groups]

    def map_rows(self) -> SharedRows:
        """Map the rows of all slots; OSError if there is no memory for them."""
        observation = space_from_plain(unpack(self._spaces.observation, allow_pickle=True))
        action = single_array_leaf(space_from_plain(unpack(self._spaces.action, allow_pickle=True)))
        leaves, fd = leaves_of(observation), self._all.rows_fd
        allocate(fd, SharedRows.size_of(len(self.slots), action, leaves))
        return SharedRows(fd, self.slots, self.size, action, leaves)

    def lay_out(self, worker: Worker) -> None:
        """Tell a worker that has built its envs where its rows are."""
        worker.policy_id = 0
        message = MapRows(
            self._spaces.observation,
            self._spaces.action,
            self.slots.start,
            len(self.slots),
            self.size,
            worker.index,
        )
        self._all.tell(worker, message)

    def replace(self, worker: Worker, reason: str, worked_s: float) -> str:
        """Replace a worker by another one; returns why not, or empty.

        If Ctrl-C interrupts this, the worker is later found to have ended, and is replaced then.
        """
        restarts, limits, now = worker.restarts, self._all.limits, time.monotonic()
        if refusal := restarts.spend(limits, reason, now, worked_s, bool(worker.leaving)):
            self._all.dismiss(worker)
            return refusal
        try:
            successor = self._all.replace(worker, now + restarts.delay_s(limits))
            self._all.build(successor, self._plan)
            successor.not_reset = set(successor.slots)
        except OSError as error:
            # The worker itself, or its successor if there is one already.
            self._all.dismiss(self._all.all[worker.index])
            return f"It cannot be replaced: {error}"
        return ""
