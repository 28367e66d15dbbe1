"""Policies on workers, as the user's thread sees them: rollouts, streams, steps, evaluations."""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from clusterenv.arrays import Array, Buffer
from clusterenv.errors import ProtocolError
from clusterenv.head.batch import Batch
from clusterenv.head.crew import Crew
from clusterenv.head.exchange import Exchange
from clusterenv.head.flights import Flight
from clusterenv.head.pace import Pace
from clusterenv.head.recovery import Recovery
from clusterenv.head.roster import Member, Roster
from clusterenv.head.scrutiny import Scrutiny
from clusterenv.head.staffing import Staffing
from clusterenv.head.surveyor import Surveyor
from clusterenv.rollout import FragmentPart
from clusterenv.wire.codec import read_arrays
from clusterenv.wire.messages import Announce, Collect, Collected, Evaluate, StepWithPolicy

_TICK_S = 1.0


class Collector:
    """Asks workers to act with the policy that was published, and keeps what they collect."""

    def __init__(
        self,
        crew: Crew,
        roster: Roster,
        exchange: Exchange,
        staffing: Staffing,
        surveyor: Surveyor,
        pump: Callable[[float], None],
        balance: bool,
    ) -> None:
        self._crew, self._roster, self._exchange = crew, roster, exchange
        self._staffing, self._surveyor, self._pump = staffing, surveyor, pump
        self._pace = Pace() if balance else None
        self._parts: list[FragmentPart] = []
        """What has come; in a stream a heap, the oldest first."""
        self._acted: dict[int, dict[str, Any]] = {}
        self._acted_on: dict[int, list[Array]] = {}
        self._num_steps = 0
        self._credits = 0
        """How many fragments a worker may have under way in a stream; 0 outside of one."""
        self._recovery: Recovery
        self._batch: Batch
        self._scrutiny: Scrutiny

    def agree(self, recovery: Recovery, batch: Batch, scrutiny: Scrutiny) -> None:
        """The layout of rows is known."""
        self._recovery, self._batch, self._scrutiny = recovery, batch, scrutiny

    # Rollouts.

    def collect(self, num_steps: int) -> None:
        """Ask every worker for a fragment, but those that still owe one to the last rollout."""
        if num_steps != self._num_steps:
            self.forget_owed()
        self._num_steps = num_steps
        self.welcome_arrivals()
        self._balance()
        self._collect_the_rest(num_steps)

    def _collect_the_rest(self, num_steps: int) -> None:
        """Ask every worker for a fragment that is not busy with one and has brought none."""
        # What came for slots as they were dealt before does not fit the others. All else must
        # stay: its worker goes on after it, and its slots would have a gap.
        self._parts = [p for p in self._parts if self._roster.owner_of(p.slots[0]).slots == p.slots]
        busy = self._under_way()
        for member in self._roster.staffed:
            if not busy[member.index]:
                self._collect(member, num_steps)

    def _collect(self, member: Member, num_steps: int) -> None:
        self._recovery.restart_lost(member.slots)
        request = Collect(
            self._exchange.new_request(),
            num_steps,
            self._crew.publisher.version,
            self._surveyor.latest(member),
        )
        self._exchange.send(Flight(member, request, member.slots))

    def wait_for(self, num_slots: int, patience_s: float) -> None:
        """Wait for the fragments of this many slots, and then at most so long for the others."""
        deadline, waits_for_some = math.inf, num_slots < self._roster.num_envs
        while not self._exchange.is_idle:
            now = time.monotonic()
            if waits_for_some and sum(len(part.slots) for part in self._parts) >= num_slots:
                deadline = min(deadline, now + patience_s)
            if now >= deadline:
                break
            self._pump(min(_TICK_S, deadline - now))
        self._exchange.raise_errors()

    def take_parts(self) -> list[FragmentPart]:
        """The fragments that have arrived, by slot."""
        parts, self._parts = self._parts, []
        return sorted(parts, key=lambda part: part.slots)

    def forget_owed(self) -> None:
        """Workers need not deliver any more what they still owe to the last rollout."""
        for index in self._exchange.flights.count_collecting():
            self._exchange.cancel(self._roster.members[index])
        self._parts.clear()

    def _under_way(self) -> Counter[int]:
        """How many fragments of each member are under way or wait to be taken."""
        under_way = self._exchange.flights.count_collecting()
        under_way.update(self._roster.owner_of(part.slots[0]).index for part in self._parts)
        return under_way

    def take(self, flight: Flight, reply: Collected, frames: Sequence[Buffer]) -> None:
        """A fragment has come."""
        arrays = dict(zip(reply.names, read_arrays(reply.arrays, frames), strict=True))
        part = FragmentPart(flight.slots, reply.request, reply.version, arrays)
        self._check(part)
        heapq.heappush(self._parts, part)
        self._surveyor.note_fragment(flight.member, part)
        if self._pace is not None and not self._credits:
            seconds = time.monotonic() - flight.sent_at
            self._pace.note(flight.member, self._num_steps, seconds)

    def _check(self, part: FragmentPart) -> None:
        newest = self._crew.publisher.newest
        assert newest is not None
        self._scrutiny.check_part(part, self._num_steps, newest.version)
        if self._credits or part.version < newest.policy_since:
            return
        others = (other for other in self._parts if other.version >= newest.policy_since)
        # They fit each other, or they would not be here.
        if (first := next(others, None)) and not self._scrutiny.fit_together(part, first):
            # Nobody knows who is right: the others are asked again.
            for other in [first, *others]:
                self._parts.remove(other)
                self._collect(self._roster.owner_of(other.slots[0]), self._num_steps)
            raise ProtocolError("its policy says other things than that of other workers")

    def collect_again(self, flights: Sequence[Flight], dealt_anew: bool) -> None:
        """These fragments will not come; ask whoever owns their slots now."""
        num_steps = self._num_steps
        if not dealt_anew:
            for flight in flights:
                self._collect(flight.member, num_steps)
        elif self._credits:
            self._top_up(num_steps)
        else:
            self._collect_the_rest(num_steps)

    # Who takes part.

    def welcome_arrivals(self) -> None:
        """Between requests: let workers that came late take part."""
        if arrivals := self._staffing.arrivals():
            present = [m for m in self._roster.members if m.slots or m in arrivals]
            moved, _ = self._staffing.deal(present)
            self._recovery.moved(moved)

    def _balance(self) -> None:
        """Between rollouts: give faster workers more slots, where that is worth it."""
        if self._pace is None or not self._exchange.is_idle:
            return
        staffed = self._roster.staffed
        if speeds := self._pace.better_shares(staffed):
            moved, _ = self._staffing.deal(staffed, speeds)
            self._recovery.moved(moved)

    # Streams.

    def stream(self, num_steps: int, in_flight: int) -> Iterator[FragmentPart]:
        """Fragments as they finish, at most ``in_flight`` per worker at a time."""
        self.forget_owed()
        self._num_steps, self._credits = num_steps, in_flight
        self._top_up(num_steps)
        try:
            while True:
                while (part := self._take_next_part()) is None:
                    self._pump(_TICK_S)
                    self._exchange.raise_errors()
                # The worker gets its next task before the learner starts with this fragment.
                self._collect_next(part, num_steps)
                yield part
        finally:
            self._credits = 0
            if not self._crew.is_closed:
                for flight in self._exchange.cancel_collecting():
                    self._recovery.restart_later(flight.slots)
            self._parts.clear()

    def _take_next_part(self) -> FragmentPart | None:
        """The oldest, unless it overtook its worker's last: that went over the socket."""
        too_early, part = [], None
        while self._parts and part is None:
            part = heapq.heappop(self._parts)
            if self._exchange.expects_earlier(self._roster.owner_of(part.slots[0]), part.request):
                too_early.append(part)
                part = None
        for other in too_early:
            heapq.heappush(self._parts, other)
        return part

    def _collect_next(self, part: FragmentPart, num_steps: int) -> None:
        owner = self._roster.owner_of(part.slots[0])
        if owner.slots == part.slots and not self._staffing.arrivals():
            self._collect(owner, num_steps)
        else:
            self._top_up(num_steps)

    def _top_up(self, num_steps: int) -> None:
        """Let every worker have as many fragments under way as it may."""
        self.welcome_arrivals()
        under_way = self._under_way()
        for member in self._roster.staffed:
            for _ in range(self._credits - under_way[member.index]):
                self._collect(member, num_steps)

    def announce(self) -> None:
        """Tell the workers that there is a new version; they decide whether to pull it."""
        version = self._crew.publisher.version
        for member in self._roster.staffed:
            self._crew.io.send(member.worker, Announce(version, self._surveyor.latest(member)))

    # Single steps, and evaluations.

    def step(self) -> None:
        """Ask every worker to step its envs with the policy that was published."""
        request = StepWithPolicy(self._exchange.new_request(), self._crew.publisher.version)
        surveys = self._surveyor.is_on
        if not (surveys or self._recovery.has_lost_slots):
            self._exchange.send_to_all(request)
            return
        live = self._recovery.deal_with_lost(range(self._roster.num_envs))
        # A lost slot is always one of a whole worker.
        for member, group, _ in self._roster.split_by_member(live):
            if surveys:
                self._acted_on[member.index] = self._batch.leaves_of(group)
                request = msgspec.structs.replace(request, measured=self._surveyor.latest(member))
            self._exchange.send(Flight(member, request, group))

    def note_step(self, member: Member, acted: dict[str, Any]) -> None:
        """A worker has stepped, and says what the policy did."""
        newest, others = self._crew.publisher.version, self._acted.values()
        self._scrutiny.check_acted(acted, len(member.slots), newest, others)
        self._acted[member.index] = acted
        if self._surveyor.is_on:
            self._surveyor.note_step(member, self._acted_on.pop(member.index), acted)

    def take_acted(self) -> dict[str, Array]:
        """What the policy did in the finished step, by slot."""
        acted, self._acted = self._acted, {}
        if not acted:
            return {}
        like = next(iter(acted.values()))
        joined: dict[str, Array] = _join_acted(
            [
                acted.get(member.index) or _zeros(like, len(member.slots))
                for member in self._roster.staffed
            ]
        )
        return joined

    def evaluate(self, episodes: Sequence[int], seed: int, deterministic: bool) -> None:
        """Ask for ``episodes[i]`` whole episodes of slot *i*."""
        request, version = self._exchange.new_request(), self._crew.publisher.version
        for member in self._roster.staffed:
            own = tuple(episodes[slot] for slot in member.slots)
            message = Evaluate(request, own, seed, deterministic, version)
            self._exchange.send(Flight(member, message, member.slots))

    def abandon(self) -> None:
        """Forget what has come."""
        self._parts.clear()
        self._acted.clear()


def _zeros(like: Any, count: int) -> Any:
    """What a lost worker's policy did: nothing."""
    if isinstance(like, dict):
        return {key: _zeros(value, count) for key, value in like.items()}
    if isinstance(like, tuple):
        return tuple(_zeros(value, count) for value in like)
    return np.zeros((count, *like.shape[1:]), like.dtype)


def _join_acted(parts: list[Any]) -> Any:
    """The parts of all workers as one, in their structure."""
    if isinstance(parts[0], dict):
        return {key: _join_acted([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple([_join_acted(list(column)) for column in zip(*parts, strict=True)])
    return np.concatenate(parts)
