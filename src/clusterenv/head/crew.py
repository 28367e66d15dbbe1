"""The workers of a run as processes: start, reach, watch, replace and end them."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from clusterenv.arrays import Buffer
from clusterenv.errors import WorkerLostError
from clusterenv.head.enrolment import Enrolment
from clusterenv.head.guard import Guard
from clusterenv.head.inbox import Inbox
from clusterenv.head.io_thread import IoThread
from clusterenv.head.publisher import Publisher
from clusterenv.head.reception import Reception, Replies
from clusterenv.head.roster import Member, Roster
from clusterenv.head.watch import Ended, Watch
from clusterenv.launchers.base import Launcher, Order, cores
from clusterenv.limits import Limits
from clusterenv.sync.ledger import Ledger
from clusterenv.wire.addresses import Network
from clusterenv.wire.bell import Bell
from clusterenv.wire.codec import encode
from clusterenv.wire.invitation import TICKET, Invitation, SharedDescriptors
from clusterenv.wire.messages import Build, Close, Enrol, Hello, Message, Pull, Pulled, Refused
from clusterenv.wire.parcels import Packer
from clusterenv.wire.shared_memory import AVAILABLE, Mailbox
from clusterenv.wire.zmq_channel import HeadSocket

_log = logging.getLogger("clusterenv")
_MOST_REFUSALS = 20


@dataclass
class Line:
    """The shared-memory line to the worker in one place; a replacement takes it over."""

    mailbox: Mailbox
    doorbell: Bell
    mailbox_fd: int
    frames_fd: int

    @staticmethod
    def open() -> Line:
        """A new one; OSError if there is no memory for it."""
        mailbox_fd = Mailbox.create()
        frames_fd = os.memfd_create("clusterenv-frames", os.MFD_CLOEXEC)
        return Line(Mailbox(mailbox_fd), Bell(), mailbox_fd, frames_fd)

    def clear(self) -> None:
        """Make it as new for the next worker; the one before is gone."""
        self.mailbox.clear()
        self.doorbell.clear()

    def close(self) -> None:
        """Give its memory back."""
        self.doorbell.close()
        os.close(self.mailbox_fd)
        os.close(self.frames_fd)


class Crew:
    """Starts, reaches, watches, replaces and ends the workers of the roster."""

    def __init__(
        self,
        launcher: Launcher,
        roster: Roster,
        limits: Limits,
        shared_memory: bool,
        encoding: str,
        network: Network,
        build_for: Callable[[Member], Build | None],
        packer: Packer,
    ) -> None:
        self._launcher, self._roster, self.limits = launcher, roster, limits
        self._build_for = build_for
        self.shares_memory = shared_memory and launcher.shares_memory and AVAILABLE
        self.num_events = 0
        """Grows whenever something is sent to workers or heard from them, by a message."""
        self.inbox = Inbox(may_spin=self.shares_memory and cores() > len(roster.members))
        self.reception = Reception()
        self.ledger = Ledger()
        self.publisher = Publisher(self.ledger, encoding, self.reception.neighbourhood_of, packer)
        self._guard = Guard(newest=lambda: self.publisher.version)
        self._lines: dict[int, Line] = {}
        self._ticket: bytes = b""
        self.turned_away = ""
        self._refusals: set[str] = set()
        self._enrolment = Enrolment(self._enrol)
        self.watch = Watch(launcher, self.inbox)
        with ExitStack() as undo:
            undo.callback(self.inbox.close)
            self.arena_fd = self._create_arena_fd()
            if self.arena_fd is not None:
                undo.callback(os.close, self.arena_fd)
            self._socket = HeadSocket(network, launcher.towards, lease_s=limits.lease_s)
            self.io = IoThread(
                self._socket, self.inbox, self._answer_at_once, self._disconnected, self.ledger
            )
            undo.pop_all()
        self.io.start()

    def _answer_at_once(self, worker: str, message: Message) -> Replies | None:
        """On the I/O thread: joins and pulls are served while the user's thread computes."""
        self._guard.check(worker, message)
        if worker.startswith(TICKET):
            return self._receive_applicant(worker, message)
        if isinstance(message, Hello):
            self.watch.arrived(worker)
            # First, so that the obituary can say which host it was on.
            replies = self.reception.answer(worker, message)
            if refusal := self.reception.refusal(message):
                self.inbox.put(worker, Ended(f"the head refused it: {refusal}"))
            return replies
        if isinstance(message, Pull):
            return self.publisher.answer(worker, message)
        if isinstance(message, Pulled):
            self.ledger.record_latency(message.seconds)
            for neighbour, replies in self.publisher.pulled(worker, message):
                for reply, frames in replies:
                    self.io.send(neighbour, reply, frames)
            return ()
        return self.reception.answer(worker, message)

    def _receive_applicant(self, applicant: str, message: Message) -> Replies:
        if not isinstance(message, Hello):
            return ()
        if refusal := self.reception.refusal(message):
            self.turned_away = f"\nThe head refused a worker on host {message.host}: {refusal}"
            self._tell_refusal(f"refused a worker on host {message.host}: {refusal}")
            return [(Refused(refusal), ())]
        self._enrolment.apply(applicant)
        return ()

    def _tell_refusal(self, text: str) -> None:
        if text not in self._refusals and len(self._refusals) < _MOST_REFUSALS:
            self._refusals.add(text)
            _log.warning(text)

    def _enrol(self, applicant: str, order: Order) -> None:
        self.watch.expect_within(order.worker, self.limits.lease_s)
        self.io.send(applicant, Enrol(order.invitation))

    def _disconnected(self, worker: str) -> None:
        if worker.startswith(TICKET):
            self._enrolment.leave(worker)
            self._guard.forget(worker)
        else:
            self.watch.connection_broke(worker)

    def _create_arena_fd(self) -> int | None:
        return os.memfd_create("clusterenv-arena", os.MFD_CLOEXEC) if self.shares_memory else None

    def start(self) -> None:
        """Start every worker."""
        if self.shares_memory:
            self._open_lines()
        self._start([self._order(member) for member in self._roster.members])
        self.watch.start()

    def _start(self, orders: Sequence[Order]) -> None:
        if not self._launcher.enrols:
            self._launcher.start(orders)
            return
        self._ticket = self._ticket or self._invite(TICKET, None).to_bytes()
        for order in orders:
            self._enrolment.open(order)
        self._launcher.start([Order(order.worker, self._ticket) for order in orders])

    def _open_lines(self) -> None:
        try:
            for member in self._roster.members:
                self._lines[member.index] = Line.open()
        except OSError as error:
            warnings.warn(
                f"cannot allocate shared memory ({error}); everything will travel over tcp, which "
                "is slower. shared_memory=False silences this",
                stacklevel=2,
            )
            self._close_shared_memory()

    def _close_shared_memory(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        if self.arena_fd is not None:
            os.close(self.arena_fd)
        self.arena_fd, self.shares_memory = None, False

    def _order(self, member: Member) -> Order:
        worker, shared = member.worker, None
        line = self._lines.get(member.index)
        if line is not None and self.arena_fd is not None:
            line.clear()
            self.inbox.watch(worker, line.mailbox, line.frames_fd)
            shared = SharedDescriptors(
                mailbox=line.mailbox_fd,
                frames=line.frames_fd,
                arena=self.arena_fd,
                doorbell=line.doorbell.fd,
                head_bell=self.inbox.bell.ring_fd,
            )
        self.reception.expect(worker, self._build_for(member))
        fds = () if shared is None else msgspec.structs.astuple(shared)
        return Order(worker, self._invite(worker, shared).to_bytes(), fds)

    def _invite(self, worker: str, shared: SharedDescriptors | None) -> Invitation:
        limits = self.limits
        return self._socket.invite(
            worker,
            lease_s=limits.lease_s,
            step_timeout_s=limits.step_timeout_s,
            startup_timeout_s=limits.startup_timeout_s,
            shared=shared,
        )

    def reassign(self, member: Member) -> None:
        """The member's slots have changed: have its worker build them, now or when it comes."""
        build = self._build_for(member)
        if self.reception.expect(member.worker, build) and build is not None:
            self.io.send(member.worker, build)

    def send(self, member: Member, message: Message, frames: Sequence[Buffer] = ()) -> None:
        """Send to a member's worker, through its mailbox where that is possible."""
        self.num_events += 1
        if frames or not self.push(member, encode(message)):
            self.io.send(member.worker, message, frames)

    def push(self, member: Member, header: bytes) -> bool:
        """Push an encoded message into a member's mailbox; False if that is not possible."""
        self.num_events += 1
        line = self._lines.get(member.index)
        if line is None or not line.mailbox.to_worker.push(header):
            return False
        line.doorbell.ring()
        return True

    def line_of(self, member: Member) -> Line | None:
        """Its line, where the worker shares memory."""
        return self._lines.get(member.index)

    def current_slot(self, member: Member) -> int | None:
        """The slot whose env was running last, where the worker shares memory."""
        line = self._lines.get(member.index)
        slot = line.mailbox.current_slot if line is not None else Mailbox.NO_SLOT
        return None if slot == Mailbox.NO_SLOT else slot

    def obituary(self, member: Member, reason: str) -> str:
        """What is known about the end of a member's worker, for an error message."""
        slot = self.current_slot(member)
        doing = f" while the env of slot {slot} was running" if slot is not None else ""
        doing = doing or f"; it ran slots {', '.join(map(str, member.slots))}"
        who = self.reception.whereabouts(member.worker)
        return f"{who} was lost: {reason}{doing}{self.log_tail(member)}"

    def whereabouts(self, member: Member) -> str:
        """A member's worker: its host and process, or what its engine says about it."""
        known = self.reception.whereabouts(member.worker)
        if known != member.worker:
            return known
        status = self.watch.status.get(member.worker)
        engine = f"; {status.reason}" if status and status.reason else ""
        return f"{known} (has not reached {self.address}{engine})"

    @property
    def address(self) -> str:
        """Where workers reach the head."""
        return self._socket.address

    def log_tail(self, member: Member) -> str:
        """The end of the worker's log, headed, or nothing."""
        log = self._launcher.logs(member.worker).strip()
        return f"\nThe end of the log of {member.worker}:\n{log}" if log else ""

    def replace(self, member: Member, reason: str, *, counts: bool = True) -> None:
        """Start a new worker in a member's place; WorkerLostError if the budget is spent."""
        obituary = self.obituary(member, reason)
        self.dismiss(member)
        restarts = len(member.restarts)
        if counts and not self._roster.may_restart(member, time.monotonic()):
            raise WorkerLostError(
                f"{obituary}\nIt was replaced {restarts} times within a minute already, which is "
                "max_restarts_per_minute; fix the env, or raise that limit"
            )
        self._roster.replace(member)
        self._start([self._order(member)])

    def dismiss(self, member: Member) -> None:
        """End a member's worker at once and forget it."""
        worker = member.worker
        takes_leave = bool(member.leaving) and self._launcher.enrols
        if takes_leave:
            # Nobody else can end it.
            self.io.send(worker, Close())
        self._socket.revoke(worker, cut=not takes_leave)
        self._enrolment.withdraw(worker)
        self._launcher.stop([worker])
        self.reception.forget(worker)
        self._guard.forget(worker)
        self.publisher.forget(worker)
        self.inbox.forget(worker)

    @property
    def is_closed(self) -> bool:
        """Whether the run is over."""
        return self.watch.is_closed

    def close(self, grace_s: float) -> None:
        """Let the workers close their envs for ``grace_s``, then end them and clean up."""
        self.watch.close()
        joined = [member for member in self._roster.members if member.joined]
        if grace_s > 0:
            for member in joined:
                self.send(member, Close())
        for applicant in self._enrolment.spares:
            self.io.send(applicant, Close())
        if self.watch.is_alive():
            self.watch.join()
        # A worker that has not joined has no envs to close, and cannot be told to.
        self._launcher.stop([m.worker for m in self._roster.members if not m.joined])
        self._launcher.stop([member.worker for member in joined], grace_s)
        self.io.close()
        self.inbox.close()
        self._close_shared_memory()
