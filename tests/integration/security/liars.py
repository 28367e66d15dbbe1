"""Hosts with a valid key that do not keep to the protocol: real ones, with another mouth."""

import threading
from contextlib import suppress

from clusterenv import ClusterEnv, Limits
from clusterenv.host.starting import ThreadStarter
from clusterenv.host.workers import Workers
from clusterenv.launchers.base import THREAD_NAME, Status
from clusterenv.wire.host_main import hello
from clusterenv.wire.host_socket import HostSocket
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import Close
from clusterenv.wire.serving import Service
from tests import inside
from tests.environments.vectors import walks

LIAR = "host-1.0"
NUM_ENVS = 4
# Of each host.
NUM_WORKERS = 1


class Raw(bytes):
    """A frame that is sent as it is, alone."""


class LyingSocket(HostSocket):
    """Passes on what its host says, but for what `lie` makes of it."""

    def __init__(self, invitation, lie):
        super().__init__(invitation)
        self._lie = lie
        self.is_stopped = False

    def send(self, message, frames=()):
        said = self._lie(message, [bytes(frame) for frame in frames])
        for item in [(message, frames)] if said is None else said:
            if isinstance(item, Raw):
                self.socket.send(item)
            elif isinstance(item, list):
                self.socket.send_multipart(item)
            else:
                super().send(*item)

    def receive(self, timeout_s):
        if self.is_stopped:
            self.is_stopped = False
            return Close(0.0), []
        return super().receive(timeout_s)


class _Thread(threading.Thread):
    """A host as `python -m clusterenv host` runs it, with threads for workers."""

    def __init__(self, order, lie):
        super().__init__(name=f"{THREAD_NAME} {order.host}", daemon=True)
        self._invitation = Invitation.from_bytes(order.invitation)
        self.socket = LyingSocket(self._invitation, lie)
        self.start()

    def run(self):
        count = self._invitation.workers
        workers = Workers(count, ThreadStarter(), self._invitation.limits, may_spin=False)
        try:
            self.socket.send(hello(count))
            with suppress(SystemExit):
                Service(self._invitation.host, self.socket, workers).run()
        finally:
            workers.close(0.0)
            self.socket.close()


class LyingLauncher:
    """Hosts in threads that the head does not trust; the first one in place 1 lies."""

    towards = "127.0.0.1"
    trusted, enrols = False, False
    watch_every_s = 0.1
    workers_per_host = NUM_WORKERS

    def __init__(self, lie, num_hosts=2):
        self._lie, self.num_hosts = lie, num_hosts
        self._threads = {}
        self.invitations = {}

    def start(self, orders):
        for order in orders:
            self.invitations[order.host] = Invitation.from_bytes(order.invitation)
            self._threads[order.host] = _Thread(order, self.lie_of(order.host))

    def lie_of(self, host):
        """What becomes of what a host says."""
        return self._lie if host == LIAR else lambda message, frames: None

    def status(self):
        return {host: Status(ended=False) for host in list(self._threads)}

    def logs(self, host):
        return ""

    def stop(self, hosts, grace_s=0.0):
        threads = [self._threads.pop(host) for host in hosts if host in self._threads]
        for thread in threads:
            thread.socket.is_stopped = True
        for thread in threads:
            thread.join(5.0)

    def enrolled(self, host, place):
        raise AssertionError("nobody comes with a ticket")


def instead_of(kind, make, skip=0):
    """A lie: after `skip` of them, a message of this kind becomes `make(message, frames)`."""
    heard, told = [], []

    def lie(message, frames):
        if told or not isinstance(message, kind):
            return None
        heard.append(message)
        if len(heard) <= skip:
            return None
        told.append(message)
        return make(message, frames)

    lie.told = told
    return lie


def instead(other):
    """Another message, without frames."""
    return lambda message, frames: [(other(message), ())]


def besides(*others):
    """These messages first, then the true one."""
    return lambda message, frames: [*((other, ()) for other in others), (message, frames)]


def ran_with(lie, env=None, launcher=None, **options):
    """Four walks on two hosts, of which the first in place 1 lies."""
    # Who does not answer at all must not hold up a test.
    limits = Limits(startup_timeout_s=20.0, step_timeout_s=20.0)
    launcher = launcher or LyingLauncher(lie)
    return ClusterEnv(env or walks(NUM_ENVS), launcher=launcher, limits=limits, **options)


def assert_only_the_liar_was_replaced(envs):
    assert inside.host_names(envs) == ["host-0.0", "host-1.1"]


def assert_nobody_was_replaced(envs):
    assert inside.host_names(envs) == ["host-0.0", "host-1.0"]
