"""``async_reset``, ``recv`` and ``send``: act on the slots that are ready while others step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from clusterenv.head.head import Head
from clusterenv.wire.codec import Array
from clusterenv.wire.spaces import pick_rows


class PartialBatches:
    """Knows which slots the user has received and not sent back yet."""

    def __init__(self, head: Head, batch_size: int, steps_together: bool) -> None:
        self._head, self._batch_size = head, batch_size
        self._received: set[int] = set()
        sizes = {len(member.slots) for member in head.roster.staffed}
        # A worker works on one part of its slots while the user computes actions for another.
        self._chunk_size = -(-batch_size // len(head.roster.staffed))
        if steps_together and batch_size < head.num_envs:
            self._chunk_size = max(sizes)
            if len(sizes) > 1 or batch_size % self._chunk_size:
                raise ValueError(
                    f"batch_size={batch_size}, but each worker's VectorEnv steps its "
                    f"{self._chunk_size} envs together: take a multiple of that, and a num_envs "
                    "that divides by num_workers"
                )

    def reset(self, seeds: Sequence[int | None], run_seed: int) -> None:
        """Start a reset of all slots."""
        self._received.clear()
        self._head.reset_in_chunks(seeds, run_seed, self._chunk_size)

    def assert_enough_under_way(self) -> None:
        """NoAsyncCallError if ``recv`` would wait for ever."""
        in_flight = self._head.num_envs - len(self._received)
        if in_flight < self._batch_size:
            raise NoAsyncCallError(
                f"Calling `recv` for batch_size={self._batch_size} slots while only {in_flight} "
                "are under way: call `send` for the slots that `recv` returned.",
                "recv",
            )

    def receive(self) -> list[int]:
        """Wait for the first ``batch_size`` slots that are ready."""
        slots = self._head.take_ready(self._batch_size)
        self._received.update(slots)
        return slots

    def send(self, slots: list[int], actions: Array | list[Any]) -> None:
        """Step these slots, in any order, with an action each."""
        if not self._received.issuperset(slots):
            busy = sorted(set(slots) - self._received)
            raise AlreadyPendingCallError(
                f"Calling `send` for slots {busy}, which `recv` has not returned since the last "
                "`send`.",
                "send",
            )
        self._received.difference_update(slots)
        ascending = sorted(slots)
        if ascending != slots:
            actions = pick_rows(sorted(range(len(slots)), key=slots.__getitem__), actions)
        self._head.step(ascending, actions)
