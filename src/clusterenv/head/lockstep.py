"""All workers step at once, and shared memory alone says so: no message, no flight.

This is what a loop around ``step(actions)`` repeats all the time, and where every microsecond of
the head is one that all workers wait. As soon as anything else has to be heard or done, the call
becomes a flight per worker, like any other request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from clusterenv.head.crew import Crew, Line
from clusterenv.head.flights import Answer, Flight, Flights
from clusterenv.head.roster import Member, Roster
from clusterenv.wire.codec import Array
from clusterenv.wire.marks import MAY_SPIN, barrier
from clusterenv.wire.messages import ArrayHeader, Step, Stepped
from clusterenv.wire.shared_memory import Arena


class Lockstep:
    """One call to all workers, and their answers."""

    def __init__(self, arena: Arena, crew: Crew, roster: Roster, flights: Flights) -> None:
        self._arena, self._crew, self._roster, self._flights = arena, crew, roster, flights
        self.is_open = False
        """Whether a call waits for its answers, and is no flights yet."""
        self._request, self._begun_at = 0, 0.0
        self._dtype = ""
        self._staffed: list[Member] = []
        self._places: list[int] = []
        self._lines: list[Line] | None = None
        self._flights_of_call: list[Flight] = []

    def prepare(self) -> None:
        """Everybody will be asked: know who that is."""
        if self._staffed is not self._roster.staffed:
            self._staffed = self._roster.staffed
            self._places = [member.index for member in self._staffed]
            self._lines = self._crew.lines_of(self._staffed) if MAY_SPIN else None
            self._expect_only_them()

    def _expect_only_them(self) -> None:
        """Let nobody wait for the answer of a worker that has no slots (any more)."""
        for member in self._roster.members:
            if not member.slots:
                self._arena.marks.expect_no_answer(member.index)

    def begin(self, request: int, actions: Array) -> bool:
        """Call all workers; False if they cannot be."""
        self.prepare()
        if self._lines is None or not self._can_be_called(self._lines):
            return False
        self._request, self._dtype, self._begun_at = request, actions.dtype.str, time.monotonic()
        self._arena.actions(self._dtype)[...] = actions
        self.is_open = True
        for line in self._lines:
            line.mailbox.call(request, self._dtype)
        barrier()
        for line in self._lines:
            if line.mailbox.is_asleep:
                line.doorbell.ring()
        return True

    def _can_be_called(self, lines: list[Line]) -> bool:
        for member, line in zip(self._staffed, lines, strict=True):
            if not (member.joined and line.mailbox.can_call()):
                return False
        return True

    def finish(self, timeout_s: float) -> bool:
        """Wait until all have answered; False if there is more to hear, or not enough time."""
        inbox, deadline = self._crew.inbox, time.monotonic() + timeout_s
        rang = True
        while rang:
            rang = inbox.wait(deadline - time.monotonic(), self._is_done)
            if not inbox.is_empty():
                break
            if self._is_done():
                self.is_open = False
                for member in self._staffed:
                    member.rows += len(member.slots)
                return True
        self.become_flights()
        return False

    def _is_done(self) -> bool:
        return self._arena.marks.are_silent(self._places, self._request)

    def become_flights(self) -> None:
        """From now on the call is like any other request."""
        if not self.is_open:
            return
        self.is_open = False
        step = Step(self._request, None, ArrayHeader(self._dtype, ()))
        self._flights_of_call = [Flight(m, step, m.slots, self._begun_at) for m in self._staffed]
        for flight in self._flights_of_call:
            self._flights.add(flight)
        # One that was late, and is not asked any more, may have left a mark meanwhile.
        self._expect_only_them()

    def silent_answers(self) -> Iterator[Answer]:
        """Of workers that were called, and have nothing to add to their rows."""
        self._flights_of_call = [f for f in self._flights_of_call if f in self._flights]
        for flight in self._flights_of_call:
            if self._arena.marks.are_silent([flight.member.index], self._request):
                reply = Stepped(self._request)
                self._flights.answered(reply, flight.member.worker)
                yield Answer(flight, reply, ())
