"""The head's socket: one listening port for all hosts.

CURVE encrypts and authenticates both ways. Each host has its own key pair, and libzmq itself adds
the name that belongs to the key to every message, so that no host can speak for another and no
stranger's message gets through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from clusterenv.arrays import Buffer
from clusterenv.host.plan import WorkerLimits
from clusterenv.wire.addresses import Network, endpoint
from clusterenv.wire.chunks import CHUNK_BYTES, ENCRYPTION_BYTES
from clusterenv.wire.connections import Admission, Strangers, cut_off
from clusterenv.wire.invitation import TICKET, Invitation

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ZAP_DOMAIN = b"clusterenv"
_HANDSHAKE_MS = 10_000
_LINGER_MS = 500
# A silent peer counts as gone after three to four fifths of the lease; the last fifth leaves the
# host time to act on it.
_HEARTBEAT_MS_PER_LEASE_S = 200
_HEARTBEAT_TIMEOUT_MS_PER_LEASE_S = 600
# How much libzmq may hold of one host, and how much is received before looking at queues again.
_RECEIVE_QUEUE = 100
_COPY_BELOW_BYTES = 16_384
# Computed once: combining two enumeration members costs as much as sending a frame.
_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.SNDMORE | zmq.NOBLOCK)


class HeadSocket:
    """The head's end: one ROUTER that all hosts connect to. Used by one thread, except for
    :meth:`invite` and :meth:`revoke`."""

    def __init__(self, network: Network, towards: str, *, lease_s: float) -> None:
        listening = network.listening_address(towards)
        self._context = zmq.Context()
        self._host_by_key: dict[bytes, str] = {}
        self._key_by_host: dict[str, bytes] = {}
        self._route_by_host: dict[str, bytes] = {}
        self._peer_by_connection: dict[int, tuple[str, bytes]] = {}
        self._strangers, self._admission = Strangers(), Admission()
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
        # Messages to a peer that reads nothing would pile up here.
        self._router.set(zmq.TCP_MAXRT, int(lease_s * 1000))
        self._router.set(zmq.IPV6, int(":" in listening))
        self._monitor = self._router.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._port = self._bind(endpoint(listening, network.port or "*"))
        self.address = endpoint(network.advertised_host(listening, towards), self._port)

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
        self, host: str, lease_s: float, limits: WorkerLimits, workers: int | None
    ) -> Invitation:
        """Create keys for ``host``, and admit them."""
        public, secret = zmq.curve_keypair()
        key = z85.decode(public)
        self._host_by_key[key], self._key_by_host[host] = host, key
        return Invitation(
            host=host,
            address=self.address,
            server_key=self._server_key,
            public_key=public.decode(),
            secret_key=secret.decode(),
            lease_s=lease_s,
            limits=limits,
            workers=workers,
        )

    def revoke(self, host: str, *, cut: bool = True) -> None:
        """Stop admitting ``host``, and ignore what still arrives from it; cut it off, or leave it
        connected for a farewell. For an applicant, only the connection is refused: others have the
        same ticket."""
        self._host_by_key.pop(self._key_by_host.pop(host, b""), None)
        if not cut:
            return
        self._route_by_host.pop(host, None)
        for connection, (owner, route) in list(self._peer_by_connection.items()):
            if owner == host:
                self._refuse(connection, route)

    def _refuse(self, connection: int, route: bytes) -> None:
        self._admission.refuse(route)
        cut_off(connection, self._port)

    def disconnected(self) -> Iterator[str]:
        """The hosts whose connection broke since the last call. Ask before :meth:`receive`, which
        may already bring messages of a connection with the same number."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            connection = int(event["value"])
            if event["event"] == zmq.EVENT_ACCEPTED:
                # Queued messages of an earlier connection with this number may have come after its
                # end.
                self._peer_by_connection.pop(connection, None)
                self._limit_strangers(connection)
                continue
            self._strangers.left(connection)
            host, route = self._peer_by_connection.pop(connection, ("", b""))
            if self._route_by_host.get(host) == route:
                self._route_by_host.pop(host, None)
            if host:
                yield host

    def _limit_strangers(self, connection: int) -> None:
        too_many = self._strangers.came(connection, more=len(self._key_by_host))
        if too_many is not None:
            cut_off(too_many, self._port)

    def register(self, poller: zmq.Poller) -> None:
        """Have ``poller`` wake up for this socket."""
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)

    def answer_handshakes(self) -> None:
        """Answer the peers that wait to be admitted."""
        while self._zap.poll(0):
            version, request, _, _, _, mechanism, *credentials = self._zap.recv_multipart()
            host = None
            if mechanism == b"CURVE" and len(credentials) == 1:
                host = self._host_by_key.get(credentials[0])
            verdict = [b"400", b"no invitation"] if host is None else [b"200", b"OK"]
            self._zap.send_multipart([version, request, *verdict, (host or "").encode(), b""])

    def receive(self) -> Iterator[tuple[str, Sequence[Buffer]]]:
        """Messages that have arrived, as (host, chunks); at most a queue full, so that it ends."""
        for _ in range(_RECEIVE_QUEUE):
            try:
                route, *frames = receive_frames(self._router, _LAST)
            except zmq.Again:
                return
            host = str(frames[0].get("User-Id")) if frames else ""
            name = route.bytes
            if host not in self._key_by_host or self._admission.is_refused(name):
                continue
            # The route is libzmq's own name for the connection: a host cannot choose it.
            connection = int(frames[0].get(zmq.SRCFD))
            if host == TICKET:
                # Many applicants may have the same ticket.
                host = f"{TICKET} {name.hex()}"
            if self._peer_by_connection.get(connection) != (host, name):
                if not self._may_speak(host):
                    self._refuse(connection, name)
                    continue
                self._peer_by_connection[connection] = host, name
                self._strangers.left(connection)
            self._route_by_host[host] = name
            yield host, [frame.buffer for frame in frames]

    def _may_speak(self, host: str) -> bool:
        """Whether a connection that has not spoken before may speak with its key."""
        owners = [owner for owner, _ in self._peer_by_connection.values()]
        if not host.startswith(TICKET):
            return self._admission.admits_host(owners.count(host))
        applicants = sum(owner.startswith(TICKET) for owner in owners)
        return self._admission.admits_applicant(applicants, more=len(self._key_by_host))

    def send(self, host: str, frames: Sequence[Buffer]) -> bool:
        """Send without waiting; False if ``host`` is not connected."""
        route = self._route_by_host.get(host)
        if route is None:
            return False
        try:
            self._send(route, frames)
        except zmq.ZMQError:
            return False
        return True

    def _send(self, route: bytes, frames: Sequence[Buffer]) -> None:
        self._router.send(route, _MORE)
        send_frames(self._router, frames)

    def close(self) -> None:
        """Close the port once farewells are sent."""
        self._context.destroy(linger=_LINGER_MS)


def keep_alive(socket: zmq.Socket[bytes], lease_s: float) -> None:
    """Notice a silent peer, in libzmq's own C++ thread, which a long env step does not stop."""
    socket.set(zmq.HEARTBEAT_IVL, int(lease_s * _HEARTBEAT_MS_PER_LEASE_S))
    socket.set(zmq.HEARTBEAT_TIMEOUT, int(lease_s * _HEARTBEAT_TIMEOUT_MS_PER_LEASE_S))


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
    """Send one message; large frames are not copied."""
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        flags = _MORE if index < last else _LAST
        # Handing over a small buffer without a copy costs more than copying it.
        socket.send(frame, flags, copy=len(frame) < _COPY_BELOW_BYTES)


def receive_frames(socket: zmq.Socket[bytes], flags: int = 0) -> list[zmq.Frame]:
    """Receive one message without copying it; `zmq.Again` if it would have to wait and may not."""
    # recv_multipart queries the socket after each frame, which takes as long as the frame itself.
    frames = [frame := socket.recv(flags, copy=False)]
    while frame.more:
        frames.append(frame := socket.recv(flags, copy=False))
    return frames
