"""A worker is called to step a part of its slots, and answers, by numbers in shared memory alone.

Partial batches do this all the time: some slots step while the user computes actions for others.
As in lockstep, such a call is not tracked as a pending request until anything else has to be
handled.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import dataclass

from clusterenv.host.worker import Asked, Worker
from clusterenv.host.workers import Workers
from clusterenv.memory.answer_flags import MAY_SPIN, MOST_PARTS, PartFlags, barrier
from clusterenv.protocol.requests import Step


@dataclass(slots=True)
class _Part:
    """A call to a worker, which may have become a pending request by now."""

    worker: Worker
    number: int
    step: Step
    slots: tuple[int, ...]
    sent_at: float
    word: int
    """Where its answer will be, see :class:`PartFlags`."""
    asked: Asked | None = None


class PartCalls:
    """Calls to single workers, and their answers.

    Args:
        flags: Where workers answer.
        workers: The workers to call.
        ready: Receives the slots that have been answered for.
    """

    def __init__(self, flags: PartFlags, workers: Workers, ready: list[int]) -> None:
        self._flags, self._workers, self._ready = flags, workers, ready
        # By worker, in the order of its answers.
        self._parts: defaultdict[int, deque[_Part]] = defaultdict(deque)
        self._called: list[Worker] = []
        self._num_wanted = 0
        self.num_open = 0
        """How many calls wait for answers without being tracked as requests."""
        self.num_rows = 0
        """How many slots have been answered for by rows alone, over the whole run."""

    def call(
        self,
        worker: Worker,
        number: int,
        step: Step,
        slots: tuple[int, ...],
        dtype: str,
        now: float,
    ) -> bool:
        """Call a worker, which may still be asleep; False if it cannot be called."""
        first, count = slots[0], len(slots)
        if not (MAY_SPIN and worker.is_ready) or slots[-1] - first + 1 != count:
            return False
        parts, mailbox = self._parts[worker.index], worker.line.mailbox
        if len(parts) == MOST_PARTS or not mailbox.can_call_part():
            return False
        place = mailbox.call_part(number, dtype, first - worker.slots[0], count)
        word = worker.index * MOST_PARTS + place
        parts.append(_Part(worker, number, step, slots, now, word))
        self.num_open += 1
        self._called.append(worker)
        return True

    def ring(self) -> None:
        """Wake the called workers that are asleep."""
        barrier()
        for worker in self._called:
            worker.line.wake_if_asleep()
        self._called.clear()

    def wait_for(self, num_slots: int, timeout_s: float) -> bool:
        """Wait until this many slots are ready.

        Returns:
            False if time is up, or if something else must be handled first.
        """
        inbox, flags = self._workers.inbox, self._flags
        self._num_wanted, deadline = num_slots, time.monotonic() + timeout_s
        if inbox.may_spin and inbox.spin_until(self._are_enough):
            return self._are_enough() and inbox.is_empty()
        while timeout_s > 0:
            # Counted before looking: what comes in between wakes us earlier, not later.
            num_answers = flags.total()
            self.take()
            flags.fall_asleep(num_answers + self._fewest_answers())
            try:
                # Workers that answered while we were awake did not ring.
                if not inbox.is_empty():
                    return False
                if self._are_enough():
                    return True
                inbox.wait_for_bell(timeout_s)
            finally:
                flags.wake_up()
            if self._are_enough():
                return True
            timeout_s = deadline - time.monotonic()
        return False

    def _fewest_answers(self) -> int:
        """How many more answers must come, at least, before there can be enough slots."""
        missing, largest = self._num_wanted - len(self._ready), 1
        for parts in self._parts.values():
            for part in parts:
                largest = max(largest, len(part.slots))
        return -(-missing // largest)

    def _are_enough(self) -> bool:
        self.take()
        return len(self._ready) >= self._num_wanted

    def take(self) -> bool:
        """Move slots that were answered for by rows alone to ``ready``; whether there were any."""
        answers, num_before = self._flags.answers, len(self._ready)
        for parts in self._parts.values():
            while parts:
                part = parts[0]
                if part.asked is not None and part.number not in part.worker.asked:
                    parts.popleft()
                    continue
                if answers[part.word] != part.number:
                    break
                parts.popleft()
                self._close(part)
        return len(self._ready) > num_before

    def _close(self, part: _Part) -> None:
        self._ready += part.slots
        self.num_rows += len(part.slots)
        if part.asked is None:
            self.num_open -= 1
        else:
            del part.worker.asked[part.number]

    def become_pending(self) -> None:
        """Track the calls so far like any other request from now on."""
        self._flags.wake_at_any_answer()
        if not self.num_open:
            return
        self.num_open = 0
        for parts in self._parts.values():
            for part in parts:
                if part.asked is None:
                    part.asked = Asked(part.step, part.slots, part.sent_at)
                    part.worker.asked[part.number] = part.asked
