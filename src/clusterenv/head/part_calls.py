"""A worker is called to step a part of its slots, and answers, by numbers in shared memory alone.

Partial batches do that all the time: some slots step while the user computes actions for others.
As in lockstep, such a call is no flight before anything else has to be heard or done.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import dataclass

from clusterenv.head.crew import Crew, Line
from clusterenv.head.flights import Flight, Flights
from clusterenv.head.roster import Member
from clusterenv.wire.marks import MAY_SPIN, MOST_PARTS, PartMarks, barrier
from clusterenv.wire.messages import ArrayHeader, Step, Stepped


@dataclass(slots=True)
class _Part:
    """What a worker was called for; by now it may be a flight."""

    member: Member
    request: int
    slots: tuple[int, ...]
    dtype: str
    sent_at: float
    word: int
    """Where its answer will be, see :class:`PartMarks`."""
    flight: Flight | None = None


class PartCalls:
    """Calls to single workers, and their answers.

    Args:
        marks: Where workers answer.
        crew: Who is called.
        flights: Where calls go that become flights.
        ready: Where slots go that have been answered for.
    """

    def __init__(self, marks: PartMarks, crew: Crew, flights: Flights, ready: list[int]) -> None:
        self._marks, self._crew, self._flights, self._ready = marks, crew, flights, ready
        # By place, each in the order in which the worker answers.
        self._parts: defaultdict[int, deque[_Part]] = defaultdict(deque)
        self._called: list[Line] = []
        self._num_wanted = 0
        self.num_open = 0
        """How many calls wait for their answers, and are no flights."""

    def call(
        self, member: Member, request: int, slots: tuple[int, ...], dtype: str, now: float
    ) -> bool:
        """Call a worker, which may sleep still; False if it cannot be called."""
        line = self._crew.line_of(member) if MAY_SPIN and member.joined else None
        first, count = slots[0], len(slots)
        if line is None or slots[-1] - first + 1 != count:
            return False
        parts, mailbox = self._parts[member.index], line.mailbox
        if len(parts) == MOST_PARTS or not mailbox.can_call_part():
            return False
        number = mailbox.call_part(request, dtype, first - member.slots[0], count)
        word = member.index * MOST_PARTS + number
        parts.append(_Part(member, request, slots, dtype, now, word))
        self.num_open += 1
        self._called.append(line)
        return True

    def ring(self) -> None:
        """Wake those that were called and sleep."""
        barrier()
        for line in self._called:
            if line.mailbox.is_asleep:
                line.doorbell.ring()
        self._called.clear()

    def wait_for(self, num_slots: int, timeout_s: float) -> bool:
        """Wait until so many slots are ready.

        Returns:
            False if time is up, or if there is something else to hear.
        """
        inbox, marks = self._crew.inbox, self._marks
        self._num_wanted, deadline = num_slots, time.monotonic() + timeout_s
        if inbox.may_spin and inbox.spin_until(self._are_enough):
            return self._are_enough() and inbox.is_empty()
        while timeout_s > 0:
            # Counted before it looks: what comes meanwhile wakes it earlier, not later.
            num_answers = marks.total()
            self.take()
            marks.fall_asleep(num_answers + self._fewest_answers())
            try:
                # Whoever answered while it was awake did not ring.
                if not inbox.is_empty():
                    return False
                if self._are_enough():
                    return True
                inbox.wait_for_bell(timeout_s)
            finally:
                marks.wake_up()
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
        answers, num_before = self._marks.answers, len(self._ready)
        for parts in self._parts.values():
            while parts:
                part = parts[0]
                if part.flight is not None and part.flight not in self._flights:
                    parts.popleft()
                    continue
                if answers[part.word] != part.request:
                    break
                parts.popleft()
                self._close(part)
        return len(self._ready) > num_before

    def _close(self, part: _Part) -> None:
        self._ready += part.slots
        part.member.rows += len(part.slots)
        if part.flight is None:
            self.num_open -= 1
        else:
            self._flights.answered(Stepped(part.request), part.member.worker)

    def become_flights(self) -> None:
        """From now on the calls so far are like any other request."""
        self._marks.wake_at_any_answer()
        if not self.num_open:
            return
        self.num_open = 0
        for parts in self._parts.values():
            for part in parts:
                if part.flight is None:
                    step = Step(part.request, part.slots, ArrayHeader(part.dtype, ()))
                    part.flight = Flight(part.member, step, part.slots, part.sent_at)
                    self._flights.add(part.flight)
