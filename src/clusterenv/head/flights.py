"""Requests under way: which worker was asked what, and whether its answer is still wanted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from clusterenv.arrays import Buffer
from clusterenv.errors import ProtocolError
from clusterenv.head.roster import Member
from clusterenv.wire.messages import (
    Call,
    Collect,
    Collected,
    Evaluate,
    Profile,
    Raised,
    Reset,
    Returned,
    SetAttr,
    Step,
    Stepped,
    StepWithPolicy,
)

Request = Step | Reset | Call | SetAttr | Collect | StepWithPolicy | Evaluate | Profile
Reply = Stepped | Returned | Collected

# What answers what; everything else is answered by Stepped.
_REPLY_TO: dict[type, type] = {
    Call: Returned,
    SetAttr: Returned,
    Evaluate: Returned,
    Profile: Returned,
    Collect: Collected,
}
# Requests whose answers nobody waits for any more are remembered up to this many.
_MOST_ABANDONED = 100_000


@dataclass
class Flight:
    """A request that a worker has not answered yet."""

    member: Member
    request: Request
    slots: tuple[int, ...]
    sent_at: float = 0.0
    reports_loss: bool = False
    """A reset inside a step: the slot's row still has to say that its env was lost."""


class Answer(NamedTuple):
    """A worker has done what a flight asked for."""

    flight: Flight
    reply: Reply
    frames: Sequence[Buffer]


@dataclass(frozen=True)
class Loss:
    """A worker is lost, and these flights with it."""

    member: Member
    reason: str
    flights: Sequence[Flight]
    kind: Literal["lost", "leaving", "absent"] = "lost"
    """Leaving: it said that it had to, and nobody is to blame. Absent: a replacement that was
    started and has not come yet."""


class Flights:
    """What each worker was asked and has not answered."""

    def __init__(self) -> None:
        # By worker and request: a run may have thousands of workers, each with a few flights.
        self._by_worker: defaultdict[str, dict[int, Flight]] = defaultdict(dict)
        self._count = 0
        # What was asked for.
        self._abandoned: dict[tuple[int, str], type] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Flight]:
        return (flight for flights in self._by_worker.values() for flight in flights.values())

    def __contains__(self, flight: Flight) -> bool:
        return self.of(flight.member).get(flight.request.request) is flight

    def of(self, member: Member) -> dict[int, Flight]:
        """What the worker in this place was asked, by request."""
        return self._by_worker.get(member.worker, {})

    def count_collecting(self) -> Counter[int]:
        """How many fragments of each member are under way."""
        return Counter(
            flight.member.index for flight in self if isinstance(flight.request, Collect)
        )

    def add(self, flight: Flight) -> None:
        """A request that goes out to the worker in its place."""
        self._by_worker[flight.member.worker][flight.request.request] = flight
        self._count += 1

    def answered(self, reply: Reply | Raised, worker: str) -> Flight | None:
        """What this answers; None if it was abandoned; ProtocolError if it was never asked."""
        flights = self._by_worker.get(worker, {})
        flight = flights.get(reply.request)
        if flight is not None:
            _check(reply, type(flight.request))
            del flights[reply.request]
            self._count -= 1
            return flight
        asked = self._abandoned.get((reply.request, worker))
        if asked is None:
            raise ProtocolError(f"an answer to request {reply.request}, which is not open")
        _check(reply, asked)
        del self._abandoned[reply.request, worker]
        return None

    def abandon(self) -> None:
        """Take no notice of the answers to what was asked so far."""
        self._expect_late(self)
        self._by_worker.clear()
        self._count = 0

    def forget(self, member: Member) -> list[Flight]:
        """Take no notice of what this member's worker still answers; give what it was asked."""
        flights = list(self._by_worker.pop(member.worker, {}).values())
        self._expect_late(flights)
        self._count -= len(flights)
        return flights

    def _expect_late(self, flights: Iterable[Flight]) -> None:
        """These may still be answered, once each."""
        for flight in flights:
            key = flight.request.request, flight.member.worker
            self._abandoned[key] = type(flight.request)
        while len(self._abandoned) > _MOST_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]


def _check(reply: Reply | Raised, asked: type) -> None:
    if type(reply) is not Raised and type(reply) is not _REPLY_TO.get(asked, Stepped):
        raise ProtocolError(f"{type(reply).__name__} is no answer to {asked.__name__}")
