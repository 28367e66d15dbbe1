"""All workers are called to step, and answer, by numbers in shared memory alone.

This is what a loop around ``step(actions)`` repeats all the time, and where every microsecond of
the head is one that all workers wait. A call to all at once is no flight even: it becomes one per
worker, like any other request, as soon as anything else has to be heard or done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from clusterenv.arrays import Array
from clusterenv.head.crew import Crew, Line
from clusterenv.head.flights import Answer, Flight, Flights
from clusterenv.head.inbox import SPIN_S
from clusterenv.head.roster import Member, Roster
from clusterenv.wire.arena import Arena
from clusterenv.wire.marks import MAY_SPIN
from clusterenv.wire.messages import ArrayHeader, Step, Stepped
from clusterenv.wire.shared_memory import Mailbox

_LONGEST_SLEEP_S = 1.0
_NEVER = -1


class Lockstep:
    """Calls to all workers, and their answers."""

    def __init__(self, arena: Arena, crew: Crew, roster: Roster, flights: Flights) -> None:
        self._arena, self._crew, self._roster, self._flights = arena, crew, roster, flights
        self.is_open = False
        """Whether a call waits for its answers, and is no flights yet."""
        self._request, self._begun_at = 0, 0.0
        self._dtype = ""
        self._staffed: list[Member] = []
        self._places: list[int] = []
        self._shares: list[tuple[Member, int]] = []
        self._num_events, self._calm_at = 0, _NEVER
        """The crew's events before the call, and before the last one if nothing but that came."""
        self._lines: list[Line] | None = None
        self._mailboxes: list[Mailbox] = []
        self._called: list[Flight] = []

    def prepare(self) -> None:
        """Everybody will be asked: know who that is."""
        if self._staffed is not self._roster.staffed:
            self._staffed = self._roster.staffed
            self._places = [member.index for member in self._staffed]
            self._shares = [(member, len(member.slots)) for member in self._staffed]
            lines = [line for m in self._staffed if (line := self._crew.line_of(m)) is not None]
            self._lines = lines if MAY_SPIN and len(lines) == len(self._staffed) else None
            self._mailboxes = [line.mailbox for line in lines]
            self._expect_only_them()

    def _expect_only_them(self) -> None:
        """Let nobody wait for the answer of a worker that has no slots (any more)."""
        for member in self._roster.members:
            if not member.slots:
                self._arena.marks.expect_no_answer(member.index)

    def step_again(self, request: int, actions: Array) -> bool:
        """As :meth:`begin` and :meth:`finish`, if the last thing that happened was such a step.

        All workers wait for the head to go through this, and where it has the core of one of them,
        all that it touches drives that worker's envs out of the caches: it is flat, and short.

        Returns:
            True if all have answered. Else :meth:`finish` has to go on with it if it ``is_open``,
            and if not, nothing was begun.
        """
        crew, marks, lines = self._crew, self._arena.marks, self._lines
        inbox = crew.inbox
        if lines is None or self._calm_at != crew.num_events or inbox.arrivals:
            return False
        self._num_events, self._calm_at = self._calm_at, _NEVER
        if not inbox.may_spin:
            # Before anybody is called: who answers rings, so that there is no need to look first.
            marks.announce_sleep()
        self._call(lines, request, actions)
        if not inbox.may_spin:
            is_rung = inbox.wait_for_bell(_LONGEST_SLEEP_S)
            marks.wake_up()
            if marks.are_silent(self._places, request):
                self._close()
                return True
            # A bell may also ring late, when all are at work again.
            if not is_rung or marks.are_several_missing(request):
                return False
        if not marks.look_out(self._places, request, SPIN_S):
            return False
        self._close()
        return True

    def _close(self) -> None:
        """All have answered, and nobody has anything to add: they can be called again like that."""
        self.is_open, self._calm_at = False, self._num_events
        for member, num_slots in self._shares:
            member.rows += num_slots

    def begin(self, request: int, actions: Array) -> bool:
        """Call all workers; False if they cannot be."""
        self._num_events, self._calm_at = self._crew.num_events, _NEVER
        self.prepare()
        if self._lines is None or not self._can_be_called(self._lines):
            return False
        self._call(self._lines, request, actions)
        return True

    def _call(self, lines: list[Line], request: int, actions: Array) -> None:
        dtype = self._arena.put_actions(actions)
        self._request, self._dtype, self._begun_at = request, dtype, time.monotonic()
        self.is_open = True
        if Mailbox.call_all(self._mailboxes, request, dtype):
            for line in lines:
                if line.mailbox.is_asleep:
                    line.doorbell.ring()

    def _can_be_called(self, lines: list[Line]) -> bool:
        for member, line in zip(self._staffed, lines, strict=True):
            if not (member.joined and line.mailbox.can_call()):
                return False
        return True

    def finish(self, timeout_s: float) -> bool:
        """Wait until all have answered; False if there is more to hear, or not enough time."""
        inbox, marks = self._crew.inbox, self._arena.marks
        deadline = time.monotonic() + timeout_s
        while inbox.wait(deadline - time.monotonic(), self._is_done):
            # The last but one rings, see Marks: the last is not far. But a bell may also ring late,
            # when all are at work again.
            is_done = self._is_done()
            if not is_done and not marks.are_several_missing(self._request):
                is_done = inbox.spin_until(self._is_done) and self._is_done()
            if is_done:
                # Whoever has said anything meanwhile is not silent.
                self._close()
                return True
            if not inbox.is_empty():
                break
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
        for member in self._staffed:
            flight = Flight(member, step, member.slots, self._begun_at)
            self._called.append(flight)
            self._flights.add(flight)
        # One that was late, and is not asked any more, may have left a mark meanwhile.
        self._expect_only_them()

    def silent_answers(self) -> Iterator[Answer]:
        """Of workers that were called, and have nothing to add to their rows."""
        self._called = [flight for flight in self._called if flight in self._flights]
        for flight in self._called:
            if self._is_silent(flight):
                reply = Stepped(flight.request.request)
                self._flights.answered(reply, flight.member.worker)
                yield Answer(flight, reply, ())

    def has_answers(self) -> bool:
        """Whether there are silent answers that nobody has taken."""
        return any(self._is_silent(flight) for flight in self._called)

    def _is_silent(self, flight: Flight) -> bool:
        return self._arena.marks.are_silent([flight.member.index], flight.request.request)
