"""The head's socket: one listening port for all workers.

CURVE encrypts and authenticates both ways. Each worker has its own key pair, and the name that
belongs to the key comes with every message from libzmq itself, so that no worker can speak for
another and a stranger never gets a message through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from clusterenv.arrays import Buffer
from clusterenv.wire.addresses import Network, endpoint
from clusterenv.wire.chunks import CHUNK_BYTES, ENCRYPTION_BYTES
from clusterenv.wire.invitation import TICKET, Invitation, SharedDescriptors
from clusterenv.wire.tcp_channel import Strangers, cut_off

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ZAP_DOMAIN = b"clusterenv"
_HANDSHAKE_MS = 10_000
_LINGER_MS = 500
# A silent peer counts as gone after three to four fifths of the lease; the last fifth is left for
# a worker to act on it.
_HEARTBEAT_MS_PER_LEASE_S = 200
_HEARTBEAT_TIMEOUT_MS_PER_LEASE_S = 600
# What libzmq may hold of one worker, and what is received before the queues are looked at again.
_RECEIVE_QUEUE = 100
_COPY_BELOW_BYTES = 16_384


class HeadSocket:
    """The head's end: one ROUTER that all workers connect to. Used by one thread, but for
    :meth:`invite` and :meth:`revoke`."""

    def __init__(self, network: Network, towards: str, *, lease_s: float) -> None:
        host = network.listening_address(towards)
        self._context = zmq.Context()
        self._worker_by_key: dict[bytes, str] = {}
        self._key_by_worker: dict[str, bytes] = {}
        self._route_by_worker: dict[str, bytes] = {}
        self._peer_by_connection: dict[int, tuple[str, bytes]] = {}
        self._strangers = Strangers()
        public, secret = zmq.curve_keypair()
        self._server_key = public.decode()
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(_ZAP_ADDRESS)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set(zmq.CURVE_SERVER, 1)
        self._router.set(zmq.CURVE_SECRETKEY, secret)
        self._router.set(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
        self._router.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        self._router.set(zmq.MAXMSGSIZE, CHUNK_BYTES + ENCRYPTION_BYTES)
        self._router.set(zmq.RCVHWM, _RECEIVE_QUEUE)
        self._router.set(zmq.ROUTER_MANDATORY, 1)
        self._router.set(zmq.SNDHWM, 0)
        self._router.set(zmq.LINGER, 0)
        keep_alive(self._router, lease_s)
        # What a peer that reads nothing is sent would pile up here.
        self._router.set(zmq.TCP_MAXRT, int(lease_s * 1000))
        self._router.set(zmq.IPV6, int(":" in host))
        self._monitor = self._router.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._port = self._bind(endpoint(host, network.port or "*"))
        self.address = endpoint(network.advertised_host(host, towards), self._port)

    def _bind(self, wanted: str) -> int:
        try:
            self._router.bind(wanted)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(
                error.errno,
                f"cannot listen on {wanted} ({error}): choose others with "
                "network=Network(interface=…, port=…)",
            ) from error
        return int(bytes(self._router.get(zmq.LAST_ENDPOINT)).decode().rpartition(":")[2])

    def invite(
        self,
        worker: str,
        *,
        lease_s: float,
        step_timeout_s: float,
        startup_timeout_s: float,
        shared: SharedDescriptors | None,
    ) -> Invitation:
        """Make keys for ``worker`` and let them in."""
        public, secret = zmq.curve_keypair()
        key = z85.decode(public)
        self._worker_by_key[key], self._key_by_worker[worker] = worker, key
        return Invitation(
            worker=worker,
            address=self.address,
            server_key=self._server_key,
            public_key=public.decode(),
            secret_key=secret.decode(),
            lease_s=lease_s,
            step_timeout_s=step_timeout_s,
            startup_timeout_s=startup_timeout_s,
            shared=shared,
        )

    def revoke(self, worker: str, *, cut: bool = True) -> None:
        """Do not let ``worker`` in again, nor believe what still arrives from it; cut it off, or
        leave it connected for a farewell."""
        self._worker_by_key.pop(self._key_by_worker.pop(worker, b""), None)
        if not cut:
            return
        self._route_by_worker.pop(worker, None)
        for connection, (owner, _) in list(self._peer_by_connection.items()):
            if owner == worker:
                cut_off(connection, self._port)

    def disconnected(self) -> Iterator[str]:
        """The workers whose connection broke since the last call: to be asked before
        :meth:`receive`, which may already bring messages of a connection with the same number."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            connection = int(event["value"])
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._limit_strangers(connection)
                continue
            self._strangers.left(connection)
            worker, route = self._peer_by_connection.pop(connection, ("", b""))
            if self._route_by_worker.get(worker) == route:
                self._route_by_worker.pop(worker, None)
            if worker:
                yield worker

    def _limit_strangers(self, connection: int) -> None:
        too_many = self._strangers.came(connection, more=len(self._key_by_worker))
        if too_many is not None:
            cut_off(too_many, self._port)

    def register(self, poller: zmq.Poller) -> None:
        """Have ``poller`` wake for this socket."""
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)

    def answer_handshakes(self) -> None:
        """Say yes or no to the peers that wait to be let in."""
        while self._zap.poll(0):
            version, request, _, _, _, mechanism, *credentials = self._zap.recv_multipart()
            worker = None
            if mechanism == b"CURVE" and len(credentials) == 1:
                worker = self._worker_by_key.get(credentials[0])
            verdict = [b"400", b"no invitation"] if worker is None else [b"200", b"OK"]
            self._zap.send_multipart([version, request, *verdict, (worker or "").encode(), b""])

    def receive(self) -> Iterator[tuple[str, Sequence[Buffer]]]:
        """Messages that have arrived, as (worker, chunks); not for ever, if one never ends."""
        for _ in range(_RECEIVE_QUEUE):
            if not self._router.poll(0):
                return
            route, *frames = self._router.recv_multipart(copy=False)
            worker = str(frames[0].get("User-Id")) if frames else ""
            if worker not in self._key_by_worker:
                continue
            if worker == TICKET:
                # Many may come with the same one.
                worker = f"{TICKET} {route.bytes.hex()}"
            # The route is libzmq's own name for the connection: a worker cannot choose it.
            self._route_by_worker[worker] = route.bytes
            connection = int(frames[0].get(zmq.SRCFD))
            self._peer_by_connection[connection] = worker, route.bytes
            self._strangers.left(connection)
            yield worker, [frame.buffer for frame in frames]

    def send(self, worker: str, frames: Sequence[Buffer]) -> bool:
        """Send, without waiting; False if ``worker`` is not connected."""
        route = self._route_by_worker.get(worker)
        if route is None:
            return False
        try:
            self._send(route, frames)
        except zmq.ZMQError:
            return False
        return True

    def _send(self, route: bytes, frames: Sequence[Buffer]) -> None:
        self._router.send(route, zmq.SNDMORE | zmq.NOBLOCK)
        send_frames(self._router, frames)

    def close(self) -> None:
        """Close the port, once farewells are sent."""
        self._context.destroy(linger=_LINGER_MS)


def keep_alive(socket: zmq.Socket[bytes], lease_s: float) -> None:
    """Notice a silent peer; in libzmq's own C++ thread, which a long env step does not stop."""
    socket.set(zmq.HEARTBEAT_IVL, int(lease_s * _HEARTBEAT_MS_PER_LEASE_S))
    socket.set(zmq.HEARTBEAT_TIMEOUT, int(lease_s * _HEARTBEAT_TIMEOUT_MS_PER_LEASE_S))


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
    """Send one message; large frames are not copied."""
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        more = zmq.SNDMORE if index < last else 0
        # Handing a buffer over without a copy costs more than copying a small one.
        socket.send(frame, more | zmq.NOBLOCK, copy=len(frame) < _COPY_BELOW_BYTES)
