"""The hosts of a run on other machines: starts, admits, watches, replaces and ends them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec

from clusterenv.arrays import Buffer
from clusterenv.descriptors import FOR_SOCKETS, PER_HOST, make_room
from clusterenv.errors import ProtocolError, StartupError
from clusterenv.head.publisher import Publisher
from clusterenv.head.pulls import Pulls
from clusterenv.head.reception import Reception
from clusterenv.head.remote_host import HostState, RemoteHost
from clusterenv.head.watch import Ended, Watch
from clusterenv.host.plan import Plan, Spaces, WorkerLimits, WorkerSetup
from clusterenv.launchers.base import Launcher, Order
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.sync.ledger import Ledger
from clusterenv.wire.addresses import Network
from clusterenv.wire.compression import BEST, NOTHING
from clusterenv.wire.driver import Driver
from clusterenv.wire.handshake import refusal
from clusterenv.wire.head_socket import HeadSocket
from clusterenv.wire.invitation import TICKET, Invitation
from clusterenv.wire.messages import (
    Build,
    Built,
    Close,
    FragmentMade,
    Hello,
    LayOut,
    Leaving,
    Pull,
    Pulled,
    Ready,
    Refused,
    RequestFailed,
    RowsMade,
    StaffReport,
    ValuesMade,
    WorkerLost,
)
from clusterenv.wire.rate_limits import RateLimits
from clusterenv.wire.versions import versions

_AT_WORK: weakref.WeakValueDictionary[int, Launcher] = weakref.WeakValueDictionary()
"""The launchers of all open runs, by id."""


def _refuse_to_share(launcher: Launcher) -> None:
    """StartupError if another run uses this launcher: by name it would stop that run's hosts."""
    if id(launcher) in _AT_WORK:
        raise StartupError(
            "this launcher already runs the hosts of another open ClusterEnv: make one for each "
            "ClusterEnv, or close the other first"
        )


class Hosts:
    """Exists before the spaces of the run are known; a fleet is made from it.

    It knows much because it has all that reaching hosts takes, from their start to their end.

    Args:
        launcher: Starts them.
        network: Where the head listens.
        lease_s: How long head and host may be out of touch.
        limits: What hosts allow their workers.
        setup: What they start workers with.
        workers: How many workers each host runs; None for one per core.
        publisher: Has the weights that they pull.
        ledger: Where bytes and latencies are recorded.
        plan_of: Returns what the host of these slots is to run.
        run: The id of the run.
    """

    def __init__(
        self,
        launcher: Launcher,
        network: Network,
        lease_s: float,
        limits: WorkerLimits,
        setup: WorkerSetup,
        workers: list[int | None],
        publisher: Publisher,
        ledger: Ledger,
        plan_of: Callable[[range], Plan],
        run: str = "",
    ) -> None:
        _refuse_to_share(launcher)
        self.launcher, self._lease_s, self.limits = launcher, lease_s, limits
        self._workers, self._setup, self._plan_of = workers, setup, plan_of
        self._ledger, self._run = ledger, run
        self._compression = BEST if network.compress else NOTHING
        self._rate_limits = RateLimits(newest=lambda: publisher.version)
        self._ticket = b""
        self._versions = versions()
        self.spaces: Spaces | None = None
        """What all envs agree on, once it is known."""
        self._waiting: list[RemoteHost] = []
        """Replacements that have yet to be started."""
        self.num_arrived = 0
        """How many hosts have joined so far."""
        make_room(FOR_SOCKETS + PER_HOST * len(workers), f"{len(workers)} hosts")
        with ExitStack() as undo:
            self._socket = HeadSocket(network, launcher.towards, lease_s=lease_s)
            undo.callback(self._socket.close)
            self.driver = Driver(self._socket, self._answer, self._disconnected, ledger)
            self.watch = Watch(launcher, self.driver.put)
            self._pulls = Pulls(self.driver, publisher, ledger)
            self.reception = Reception(self.driver, self.watch, launcher, self._versions, lease_s)
            now = time.monotonic()
            self.all = [RemoteHost(index, self.driver, now) for index in range(len(workers))]
            self._by_name = {host.name: host for host in self.all}
            undo.pop_all()
        _AT_WORK[id(launcher)] = launcher

    def start(self) -> None:
        """Start every host."""
        self.driver.start()
        self._start(self.all)
        self.watch.start()

    def _start(self, hosts: list[RemoteHost]) -> None:
        make_room(PER_HOST * len(hosts), ", ".join(host.name for host in hosts))
        orders = [Order(host.name, self._invite(host).to_bytes(), self._run) for host in hosts]
        if not self.launcher.enrols:
            self.launcher.start(orders)
            return
        if not self._ticket:
            workers = self.launcher.workers_per_host
            ticket = self._socket.invite(TICKET, self._lease_s, self.limits, workers)
            self._ticket = ticket.to_bytes()
        # The launcher must know of a host before it is told where that host runs.
        self.launcher.start([Order(order.host, self._ticket) for order in orders])
        self.reception.open(orders)

    def _invite(self, host: RemoteHost) -> Invitation:
        workers = self._workers[host.index]
        invitation = self._socket.invite(host.name, self._lease_s, self.limits, workers)
        return msgspec.structs.replace(invitation, setup=self._setup)

    @property
    def address(self) -> str:
        """Where hosts reach the head."""
        return self._socket.address

    def find(self, name: str) -> RemoteHost | None:
        """The host of this name, unless it has been replaced."""
        return self._by_name.get(name)

    # Under the driver's lock: joins and pulls are served while the user's thread computes.

    def _answer(self, name: str, message: Any) -> bool:
        self._rate_limits.check(name, message)
        if name.startswith(TICKET):
            if not isinstance(message, Hello):
                raise ProtocolError(f"an applicant may not say {type(message).__name__}")
            self.reception.receive(name, message)
            return True
        host = self.find(name)
        if host is None:
            return True
        match message:
            case Hello():
                self._welcome(host, message)
            case Built(epoch=epoch, descriptions=descriptions):
                if host.is_current(epoch):
                    host.become(HostState.BUILT)
                    host.note_descriptions(descriptions)
                    self.lay_out(host)
                else:
                    self._welcome_late(host)
            case Ready(epoch=epoch):
                if host.is_current(epoch):
                    host.become(HostState.READY)
                    host.send_held_back()
                else:
                    self._welcome_late(host)
            case Pull():
                self._pulls.answer(host, message)
            case Pulled(seconds=seconds):
                self._pulls.note_loaded(host, seconds)
            case Leaving(reason=reason):
                host.note_leaving(reason)
            case StaffReport():
                host.note_staff(message)
            case RowsMade() | FragmentMade() | ValuesMade() | RequestFailed() | WorkerLost():
                return self._is_of_no_use(host, message)
            case _:
                return False
        self.driver.wake()
        return True

    def _is_of_no_use(self, host: RemoteHost, message: Any) -> bool:
        """Whether an answer is too late to be used; ProtocolError if nothing was asked."""
        if not host.is_current(message.epoch):
            self._rate_limits.late(host.name)
            return True
        if host.is_idle and not isinstance(message, WorkerLost):
            raise ProtocolError(f"unexpected {type(message).__name__}: no request is pending")
        return False

    def _welcome(self, host: RemoteHost, hello: Hello) -> None:
        host.become(HostState.HERE)
        host.hello = hello
        self.num_arrived += 1
        self.watch.arrived(host.name)
        if reason := refusal(self._versions, hello):
            self.driver.send(host.name, Refused(reason))
            self.driver.put(host.name, Ended(f"the head refused it: {reason}", reason))
            return
        if host.slots:
            self.build(host)

    def _welcome_late(self, host: RemoteHost) -> None:
        """Note that a late host has finished its outdated work, and may get slots again."""
        if host.state is HostState.LATE:
            host.become(HostState.SPARE)
            self.num_arrived += 1

    def build(self, host: RemoteHost) -> None:
        """Have a host that is present build the envs of its slots. Only while driving."""
        host.become(HostState.BUILDING)
        host.descriptions, host.started_at = (), time.monotonic()
        self.driver.send(host.name, Build(self._plan_of(host.slots), host.epoch))

    def lay_out(self, host: RemoteHost) -> None:
        """Tell a host that has built its envs the agreed spaces, if they are known by now."""
        if self.spaces is not None and host.state is HostState.BUILT:
            host.become(HostState.LAYING_OUT)
            self.driver.send(host.name, LayOut(self.spaces, self._compression))

    def count_coded(self, message: FragmentMade, frames: list[Buffer], part: FragmentPart) -> None:
        """Count how many bytes the observations of a fragment were on the wire."""
        for coding in message.codings:
            frame = frames[message.names.index(coding.name)]
            self._ledger.count_coded(part.arrays[coding.name].nbytes, len(frame))

    def _disconnected(self, name: str) -> None:
        if name.startswith(TICKET):
            self.reception.forget(name)
            self._rate_limits.forget(name)
        else:
            self.watch.connection_broke(name)

    # Ending.

    def replace(self, host: RemoteHost, delay_s: float = 0.0) -> RemoteHost:
        """Put another host in this one's place; :meth:`start_due` starts it after the delay."""
        self.dismiss(host)
        successor = host.successor(time.monotonic() + delay_s)
        with self.driver:
            self.all[host.index] = successor
            del self._by_name[host.name]
            self._by_name[successor.name] = successor
        self._waiting.append(successor)
        return successor

    def start_due(self) -> Iterator[tuple[RemoteHost, str]]:
        """Start the replacements that are due; yields those that cannot be started, and why."""
        for host in [host for host in self._waiting if time.monotonic() >= host.started_at]:
            self._waiting.remove(host)
            try:
                # An engine may take a while for this; joins and pulls are served meanwhile.
                self._start([host])
            except (OSError, StartupError) as error:
                yield host, f"it cannot be started: {error}"

    def dismiss(self, host: RemoteHost) -> None:
        """End a host at once and forget it."""
        if host in self._waiting:
            self._waiting.remove(host)
        with self.driver:
            takes_leave = bool(host.leaving) and self.launcher.enrols
            if takes_leave:
                # Nothing else can end it.
                self.driver.send(host.name, Close(0.0))
            if host.state is not HostState.LOST:
                host.become(HostState.LOST)
            self._socket.revoke(host.name, cut=not takes_leave)
            self.reception.withdraw(host.name)
            self._rate_limits.forget(host.name)
            self._pulls.forget(host)
        self.launcher.stop([host.name])

    def whereabouts(self, host: RemoteHost) -> str:
        """Where a host is: its machine and process, or what its engine says about it."""
        if host.hello is not None:
            return host.whereabouts()
        status = self.watch.status_of(host.name)
        # Whoever speaks of a host that has ended says why.
        reason = "" if status.ended else status.reason
        if status.is_queued:
            return f"{host.name} ({reason})" if reason else host.name
        engine = f"; {reason}" if reason else ""
        return f"{host.name} (has not reached {self.address}{engine})"

    def is_queued(self, host: RemoteHost) -> bool:
        """Whether the engine has not started it yet."""
        return self.watch.status_of(host.name).is_queued

    def log_tail(self, host: RemoteHost) -> str:
        """The end of the host's log under a heading, or nothing."""
        log = self.launcher.logs(host.name).strip()
        return f"\nThe end of the log of {host.name}:\n{log}" if log else ""

    def close(self, grace_s: float) -> None:
        """Give envs ``grace_s`` to close, then end all hosts and clean up."""
        self.watch.close()
        alive = [host for host in self.all if host.state is not HostState.LOST]
        with self.driver:
            for host in alive:
                if grace_s > 0 and host.hello is not None:
                    self.driver.send(host.name, Close(grace_s))
            self.reception.dismiss_spares()
        if self.watch.is_alive():
            self.watch.join()
        # One that has not joined has no envs to close, and cannot be told to.
        self.launcher.stop([host.name for host in alive if host.hello is None])
        self.launcher.stop([host.name for host in alive if host.hello is not None], grace_s)
        _AT_WORK.pop(id(self.launcher), None)
        self.driver.close()
