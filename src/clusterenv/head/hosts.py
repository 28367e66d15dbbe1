"""The hosts of a run on other machines: start, let in, reach, watch, replace and end them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from clusterenv.errors import ProtocolError
from clusterenv.head.enrolment import Enrolment
from clusterenv.head.publisher import Publisher
from clusterenv.head.remote_host import RemoteHost, State
from clusterenv.head.watch import Ended, Watch
from clusterenv.host.events import PullWanted
from clusterenv.host.plan import Plan, Spaces, WorkerLimits
from clusterenv.launchers.base import Launcher, Order
from clusterenv.sync.ledger import Ledger
from clusterenv.wire.addresses import Network
from clusterenv.wire.driver import Driver
from clusterenv.wire.handshake import refusal
from clusterenv.wire.head_socket import HeadSocket
from clusterenv.wire.invitation import TICKET, Invitation
from clusterenv.wire.messages import (
    Build,
    Built,
    Close,
    Enrol,
    Hello,
    LayOut,
    Leaving,
    Pull,
    Pulled,
    Ready,
    Refused,
    Staff,
    Weights,
)
from clusterenv.wire.rate_limits import RateLimits
from clusterenv.wire.versions import versions

_log = logging.getLogger("clusterenv")
_MOST_REFUSALS = 20


class Hosts:
    """Exists before anybody knows the spaces of the run; a fleet is made from it.

    It knows much because joins and pulls are answered here, by whichever thread drives the socket.

    Args:
        launcher: Starts them.
        network: Where the head listens.
        lease_s: How long head and host may be without each other.
        limits: What hosts are to expect of their workers.
        workers: How many workers each runs; None: as many as it has cores.
        publisher: What they pull.
        ledger: Where bytes and latencies are recorded.
        plan_of: What the host of these slots is to run.
    """

    def __init__(
        self,
        launcher: Launcher,
        network: Network,
        lease_s: float,
        limits: WorkerLimits,
        workers: list[int | None],
        publisher: Publisher,
        ledger: Ledger,
        plan_of: Callable[[range], Plan],
    ) -> None:
        self.launcher, self._lease_s, self.limits = launcher, lease_s, limits
        self._workers, self._plan_of = workers, plan_of
        self._publisher, self._ledger = publisher, ledger
        self._rate_limits = RateLimits(newest=lambda: publisher.version)
        self._enrolment = Enrolment(self._enrol)
        self._ticket = b""
        self._places: dict[str, str] = {}
        self._refusals: list[str] = []
        self._versions = versions()
        self.spaces: Spaces | None = None
        """What all envs agree on, once that is known."""
        self.num_arrived = 0
        """How many hosts have come so far."""
        with ExitStack() as undo:
            self._socket = HeadSocket(network, launcher.towards, lease_s=lease_s)
            undo.callback(self._socket.close)
            self.driver = Driver(self._socket, self._answer, self._disconnected, ledger)
            self.watch = Watch(launcher, self.driver.put)
            now = time.monotonic()
            self.all = [RemoteHost(index, self.driver, now) for index in range(len(workers))]
            self._by_name = {host.name: host for host in self.all}
            undo.pop_all()

    def start(self) -> None:
        """Start every host."""
        self.driver.start()
        self._start(self.all)
        self.watch.start()

    def _start(self, hosts: list[RemoteHost]) -> None:
        orders = [Order(host.name, self._invite(host).to_bytes()) for host in hosts]
        if not self.launcher.enrols:
            self.launcher.start(orders)
            return
        if not self._ticket:
            workers = self.launcher.workers_per_host
            ticket = self._socket.invite(TICKET, self._lease_s, self.limits, workers)
            self._ticket = ticket.to_bytes()
        # First: it must know of a host before it is told where that runs.
        self.launcher.start([Order(order.host, self._ticket) for order in orders])
        with self.driver:
            for order in orders:
                self._enrolment.open(order)

    def _invite(self, host: RemoteHost) -> Invitation:
        workers = self._workers[host.index]
        return self._socket.invite(host.name, self._lease_s, self.limits, workers)

    @property
    def address(self) -> str:
        """Where hosts reach the head."""
        return self._socket.address

    @property
    def spares(self) -> list[str]:
        """The applicants that wait for a place."""
        return self._enrolment.spares

    @property
    def turned_away(self) -> str:
        """Who was refused last, and why, for messages."""
        return f"\nThe head refused {self.last_refusal}" if self._refusals else ""

    @property
    def last_refusal(self) -> str:
        """Which applicant was refused last, and why, or nothing."""
        return self._refusals[-1] if self._refusals else ""

    def find(self, name: str) -> RemoteHost | None:
        """The host of this name, unless it has been replaced."""
        return self._by_name.get(name)

    # Under the driver's lock: joins and pulls are served while the user's thread computes.

    def _answer(self, name: str, message: Any) -> bool:
        self._rate_limits.check(name, message)
        if name.startswith(TICKET):
            self._receive_applicant(name, message)
            return True
        host = self.find(name)
        if host is None:
            return True
        match message:
            case Hello():
                self._welcome(host, message)
            case Built(epoch=epoch, descriptions=descriptions):
                if host.is_current(epoch):
                    host.become(State.BUILT)
                    host.note_descriptions(descriptions)
                    self.lay_out(host)
            case Ready(epoch=epoch):
                if host.is_current(epoch):
                    host.become(State.READY)
                    host.send_held_back()
            case Pull():
                self._answer_pull(host, message)
            case Pulled(seconds=seconds):
                host.note_pulled(seconds)
                self._ledger.record_latency(seconds)
            case Leaving(reason=reason):
                host.note_leaving(reason)
            case Staff():
                host.note_staff(message)
            case _:
                return False
        self.driver.wake()
        return True

    def _welcome(self, host: RemoteHost, hello: Hello) -> None:
        host.become(State.HERE)
        host.hello = hello
        self.num_arrived += 1
        self.watch.arrived(host.name)
        if reason := refusal(self._versions, hello):
            self.driver.send(host.name, Refused(reason))
            self.driver.put(host.name, Ended(f"the head refused it: {reason}", reason))
            return
        if host.slots:
            self.build(host)

    def build(self, host: RemoteHost) -> None:
        """Have a host that is there build the envs of its slots. Only while driving."""
        host.become(State.BUILDING)
        host.descriptions, host.started_at = (), time.monotonic()
        self.driver.send(host.name, Build(self._plan_of(host.slots), host.epoch))

    def lay_out(self, host: RemoteHost) -> None:
        """Tell a host that has built its envs what all agree on, if that is known by now."""
        if self.spaces is not None and host.state is State.BUILT:
            host.become(State.LAYING_OUT)
            self.driver.send(host.name, LayOut(self.spaces))

    def _answer_pull(self, host: RemoteHost, pull: Pull) -> None:
        if not 0 <= pull.held <= self._publisher.version:
            raise ProtocolError(f"it holds version {pull.held}, which was never published")
        if self._publisher.newest is None:
            raise ProtocolError("it pulls before anything was published")
        host.note_pull()
        wanted = PullWanted(pull.policy_id, pull.held, pull.cause, pull.threshold)
        encoded = self._publisher.encode_for(host.name, wanted)
        newest = encoded.publication
        weights = Weights(
            newest.policy.policy_id,
            newest.version,
            newest.snapshot.checksum,
            encoded.encoding,
            pull.cause,
            encoded.base,
        )
        if pull.policy_id != newest.policy.policy_id:
            self.driver.send(host.name, newest.policy)
        self.driver.send(host.name, weights, [encoded.weights])

    def _receive_applicant(self, applicant: str, message: Any) -> None:
        if not isinstance(message, Hello):
            return
        if reason := refusal(self._versions, message):
            self._tell_refusal(f"a host on machine {message.machine}: {reason}")
            self.driver.send(applicant, Refused(reason))
            return
        self._places[applicant] = message.place
        self._enrolment.apply(applicant)

    def _tell_refusal(self, text: str) -> None:
        if text not in self._refusals and len(self._refusals) < _MOST_REFUSALS:
            self._refusals.append(text)
            _log.warning("refused %s", text)

    def _enrol(self, applicant: str, order: Order) -> None:
        self.watch.expect_within(order.host, self._lease_s)
        self.launcher.enrolled(order.host, self._places.get(applicant, ""))
        self.driver.send(applicant, Enrol(order.invitation))

    def _disconnected(self, name: str) -> None:
        if name.startswith(TICKET):
            self._enrolment.leave(name)
            self._rate_limits.forget(name)
            self._places.pop(name, None)
        else:
            self.watch.connection_broke(name)

    # Ending.

    def replace(self, host: RemoteHost) -> RemoteHost:
        """Start another host in a host's place."""
        self.dismiss(host)
        successor = host.successor(time.monotonic())
        with self.driver:
            self.all[host.index] = successor
            del self._by_name[host.name]
            self._by_name[successor.name] = successor
        # An engine may take its time for that: joins and pulls are served meanwhile.
        self._start([successor])
        return successor

    def dismiss(self, host: RemoteHost) -> None:
        """End a host at once and forget it."""
        with self.driver:
            takes_leave = bool(host.leaving) and self.launcher.enrols
            if takes_leave:
                # Nobody else can end it.
                self.driver.send(host.name, Close(0.0))
            if host.state is not State.LOST:
                host.become(State.LOST)
            self._socket.revoke(host.name, cut=not takes_leave)
            self._enrolment.withdraw(host.name)
            self._rate_limits.forget(host.name)
            self._publisher.forget(host.name)
        self.launcher.stop([host.name])

    def whereabouts(self, host: RemoteHost) -> str:
        """A host: its machine and process, or what its engine says about it."""
        if host.hello is not None:
            return host.whereabouts()
        status = self.watch.status.get(host.name)
        engine = f"; {status.reason}" if status and status.reason else ""
        return f"{host.name} (has not reached {self.address}{engine})"

    def log_tail(self, host: RemoteHost) -> str:
        """The end of the host's log, headed, or nothing."""
        log = self.launcher.logs(host.name).strip()
        return f"\nThe end of the log of {host.name}:\n{log}" if log else ""

    def close(self, grace_s: float) -> None:
        """Let envs close for ``grace_s``, then end all hosts and clean up."""
        self.watch.close()
        alive = [host for host in self.all if host.state is not State.LOST]
        with self.driver:
            for host in alive:
                if grace_s > 0 and host.hello is not None:
                    self.driver.send(host.name, Close(grace_s))
            for applicant in self._enrolment.spares:
                self.driver.send(applicant, Close(0.0))
        if self.watch.is_alive():
            self.watch.join()
        # One that has not come has no envs to close, and cannot be told to.
        self.launcher.stop([host.name for host in alive if host.hello is None])
        self.launcher.stop([host.name for host in alive if host.hello is not None], grace_s)
        self.driver.close()
