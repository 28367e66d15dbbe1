"""Requests and replies: what is under way, what came back, who did not answer."""

from __future__ import annotations

import builtins
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from clusterenv.arrays import Array, Buffer
from clusterenv.errors import ProtocolError, WorkerLostError
from clusterenv.head.crew import Crew
from clusterenv.head.flights import Answer, Flight, Flights, Loss, Request
from clusterenv.head.lockstep import Lockstep
from clusterenv.head.part_calls import PartCalls
from clusterenv.head.remote_errors import rebuild
from clusterenv.head.roster import Member, Roster
from clusterenv.head.watch import Ended
from clusterenv.limits import Limits
from clusterenv.wire.arena import Arena
from clusterenv.wire.codec import encode
from clusterenv.wire.messages import (
    ArrayHeader,
    Built,
    Cancel,
    Collect,
    Collected,
    Evaluate,
    LaidOut,
    Leaving,
    Raised,
    Returned,
    Step,
    Stepped,
    StepWithPolicy,
    Warned,
)

_MOST_WARNINGS = 1_000
_LONGEST_WARNING = 10_000
# The worker dumps its stack at step_timeout_s; give that time to reach its log.
_HUNG_GRACE_S = 2.0
_CHECK_EVERY_S = 0.5


class Exchange:
    """Sends requests, matches replies to them, and notices who is lost."""

    def __init__(self, crew: Crew, roster: Roster) -> None:
        self._crew, self._roster = crew, roster
        self._limits = crew.limits
        self.flights = Flights()
        self._lockstep: Lockstep | None = None
        self._parts: PartCalls | None = None
        self._held_back: dict[int, list[tuple[Flight, Sequence[Buffer]]]] = {}
        self._leaving: dict[int, Member] = {}
        self._errors: list[BaseException] = []
        self._warnings: list[tuple[str, type[Warning]]] = []
        self._last_request = 0
        self._next_check = 0.0
        self.description_by_member: dict[int, bytes] = {}

    def new_request(self) -> int:
        """An id that no earlier request had; WorkerLostError if a worker is gone for good."""
        if self._roster.incomplete:
            raise WorkerLostError(self._roster.incomplete)
        self._last_request += 1
        return self._last_request

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        if self.flights or (self._parts is not None and self._parts.num_open):
            return False
        return self._lockstep is None or not self._lockstep.is_open

    def share(self, arena: Arena, ready: list[int]) -> None:
        """Workers have this memory too. Slots are ``ready`` that workers answer silently for."""
        self._lockstep = Lockstep(arena, self._crew, self._roster, self.flights)
        self._parts = PartCalls(arena.part_marks, self._crew, self.flights, ready)
        self._crew.inbox.marks = arena.marks

    @property
    def is_in_lockstep(self) -> bool:
        """Whether all workers were called to step, and nothing else was heard since."""
        return self._lockstep is not None and self._lockstep.is_open

    def step_at_once(self, actions: Array) -> bool:
        """Have all workers step again, and wait; False if there is more to do or to hear."""
        if self._lockstep is None:
            return False
        self._last_request += 1
        return self._lockstep.step_again(self._last_request, actions)

    def step_in_lockstep(self, actions: Array) -> bool:
        """Have all workers step their slots, without a message; False if that is not possible."""
        if self._lockstep is None or self._leaving:
            return False
        return self._lockstep.begin(self.new_request(), actions)

    def finish_lockstep(self, timeout_s: float) -> bool:
        """Wait for it; False if there was none, or if there is more to hear."""
        lockstep = self._lockstep
        return lockstep is not None and lockstep.is_open and lockstep.finish(timeout_s)

    def send(self, flight: Flight, frames: Sequence[Buffer] = ()) -> None:
        """Send a request; it waits here while a replacement is still joining."""
        flight.sent_at = time.monotonic()
        self.flights.add(flight)
        self._send_or_hold_back(flight, frames)

    def step_parts(self, slots: Sequence[int], dtype: str, num_parts: int) -> None:
        """Have workers step these slots with the actions in the arena, silently if they can."""
        assert self._parts is not None
        now = time.monotonic()
        for member, group in self._roster.groups_of(slots, num_parts):
            request = self.new_request()
            if not self._parts.call(member, request, group, dtype, now):
                step = Step(request, group, ArrayHeader(dtype, ()))
                self.send(Flight(member, step, group))
        self._parts.ring()

    def wait_for_parts(self, num_slots: int, timeout_s: float) -> bool:
        """Wait until so many slots are ready; False if there is something else to hear or do."""
        if self._parts is None or not self._parts.wait_for(num_slots, timeout_s):
            return False
        # Others may be lost while some go on.
        return time.monotonic() < self._next_check

    def _send_or_hold_back(self, flight: Flight, frames: Sequence[Buffer]) -> None:
        if flight.member.joined:
            self._crew.send(flight.member, flight.request, frames)
        else:
            self._held_back.setdefault(flight.member.index, []).append((flight, frames))

    def cancel_collecting(self) -> list[Flight]:
        """Forget the fragments that are under way; workers do not begin with others."""
        never_sent = self.abandon()
        for member in self._roster.members:
            self.cancel(member)
        return never_sent

    def cancel(self, member: Member) -> list[Flight]:
        """Forget what a member's worker is doing, and do not let it begin with other fragments."""
        if self._crew.reception.is_here(member.worker):
            self._crew.send(member, Cancel(self._last_request))
        return self.forget_flights(member)

    def send_to_all(self, request: Step | StepWithPolicy) -> None:
        """Send one request to every worker, encoded once."""
        if self._lockstep is not None:
            self._lockstep.prepare()
        header, now = encode(request), time.monotonic()
        for member in self._roster.staffed:
            flight = Flight(member, request, member.slots, now)
            self.flights.add(flight)
            if not (member.joined and self._crew.push(member, header)):
                self._send_or_hold_back(flight, ())

    def expects_earlier(self, member: Member, request: int) -> bool:
        """Whether an earlier fragment of this member is still under way."""
        return any(
            earlier < request and isinstance(flight.request, Collect)
            for earlier, flight in self.flights.of(member).items()
        )

    def abandon(self) -> list[Flight]:
        """Take no notice of the replies to what was asked so far; give what was never sent."""
        if self._lockstep is not None and self._parts is not None:
            self._lockstep.become_flights()
            self._parts.become_flights()
        never_sent = [flight for held in self._held_back.values() for flight, _ in held]
        self.flights.abandon()
        self._held_back.clear()
        return never_sent

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` when the caller next asks for errors."""
        self._errors.append(error)

    def raise_errors(self) -> None:
        """Raise the first of what went wrong since the last call, if anything did.

        Warnings are issued here too, not where they arrive: a filter may turn them into errors.
        """
        warned, self._warnings = self._warnings, []
        raised, self._errors = self._errors, []
        errors: list[BaseException] = []
        for text, category in warned:
            try:
                warnings.warn(text, category, stacklevel=4)
            except Warning as error:
                errors.append(error)
        if wrong := errors + raised:
            raise wrong[0]

    def pump(self, timeout_s: float) -> Iterator[Answer | Loss]:
        """Wait for something to arrive, and give what it means for the caller."""
        inbox = self._crew.inbox
        self._crew.num_events += 1
        if self._parts is not None:
            self._parts.become_flights()
        inbox.wait(timeout_s, self._has_silent_answers)
        for worker, message, frames in inbox.take():
            try:
                answer = self._arrived(worker, message, frames)
            except Exception as error:
                yield from self._lose(worker, f"it broke the protocol: {ProtocolError.of(error)}")
                continue
            if isinstance(answer, Ended):
                yield from self._lose(worker, answer.reason)
            elif answer is not None:
                yield answer
        if self._lockstep is not None:
            yield from self._lockstep.silent_answers()
        if self._leaving:
            yield from self._leavers()
        if time.monotonic() >= self._next_check:
            yield from self._overdue()

    def _has_silent_answers(self) -> bool:
        if self._lockstep is None or self._parts is None:
            return False
        return self._lockstep.has_answers() or self._parts.take()

    def _leavers(self) -> Iterator[Loss]:
        """Who had to leave, once it has answered; fragments can be collected again."""
        self._leaving = {m.index: m for m in self._leaving.values() if m.leaving}
        for member in self._leaving.values():
            if all(isinstance(f.request, Collect) for f in self.flights.of(member).values()):
                yield Loss(member, member.leaving, self.forget_flights(member), "leaving")

    def _arrived(self, worker: str, message: Any, frames: list[Buffer]) -> Answer | Ended | None:
        member = self._roster.find(worker)
        if member is None:
            return None
        match message:
            case Stepped() | Returned() | Collected():
                flight = self.flights.answered(message, worker)
                # None: a late reply to something that was abandoned.
                return Answer(flight, message, frames) if flight is not None else None
            case Raised():
                self._take_error(member, message)
            case Warned(category=category, text=text):
                if len(self._warnings) < _MOST_WARNINGS:
                    said = f"{worker}: {text[:_LONGEST_WARNING]}"
                    self._warnings.append((said, _warning_class(category)))
            case Built(description=description, deal=deal):
                if deal == member.deal:
                    self.description_by_member[member.index] = description
            case LaidOut(error=error, deal=deal):
                if deal == member.deal:
                    self._join(member, error)
            case Leaving(reason=reason):
                member.leaving = reason
                self._leaving[member.index] = member
            case Ended():
                return message
            case ProtocolError():
                raise message
            case _:
                raise ProtocolError(f"a worker may not say {type(message).__name__}")
        return None

    def _take_error(self, member: Member, raised: Raised) -> None:
        if not raised.request and member.joined:
            raise ProtocolError(f"outside of any request it raised {raised.text:.1000}")
        flight = self.flights.answered(raised, member.worker) if raised.request else None
        error = rebuild(raised, self._crew.reception.whereabouts(member.worker))
        if flight is not None:
            self.fail(error)
        elif not raised.request:
            # It could not build its envs: nobody would answer for this place.
            self._roster.incomplete = f"{member.worker} could not build its envs: {error!r}"
            self.forget_flights(member)
            self.fail(error)

    def _join(self, member: Member, error: str) -> None:
        if error:
            raise ProtocolError(f"it cannot map the shared memory: {error}")
        member.joined = True
        for flight, frames in self._held_back.pop(member.index, []):
            flight.sent_at = time.monotonic()
            self._crew.send(member, flight.request, frames)

    def _overdue(self) -> Iterator[Loss]:
        now, limits = time.monotonic(), self._limits
        self._next_check = now + _CHECK_EVERY_S
        for flight in list(self.flights):
            waited_s, member = now - flight.sent_at, flight.member
            if flight not in self.flights:
                continue  # lost with another flight of its worker, who has been replaced since
            if member.joined and waited_s > _allowed_s(flight.request, limits) + _HUNG_GRACE_S:
                reason = f"no answer within step_timeout_s={limits.step_timeout_s:g}"
                yield from self._lose(member.worker, reason)
            elif not member.joined and waited_s > limits.restart_timeout_s:
                reason = f"not ready within restart_timeout_s={limits.restart_timeout_s:g}"
                yield Loss(member, reason, self.forget_flights(member), "absent")

    def lose_with(self, flight: Flight, reason: str) -> Loss:
        """The worker that gave a bad answer to ``flight`` is lost, and the flight with it."""
        self.flights.add(flight)
        return next(self._lose(flight.member.worker, reason))

    def _lose(self, worker: str, reason: str) -> Iterator[Loss]:
        member = self._roster.find(worker)
        if member is None:
            return
        yield Loss(member, reason, self.forget_flights(member))

    def forget_flights(self, member: Member) -> list[Flight]:
        """Take no notice of what this member's worker still answers; give what it was asked."""
        self._held_back.pop(member.index, None)
        return self.flights.forget(member)


def _allowed_s(request: Request, limits: Limits) -> float:
    """How long an answer may take. Within the longer requests the worker watches each step."""
    match request:
        case Collect(num_steps=num_steps):
            return limits.step_timeout_s * num_steps
        case Evaluate():
            return math.inf
    return limits.step_timeout_s


def _warning_class(name: str) -> type[Warning]:
    kind = getattr(builtins, name, UserWarning)
    return kind if isinstance(kind, type) and issubclass(kind, Warning) else UserWarning
