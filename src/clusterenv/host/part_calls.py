"""A worker is called to step a part of its slots, and answers, by numbers in shared memory alone.

Partial batches do that all the time: some slots step while the user computes actions for others.
As in lockstep, such a call is not tracked as a pending request before anything else has to be heard
or done.
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
    """What a worker was called for; by now it may be a pending request."""

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
        workers: Who is called.
        ready: Where slots go that have been answered for.
    """

    def __init__(self, flags: PartFlags, workers: Workers, ready: list[int]) -> None:
        self._flags, self._workers, self._ready = flags, workers, ready
        # By worker, each in the order in which the worker answers.
        self._parts: defaultdict[int, deque[_Part]] = defaultdict(deque)
        self._called: list[Worker] = []
        self._num_wanted = 0
        self.num_open = 0
        """How many calls wait for their answers, and are not tracked otherwise."""
        self.num_rows = 0
        """How many slots were answered for, ever, by rows alone."""

    def call(
        self,
        worker: Worker,
        number: int,
        step: Step,
        slots: tuple[int, ...],
        dtype: str,
        now: float,
    ) -> bool:
        """Call a worker, which may sleep still; False if it cannot be called."""
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
        """Wake those that were called and sleep."""
        barrier()
        for worker in self._called:
            worker.line.wake_if_asleep()
        self._called.clear()

    def wait_for(self, num_slots: int, timeout_s: float) -> bool:
        """Wait until so many slots are ready.

        Returns:
            False if time is up, or if there is something else to hear.
        """
        inbox, flags = self._workers.inbox, self._flags
        self._num_wanted, deadline = num_slots, time.monotonic() + timeout_s
        if inbox.may_spin and inbox.spin_until(self._are_enough):
            return self._are_enough() and inbox.is_empty()
        while timeout_s > 0:
            # Counted before it looks: what comes meanwhile wakes it earlier, not later.
            num_answers = flags.total()
            self.take()
            flags.fall_asleep(num_answers + self._fewest_answers())
            try:
                # Whoever answered while it was awake did not ring.
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
        """Before that many more come, there cannot be enough slots."""
        missing, largest = self._num_wanted - len(self._ready), 1
        for parts in self._parts.values():
            for part in parts:
                largest = max(largest, len(part.slots))
        return -(-missing // largest)

    def _are_enough(self) -> bool:
        self.take()
        return len(self._ready) >= self._num_wanted

    def take(self) -> bool:
        """Whether there are answers by rows alone; their slots are ready now."""
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
        """From now on the calls so far are like any other request."""
        self._flags.wake_at_any_answer()
        if not self.num_open:
            return
        self.num_open = 0
        for parts in self._parts.values():
            for part in parts:
                if part.asked is None:
                    part.asked = Asked(part.step, part.slots, part.sent_at)
                    part.worker.asked[part.number] = part.asked
