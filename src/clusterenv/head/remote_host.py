"""Everything that the head knows about one host on another machine, in one object.

It has the methods of a host in this process; what they do happens behind the socket.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum, auto

from clusterenv.arrays import Array, Buffer, bytes_of
from clusterenv.errors import ProtocolError
from clusterenv.head.fleet import Presence
from clusterenv.head.pending import Pending
from clusterenv.host.events import (
    Voided,
)
from clusterenv.host.worker import RESTART_WINDOW_S
from clusterenv.protocol.message import Message
from clusterenv.protocol.requests import (
    AnyRequest,
    Newest,
    Step,
)
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.wire.driver import Driver
from clusterenv.wire.messages import (
    Abandon,
    Announce,
    Hello,
    Staff,
)


class State(Enum):
    """Where a host is in its life."""

    ORDERED = auto()
    HERE = auto()
    BUILDING = auto()
    BUILT = auto()
    LAYING_OUT = auto()
    READY = auto()
    LOST = auto()


_NEXT = {
    State.ORDERED: (State.HERE, State.LOST),
    State.HERE: (State.BUILDING, State.LOST),
    State.BUILDING: (State.BUILDING, State.BUILT, State.LOST),
    State.BUILT: (State.BUILDING, State.LAYING_OUT, State.LOST),
    State.LAYING_OUT: (State.BUILDING, State.READY, State.LOST),
    State.READY: (State.BUILDING, State.LOST),
    State.LOST: (),
}


LONGEST_REASON = 300
"""So much of a reason that a host gives is kept."""


_STATE_IN_WORDS = {State.ORDERED: "ordered", State.READY: "ready", State.LOST: "lost"}


class RemoteHost:
    """One place of the run, and the host that holds it now.

    It knows much because what is known about a peer is to be found in one place.
    """

    def __init__(self, index: int, driver: Driver, started_at: float, incarnation: int = 0) -> None:
        self.index, self.incarnation, self.started_at = index, incarnation, started_at
        self.name = f"host-{index}.{incarnation}"
        """Which host of the run, and the how-manieth in that place."""
        self._driver = driver
        self.slots = range(0)
        self.state = State.ORDERED
        self.hello: Hello | None = None
        self.epoch = 0
        """Grows whenever what was asked before is not wanted any more."""
        self.pending = Pending()
        self.descriptions: tuple[tuple[int, bytes], ...] = ()
        self.leaving = ""
        """Why it will have to end soon, if it has said so."""
        self.restarts: deque[float] = deque()
        self.workers: tuple[WorkerStatus, ...] = ()
        self.num_rows = 0
        """Steps and resets of single slots so far, those of its predecessors included."""
        self._num_pulls = 0
        self._held_back: list[tuple[Message, list[Buffer]]] = []

    def become(self, state: State) -> None:
        """Go on to another state; ProtocolError if that cannot be."""
        if state not in _NEXT[self.state]:
            raise ProtocolError(f"it is {self.state.name}, and cannot be {state.name} next")
        self.state = state

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked for work."""
        return self.state is State.READY

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        return self.pending.is_empty

    @property
    def num_workers(self) -> int:
        """How many workers it says it has."""
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

    def successor(self, now: float) -> RemoteHost:
        """The next host in this place."""
        following = RemoteHost(self.index, self._driver, now, self.incarnation + 1)
        following.slots, following.restarts = self.slots, self.restarts
        following.num_rows = self.num_rows
        return following

    def may_restart(self, limit: int, now: float) -> bool:
        """Whether the budget has room for another restart; if so, spend it."""
        while self.restarts and now > self.restarts[0] + RESTART_WINDOW_S:
            self.restarts.popleft()
        if len(self.restarts) >= limit:
            return False
        self.restarts.append(now)
        return True

    def note_staff(self, staff: Staff) -> None:
        """The workers that it has now."""
        if len(staff.workers) > self.num_workers:
            raise ProtocolError(f"{len(staff.workers)} workers; it has {self.num_workers}")
        self.workers = tuple(
            WorkerStatus(
                f"{one.name:.50}",
                one.pid,
                f"{one.state:.50}",
                _within(self.slots, one.first_slot, one.num_slots),
                one.incarnation,
                self.name,
            )
            for one in staff.workers
        )

    def note_descriptions(self, descriptions: tuple[tuple[int, bytes], ...]) -> None:
        """Its workers have built their envs, and say this about them."""
        counts = [count for count, _ in descriptions]
        if min(counts, default=0) < 1 or sum(counts) != len(self.slots):
            raise ProtocolError(
                f"it describes {sum(counts)} envs of {len(counts)} workers, and has "
                f"{len(self.slots)} slots"
            )
        self.descriptions = descriptions

    def note_leaving(self, reason: str) -> None:
        """It will have to end soon."""
        self.leaving = f"{reason:.{LONGEST_REASON}}" or "it did not say why"

    def note_pull(self) -> None:
        """It was sent weights."""
        self._num_pulls += 1

    def note_pulled(self, seconds: float) -> None:
        """It has loaded weights that it was sent, so long after it asked for them."""
        if not self._num_pulls or not 0.0 <= seconds < math.inf:
            raise ProtocolError("it has loaded weights that nobody sent")
        self._num_pulls -= 1

    # Asking.

    def ask(self, request: AnyRequest, actions: Array | None = None) -> None:
        """Have some of its slots worked on; ``actions`` has a row for each of a step's slots."""
        frames: list[Buffer] = []
        if isinstance(request, Step) and actions is not None:
            request.dtype = actions.dtype.str
            frames = [bytes_of(actions)]
        # Under the lock: it may become ready at any moment, while another thread drives.
        with self._driver:
            self.pending.add(request)
            if self.is_ready:
                self._driver.send(self.name, request, frames)
            else:
                self._held_back.append((request, frames))

    def send_held_back(self) -> None:
        """It is ready: send what had to wait for that. Only while driving."""
        self.pending.begin_now()
        for message, frames in self._held_back:
            self._driver.send(self.name, message, frames)
        self._held_back.clear()

    def announce(self, newest: Newest) -> None:
        """There is a new version."""
        if self.is_ready:
            with self._driver:
                self._driver.send(self.name, Announce(newest))

    def abandon(self) -> set[int]:
        """Take no notice of the answers to what was asked so far; the slots it never reached."""
        with self._driver:
            if self.pending.is_empty:
                return set()
            if not self.is_ready:
                # It was not asked yet, so that no epoch ends; it is on its way to be ready.
                self._held_back.clear()
                return {slot for one in self.pending.void() for slot in one.slots}
            self.void()
            self._driver.send(self.name, Abandon(self.epoch))
        return set()

    def void(self) -> tuple[Voided, ...]:
        """Nothing that was asked so far will be answered: what that was."""
        with self._driver:
            self.epoch += 1
            self._held_back.clear()
            return self.pending.void()

    def is_current(self, epoch: int) -> bool:
        """Whether a message of this epoch is still wanted."""
        if epoch > self.epoch:
            raise ProtocolError(f"a message of epoch {epoch}, which has not begun")
        return epoch == self.epoch


def _within(slots: range, first: int, count: int) -> range:
    """Those of the slots from ``first`` on that are among ``slots``: more cannot be true."""
    return range(max(first, slots.start), min(first + count, slots.stop))
