"""Workers with a valid key that do not keep to the protocol: real ones, with another mouth."""

import threading

from clusterenv import ClusterEnv
from clusterenv.launchers.base import THREAD_NAME, Status
from clusterenv.launchers.in_process import InProcessLauncher
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.worker_channel import WorkerSocket
from clusterenv.worker.worker import Worker
from tests import inside
from tests.environments.vectors import walks

LIAR = "worker-1.0"
NUM_ENVS = 4


class Raw(bytes):
    """A frame that is sent as it is, alone."""


class LyingChannel:
    """Passes on what its worker says, but for what `lie` makes of it."""

    def __init__(self, socket, lie):
        self._socket, self._lie = socket, lie
        self.stopped = False

    def send(self, message, frames=()):
        said = self._lie(message, list(frames))
        for item in [(message, frames)] if said is None else said:
            if isinstance(item, Raw):
                self._socket.socket.send(item)
            elif isinstance(item, list):
                self._socket.socket.send_multipart(item)
            else:
                self._socket.send(*item)

    def recv(self, timeout_s, spin=True):
        if self.stopped:
            raise SystemExit("stopped")
        return self._socket.recv(min(timeout_s, 0.05))

    def close(self):
        self._socket.close()


class _Thread(threading.Thread):
    def __init__(self, order, lie):
        super().__init__(name=f"{THREAD_NAME} {order.worker}", daemon=True)
        invitation = Invitation.from_bytes(order.invitation)
        socket = WorkerSocket(invitation)
        self.channel = LyingChannel(socket, lie)
        self.log = ""
        self.worker = Worker(invitation, self.channel, socket, notes=[0])
        self.start()

    def run(self):
        try:
            self.worker.run()
        except SystemExit:
            pass
        finally:
            self.worker.disconnect()


class LyingLauncher(InProcessLauncher):
    """Threads that the head does not trust; the first worker in place 1 lies."""

    spawns_here = False

    def __init__(self, lie):
        super().__init__()
        self._lie = lie
        self.invitations = {}

    def start(self, orders):
        for order in orders:
            self.invitations[order.worker] = Invitation.from_bytes(order.invitation)
            lie = self._lie if order.worker == LIAR else lambda message, frames: None
            self._threads[order.worker] = _Thread(order, lie)

    def status(self):
        return {worker: Status(ended=False) for worker in list(self._threads)}

    def stop(self, workers, grace_s=0.0):
        for worker in workers:
            if worker in self._threads:
                self._threads[worker].channel.stopped = True
        for worker in workers:
            if (thread := self._threads.pop(worker, None)) is not None:
                thread.join(5.0)


def instead_of(kind, make):
    """A lie: the first message of this kind becomes `make(message, frames)`."""
    told = []

    def lie(message, frames):
        if told or not isinstance(message, kind):
            return None
        told.append(message)
        return make(message, frames)

    lie.told = told
    return lie


def instead(other):
    """Another message, without frames."""
    return lambda message, frames: [(other(message), ())]


def ran_with(lie):
    """Four walks on two workers, of which the first in place 1 lies."""
    return ClusterEnv(walks(NUM_ENVS), num_workers=2, launcher=LyingLauncher(lie))


def assert_only_the_liar_was_replaced(envs):
    assert inside.worker_names(envs) == ["worker-0.0", "worker-1.1"]
