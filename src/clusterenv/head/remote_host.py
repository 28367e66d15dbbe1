"""Everything that the head knows about one host on another machine, in one object.

It has the methods of a host in this process; what they do happens behind the socket.
"""

from __future__ import annotations

import math
import time
from enum import Enum, auto

from clusterenv.arrays import Array, Buffer, bytes_of
from clusterenv.errors import ProtocolError
from clusterenv.head.fleet import Presence
from clusterenv.head.pending import Pending
from clusterenv.host.events import (
    Voided,
)
from clusterenv.protocol.message import Message
from clusterenv.protocol.requests import (
    AnyRequest,
    Collect,
    Newest,
    Step,
)
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.restarts import RestartBudget
from clusterenv.wire.driver import Driver
from clusterenv.wire.messages import (
    Abandon,
    Announce,
    Hello,
    StaffReport,
)


class HostState(Enum):
    """Where a host is in its life."""

    ORDERED = auto()
    HERE = auto()
    BUILDING = auto()
    BUILT = auto()
    LAYING_OUT = auto()
    READY = auto()
    LATE = auto()
    """It was not ready in time, and others have its slots."""
    SPARE = auto()
    """It has finished its outdated work, and may get slots again."""
    LOST = auto()


_NEXT = {
    HostState.ORDERED: (HostState.HERE, HostState.LOST),
    HostState.HERE: (HostState.BUILDING, HostState.LATE, HostState.LOST),
    HostState.BUILDING: (HostState.BUILDING, HostState.BUILT, HostState.LATE, HostState.LOST),
    HostState.BUILT: (HostState.BUILDING, HostState.LAYING_OUT, HostState.LATE, HostState.LOST),
    HostState.LAYING_OUT: (HostState.BUILDING, HostState.READY, HostState.LATE, HostState.LOST),
    HostState.READY: (HostState.BUILDING, HostState.SPARE, HostState.LOST),
    HostState.LATE: (HostState.BUILDING, HostState.SPARE, HostState.LOST),
    HostState.SPARE: (HostState.BUILDING, HostState.LOST),
    HostState.LOST: (),
}


LONGEST_REASON = 300
"""How much of a host's reason is kept."""


_STATE_IN_WORDS = {HostState.ORDERED: "ordered", HostState.READY: "ready", HostState.LOST: "lost"}


class RemoteHost:
    """One place of the run, and the host that holds it now.

    It knows much because all that is known about a peer belongs in one place.
    """

    def __init__(self, index: int, driver: Driver, started_at: float, incarnation: int = 0) -> None:
        self.index, self.incarnation, self.started_at = index, incarnation, started_at
        self.name = f"host-{index}.{incarnation}"
        """Its place in the run and its number in that place."""
        self._driver = driver
        self.slots = range(0)
        self.state = HostState.ORDERED
        self.hello: Hello | None = None
        self.epoch = 0
        """Grows whenever earlier requests are no longer wanted."""
        self.pending = Pending()
        self.descriptions: tuple[tuple[int, bytes], ...] = ()
        self.leaving = ""
        """Why it must end soon, if it has said so."""
        self.restarts = RestartBudget()
        self.ready_at = math.inf
        """Since when it can be asked for work; it may have worked before slots were dealt anew."""
        self._worked_before_s = 0.0
        self.workers: tuple[WorkerStatus, ...] = ()
        self.staffed_at = 0.0
        """Since when all its workers are ready; infinite while one is being replaced."""
        self.num_rows = 0
        """Steps and resets of single slots so far, including its predecessors'."""
        self._num_pulls = 0
        self._held_back: list[tuple[Message, list[Buffer]]] = []

    def become(self, state: HostState) -> None:
        """Go on to another state; ProtocolError if that is not allowed."""
        if state not in _NEXT[self.state]:
            raise ProtocolError(f"cannot go from {self.state.name} to {state.name}")
        if self.is_ready:
            # Building other envs does not count as work.
            self._worked_before_s, self.ready_at = self.worked_s(time.monotonic()), math.inf
        self.state = state

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked for work."""
        return self.state is HostState.READY

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        return self.pending.is_empty

    @property
    def num_workers(self) -> int:
        """How many workers it has, by its own account."""
        return self.hello.workers if self.hello is not None else 1

    def whereabouts(self) -> str:
        """Its name with its machine and process, once it has said Hello."""
        hello = self.hello
        return f"{self.name} (machine {hello.machine}, pid {hello.pid})" if hello else self.name

    def presence(self) -> Presence:
        """The host at this moment."""
        hello, state = self.hello, _STATE_IN_WORDS.get(self.state, "joining")
        if self.leaving and state != "lost":
            state = "leaving"
        return Presence(
            self.name,
            "" if hello is None else hello.machine,
            0 if hello is None else hello.pid,
            state,
            self.slots,
            self.num_rows,
            self.incarnation,
            self.workers,
        )

    def successor(self, start_at: float) -> RemoteHost:
        """The next host in this place, to be started at ``start_at``."""
        following = RemoteHost(self.index, self._driver, start_at, self.incarnation + 1)
        following.slots, following.restarts = self.slots, self.restarts
        following.num_rows = self.num_rows
        return following

    def worked_s(self, now: float) -> float:
        """How long it did good work: until it got the oldest request that it has not answered."""
        since_ready_s = min(now, self.pending.oldest_at) - self.ready_at
        return self._worked_before_s + max(0.0, since_ready_s)

    def note_staff(self, staff: StaffReport) -> None:
        """Take its report of its present workers."""
        if len(staff.workers) > self.num_workers:
            raise ProtocolError(f"{len(staff.workers)} workers; it has {self.num_workers}")
        self.workers = tuple(
            WorkerStatus(
                printable(one.name),
                one.pid,
                printable(one.state),
                _within(self.slots, one.first_slot, one.num_slots),
                one.incarnation,
                self.name,
            )
            for one in staff.workers
        )
        if not all(worker.state == "ready" for worker in self.workers):
            self.staffed_at = math.inf
        elif self.staffed_at == math.inf:
            self.staffed_at = time.monotonic()

    def note_descriptions(self, descriptions: tuple[tuple[int, bytes], ...]) -> None:
        """Take what its workers say about the envs that they have built."""
        counts = [count for count, _ in descriptions]
        if min(counts, default=0) < 1 or sum(counts) != len(self.slots):
            raise ProtocolError(
                f"it describes {sum(counts)} envs of {len(counts)} workers, and has "
                f"{len(self.slots)} slots"
            )
        self.descriptions = descriptions

    def note_leaving(self, reason: str) -> None:
        """Note that it must end soon."""
        self.leaving = f"{reason:.{LONGEST_REASON}}" or "it did not say why"

    def note_pull(self) -> None:
        """Note that it was sent weights."""
        self._num_pulls += 1

    def note_pulled(self, seconds: float) -> None:
        """Note that it has loaded the weights that it asked for ``seconds`` ago."""
        if not self._num_pulls or not 0.0 <= seconds < math.inf:
            raise ProtocolError("Pulled without a pull, or with an invalid time")
        self._num_pulls -= 1

    # Asking.

    def ask(self, request: AnyRequest, actions: Array | None = None) -> None:
        """Request work on some of its slots; ``actions`` has a row for each slot of a step."""
        frames: list[Buffer] = []
        if isinstance(request, Step) and actions is not None:
            request.dtype = actions.dtype.str
            frames = [bytes_of(actions)]
        # Under the lock: it may become ready at any moment while another thread drives.
        with self._driver:
            if isinstance(request, Collect):
                self._driver.expect(len(request.slots) * (request.num_steps + 1))
            self.pending.add(request)
            if self.is_ready:
                self._driver.send(self.name, request, frames)
            else:
                self._held_back.append((request, frames))

    def send_held_back(self) -> None:
        """Send what had to wait until it was ready. Only while driving."""
        self.ready_at = time.monotonic()
        self.pending.begin_now()
        for message, frames in self._held_back:
            self._driver.send(self.name, message, frames)
        self._held_back.clear()

    def announce(self, newest: Newest) -> None:
        """Tell it about a new version."""
        if self.is_ready:
            with self._driver:
                self._driver.send(self.name, Announce(newest))

    def abandon(self) -> set[int]:
        """Ignore the answers to all requests so far; returns the slots it never got to."""
        with self._driver:
            if self.pending.is_empty:
                return set()
            if not self.is_ready:
                # It was not asked yet, so its epoch does not end; it is still getting ready.
                self._held_back.clear()
                return {slot for one in self.pending.void() for slot in one.slots}
            self.void()
            self._driver.send(self.name, Abandon(self.epoch))
        return set()

    def void(self) -> tuple[Voided, ...]:
        """Give up all requests so far, and return what they were."""
        with self._driver:
            self.epoch += 1
            self._held_back.clear()
            return self.pending.void()

    def is_current(self, epoch: int) -> bool:
        """Whether a message of this epoch is still wanted."""
        if epoch > self.epoch:
            raise ProtocolError(f"a message of epoch {epoch}, which has not begun")
        return epoch == self.epoch


def printable(text: str) -> str:
    """The beginning of a name, without terminal control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:50])


def _within(slots: range, first: int, count: int) -> range:
    """The slots from ``first`` on that are among ``slots``: the host cannot own others."""
    return range(max(first, slots.start), min(first + count, slots.stop))
