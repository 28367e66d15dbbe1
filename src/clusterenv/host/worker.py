"""Everything that a host knows about one of its workers, in one object."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from clusterenv.errors import ProtocolError
from clusterenv.host.events import Voided
from clusterenv.host.starting import Running
from clusterenv.memory.line import HostEnd
from clusterenv.memory.messages import BuildEnvs, EnvsBuilt, MapRows, RowsMapped
from clusterenv.memory.pulse import Pulse
from clusterenv.protocol.message import Message
from clusterenv.protocol.requests import AnyRequest
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.restarts import RestartBudget, explained
from clusterenv.sharing import in_words


class WorkerState(Enum):
    """Where a worker is in its life."""

    STARTED = auto()
    BUILDING = auto()
    BUILT = auto()
    LAYING_OUT = auto()
    READY = auto()
    LOST = auto()


# The state, a message to or from the worker, and the next state. It can build again at any time.
_NEXT = {
    (WorkerState.STARTED, BuildEnvs): WorkerState.BUILDING,
    (WorkerState.BUILDING, BuildEnvs): WorkerState.BUILDING,
    (WorkerState.BUILT, BuildEnvs): WorkerState.BUILDING,
    (WorkerState.LAYING_OUT, BuildEnvs): WorkerState.BUILDING,
    (WorkerState.READY, BuildEnvs): WorkerState.BUILDING,
    (WorkerState.BUILDING, EnvsBuilt): WorkerState.BUILT,
    (WorkerState.BUILT, MapRows): WorkerState.LAYING_OUT,
    (WorkerState.LAYING_OUT, RowsMapped): WorkerState.READY,
}


@dataclass
class Asked:
    """A request that the worker has not answered yet."""

    request: AnyRequest
    slots: tuple[int, ...]
    sent_at: float

    def part(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """The slots that an answer is about: those it names, or all if it names none."""
        if not slots:
            return self.slots
        if not set(slots) <= set(self.slots):
            raise ProtocolError("rows of slots that nobody asked it for")
        return slots


@dataclass
class Worker:
    """One place of the host; a replacement is a new process in the same place.

    It knows much because all that is known about a peer belongs in one place.
    """

    index: int
    line: HostEnd
    running: Running
    started_at: float
    incarnation: int = 0
    slots: tuple[int, ...] = ()
    state: WorkerState = WorkerState.STARTED
    asked: dict[int, Asked] = field(default_factory=dict)
    held_back: deque[Message] = field(default_factory=deque)
    """What it is sent once it is ready."""
    deal: int = 0
    """How often it was told what to build; what it built before is void."""
    policy_id: int = 0
    """The policy that it was last sent."""
    not_reset: set[int] = field(default_factory=set)
    """The slots that it took over from a lost worker, and whose envs have not been reset yet."""
    leaving: str = ""
    """Why it must end soon, if it has said so."""
    restarts: RestartBudget = field(default_factory=RestartBudget)
    ready_at: float = math.inf
    """Since when it can be asked for work; it may have worked before slots were dealt anew."""
    worked_before_s: float = 0.0
    num_stacks: int = 0
    """How often its stacks have been reported because it made no progress …"""
    is_told_slow: bool = False
    """… and whether it has been reported for giving no sign of life."""

    @property
    def name(self) -> str:
        """Its place in the host and its number in that place."""
        return f"worker-{self.index}.{self.incarnation}"

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked for work."""
        return self.state is WorkerState.READY

    def note(self, message: Message) -> None:
        """Note a message that changes its state; ProtocolError if that is not allowed now."""
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

    def restart_clocks(self, now: float) -> None:
        """Let its requests count as sent now, since it could not work on them."""
        for asked in self.asked.values():
            asked.sent_at = now

    def send_held_back(self, now: float) -> None:
        """Send what had to wait until it was ready."""
        self.ready_at = now
        self.restart_clocks(now)
        while self.held_back:
            self.line.send(self.held_back.popleft())

    def answered(self, number: int, slots: tuple[int, ...]) -> None:
        """Note its answer to a request for these slots."""
        asked = self.asked[number]
        if len(slots) == len(asked.slots):
            del self.asked[number]
        else:
            asked.slots = tuple(sorted(set(asked.slots).difference(slots)))

    def void(self) -> tuple[Voided, ...]:
        """Give up its requests, which it will not answer; returns what they were."""
        voided = tuple(Voided(asked.request, asked.slots) for asked in self.asked.values())
        self.asked.clear()
        if self.held_back:
            # The policy may be among it.
            self.policy_id = 0
            self.held_back.clear()
        return voided

    def worked_s(self, now: float) -> float:
        """How long it did good work: until it got the oldest request that it has not answered."""
        until = min((asked.sent_at for asked in self.asked.values()), default=now)
        return self.worked_before_s + max(0.0, until - self.ready_at)

    def stop_work(self, now: float) -> None:
        """Stop the clock of good work: building other envs does not count."""
        self.worked_before_s, self.ready_at = self.worked_s(now), math.inf

    def status(self, host: str) -> WorkerStatus:
        """The worker at this moment."""
        state = "ready" if self.is_ready else "joining"
        if self.state is WorkerState.LOST:
            state = "lost"
        elif self.leaving:
            state = "leaving"
        slots = range(self.slots[0], self.slots[-1] + 1) if self.slots else range(0)
        return WorkerStatus(self.name, self.running.pid, state, slots, self.incarnation, host)

    def count_time(self, on: bool) -> dict[str, float]:
        """Start or stop timing what it does; when stopped, the seconds by part."""
        times = self.line.times
        if not on:
            return times.stop()
        times.start()
        return {}

    @property
    def answered_at(self) -> int:
        """When it last answered, in nanoseconds, while it was being timed."""
        times = self.line.times
        return times.answered_at

    def whereabouts(self) -> str:
        """Its name and process, for messages."""
        return f"{self.name} (pid {self.running.pid})"

    def obituary(self, reason: str) -> str:
        """What is known about its end, for messages."""
        slot = self.current_slot
        doing = f"; it ran {in_words(self.slots)}"
        if slot is not None:
            doing = f" while the env of slot {slot} was running{doing}"
        return f"{self.whereabouts()} was lost: {explained(reason)}{doing}{self.log()}"

    @property
    def pulse(self) -> Pulse:
        """Its signs of life."""
        return self.line.pulse

    @property
    def is_busy(self) -> bool:
        """Whether it has something to do."""
        return self.state is not WorkerState.LOST and (bool(self.asked) or not self.is_ready)

    @property
    def current_slot(self) -> int | None:
        """The slot whose env is running, or was running last, if that is known."""
        mailbox = self.line.mailbox
        slot = mailbox.current_slot
        return None if slot == mailbox.NO_SLOT else slot

    def log(self) -> str:
        """The end of its log under a heading, or nothing."""
        log = self.running.log_tail().strip()
        return f"\nThe end of the log of {self.name}:\n{log}" if log else ""
