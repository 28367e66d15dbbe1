"""Everything that a host knows about one of its workers, in one object."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from clusterenv.errors import ProtocolError
from clusterenv.host.events import Voided
from clusterenv.host.starting import Running
from clusterenv.memory.line import HostEnd
from clusterenv.memory.messages import Build, Built, LaidOut, LayOut
from clusterenv.protocol.message import Message
from clusterenv.protocol.requests import AnyRequest
from clusterenv.protocol.worker_status import WorkerStatus

RESTART_WINDOW_S = 60.0


class State(Enum):
    """Where a worker is in its life."""

    STARTED = auto()
    BUILDING = auto()
    BUILT = auto()
    LAYING_OUT = auto()
    READY = auto()
    LOST = auto()


# What was said, to it or by it, and what it is then. Building again is possible at any time.
_NEXT = {
    (State.STARTED, Build): State.BUILDING,
    (State.BUILDING, Build): State.BUILDING,
    (State.BUILT, Build): State.BUILDING,
    (State.LAYING_OUT, Build): State.BUILDING,
    (State.READY, Build): State.BUILDING,
    (State.BUILDING, Built): State.BUILT,
    (State.BUILT, LayOut): State.LAYING_OUT,
    (State.LAYING_OUT, LaidOut): State.READY,
}


@dataclass
class Asked:
    """A request that the worker has not answered yet."""

    request: AnyRequest
    slots: tuple[int, ...]
    sent_at: float


@dataclass
class Worker:
    """One place of the host; a replacement is a new process in the same place.

    It knows much because what is known about a peer is to be found in one place.
    """

    index: int
    line: HostEnd
    running: Running
    started_at: float
    incarnation: int = 0
    slots: tuple[int, ...] = ()
    state: State = State.STARTED
    asked: dict[int, Asked] = field(default_factory=dict)
    held_back: deque[Message] = field(default_factory=deque)
    """What it is sent once it is ready."""
    deal: int = 0
    """How often it was told what to build; what it built before is void."""
    policy_id: int = 0
    """The policy that it was sent last."""
    not_reset: set[int] = field(default_factory=set)
    """The slots that it took over from a lost worker, and whose envs nobody has reset yet."""
    leaving: str = ""
    """Why it will have to end soon, if it has said so."""
    restarts: deque[float] = field(default_factory=deque)

    @property
    def name(self) -> str:
        """Which worker of its host, and the how-manieth in that place."""
        return f"worker-{self.index}.{self.incarnation}"

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked for work."""
        return self.state is State.READY

    def note(self, message: Message) -> None:
        """Something was said that changes its state; ProtocolError if it cannot be."""
        after = _NEXT.get((self.state, type(message)))
        if after is None:
            raise ProtocolError(f"{type(message).__name__} while it is {self.state.name}")
        self.state = after

    def send(self, message: Message) -> None:
        """Send it, now or once the worker is ready."""
        if self.is_ready:
            self.line.send(message)
        else:
            self.held_back.append(message)

    def send_held_back(self, now: float) -> None:
        """It is ready: send what had to wait for that."""
        for asked in self.asked.values():
            asked.sent_at = now
        while self.held_back:
            self.line.send(self.held_back.popleft())

    def void(self) -> tuple[Voided, ...]:
        """It will not answer any more: what it was asked."""
        voided = tuple(Voided(asked.request, asked.slots) for asked in self.asked.values())
        self.asked.clear()
        if self.held_back:
            # Among it may be the policy.
            self.policy_id = 0
            self.held_back.clear()
        return voided

    def may_restart(self, limit: int, now: float) -> bool:
        """Whether the budget has room for another restart; if so, spend it."""
        while self.restarts and now > self.restarts[0] + RESTART_WINDOW_S:
            self.restarts.popleft()
        if len(self.restarts) >= limit:
            return False
        self.restarts.append(now)
        return True

    def status(self, host: str) -> WorkerStatus:
        """The worker at this moment."""
        state = "ready" if self.is_ready else "joining"
        if self.state is State.LOST:
            state = "lost"
        elif self.leaving:
            state = "leaving"
        slots = range(self.slots[0], self.slots[-1] + 1) if self.slots else range(0)
        return WorkerStatus(self.name, self.running.pid, state, slots, self.incarnation, host)

    def count_time(self, on: bool) -> dict[str, float]:
        """Count what it does from now on, or no more: the seconds so far, by part."""
        times = self.line.times
        if not on:
            return times.stop()
        times.start()
        return {}

    @property
    def answered_at(self) -> int:
        """When it answered last, in nanoseconds, while its time was counted."""
        times = self.line.times
        return times.answered_at

    def whereabouts(self) -> str:
        """Its name and process, for messages."""
        return f"{self.name} (pid {self.running.pid})"

    def obituary(self, reason: str) -> str:
        """What is known about its end, for messages."""
        slot = self.line.mailbox.current_slot
        doing = f"; it ran slots {', '.join(map(str, self.slots))}"
        if slot != self.line.mailbox.NO_SLOT:
            doing = f" while the env of slot {slot} was running"
        return f"{self.whereabouts()} was lost: {reason}{doing}{self.log()}"

    def log(self) -> str:
        """The end of its log, headed, or nothing."""
        log = self.running.log_tail().strip()
        return f"\nThe end of the log of {self.name}:\n{log}" if log else ""
