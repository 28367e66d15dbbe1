"""``async_reset``, ``recv`` and ``send``: act on the slots that are ready while others step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from clusterenv.arrays import Array
from clusterenv.head.session import Session
from clusterenv.plain.spaces import pick_rows

# A worker with two parts of its slots steps one while the other's actions are computed. If a batch
# takes no longer than this, the second answer costs more than the waiting that it saves.
_WORTH_PARTS_S = 2e-4
# The same where workers occupy all cores: a waiting worker then gives its core to the head.
_WORTH_PARTS_IN_A_CROWD_S = 5e-3
# Parts are given up only well below: where they cost most, batches with parts take almost as long.
_GIVE_UP_BELOW = 0.85
_SMOOTHING = 0.1


def check_for_vector_envs(batch_size: int, worker_sizes: Sequence[int]) -> None:
    """Raise if workers that step all of their envs together cannot fill batches of this size."""
    is_partial, largest = batch_size < sum(worker_sizes), max(worker_sizes)
    if is_partial and (len(set(worker_sizes)) > 1 or batch_size % largest):
        raise ValueError(
            f"batch_size={batch_size}, but each worker's VectorEnv steps its {largest} envs "
            "together: choose a multiple of that, and num_envs as a multiple of num_workers"
        )


class PartialBatches:
    """Knows which slots the user has received and not sent back yet."""

    def __init__(self, session: Session, batch_size: int) -> None:
        self._session, self._batch_size = session, batch_size
        # What the user has: the last batch, as long as nothing of it was sent, and all other slots.
        # A batch that is sent back as it came, before the next one, then needs no work on the set.
        self._last: list[int] = []
        self._received: set[int] = set()
        # As many parts as batches under way.
        steps_together = session.agreed.steps_together
        self._most_parts = 1 if steps_together else -(-session.num_envs // batch_size)
        has_core = session.fleet.has_core_to_spare
        self._worth_parts_s = _WORTH_PARTS_S if has_core else _WORTH_PARTS_IN_A_CROWD_S
        self._received_at, self._seconds_per_batch = 0.0, 0.0
        self._num_parts, self._is_to_join_parts = 1, False

    def reset(self, seeds: Sequence[int | None], run_seed: int) -> None:
        """Start a reset of all slots."""
        self._last = []
        self._received.clear()
        self._received_at = time.perf_counter()
        self._session.forget_ready()
        every = range(self._session.num_envs)
        self._session.reset(every, seeds, None, run_seed, together=False)

    def assert_enough_under_way(self) -> None:
        """NoAsyncCallError if ``recv`` would wait for ever."""
        in_flight = self._num_under_way
        if in_flight < self._batch_size:
            raise NoAsyncCallError(
                f"Calling `recv` for batch_size={self._batch_size} slots while only {in_flight} "
                "are under way: call `send` first for slots that `recv` has returned.",
                "recv",
            )

    @property
    def _num_under_way(self) -> int:
        return self._session.num_envs - len(self._received) - len(self._last)

    def receive(self) -> list[int]:
        """Wait for the first ``batch_size`` slots that are ready."""
        if self._is_to_join_parts:
            self._is_to_join_parts = False
            # Only for a while: what is ready then is taken worker by worker.
            self._session.gather(self._num_under_way, self._worth_parts_s)
        self._received.update(self._last)
        self._last = slots = self._session.take_ready(self._batch_size)
        self._note_time()
        return slots

    def _note_time(self) -> None:
        now = time.perf_counter()
        # The time of a reset or a policy update between two batches must not count as a slow batch.
        seconds = min(now - self._received_at, 4 * self._worth_parts_s)
        self._seconds_per_batch += _SMOOTHING * (seconds - self._seconds_per_batch)
        self._received_at = now
        self._choose_parts()

    def _choose_parts(self) -> None:
        if self._seconds_per_batch > self._worth_parts_s:
            self._num_parts = self._most_parts
        elif self._num_parts > 1 and self._is_quick:
            # The parts of a worker come back at different times: wait once for all of them, but not
            # for those that take long.
            self._num_parts, self._is_to_join_parts = 1, True

    @property
    def _is_quick(self) -> bool:
        return self._seconds_per_batch < _GIVE_UP_BELOW * self._worth_parts_s

    def check(self, slots: list[int]) -> None:
        """Raise unless these are slots that the user holds, each named once."""
        if slots == self._last:
            return
        distinct, num_envs = set(slots), self._session.num_envs
        in_hand = self._received.union(self._last)
        if len(distinct) == len(slots) and distinct <= in_hand:
            return
        if min(slots) < 0 or max(slots) >= num_envs:
            raise ValueError(f"env_id must be between 0 and {num_envs - 1}, got {sorted(slots)}")
        if len(distinct) < len(slots):
            raise ValueError(f"env_id names a slot twice: {sorted(slots)}")
        raise AlreadyPendingCallError(
            f"Calling `send` for slots {sorted(distinct - in_hand)}, which `recv` has not "
            "returned since the last `send`.",
            "send",
        )

    def send(self, slots: list[int], actions: Array | list[Any]) -> None:
        """Step these slots, in any order, with one action each."""
        if slots == self._last:
            self._last = []
            self._session.step(slots, actions, self._num_parts, together=False)
            return
        self._received.update(self._last)
        self._received.difference_update(slots)
        self._last = []
        ascending = sorted(slots)
        if ascending != slots:
            actions = pick_rows(sorted(range(len(slots)), key=slots.__getitem__), actions)
        self._session.step(ascending, actions, self._num_parts, together=False)
