"""Only invited workers are heard, under their own names, and nothing they send ends the thread."""

import time

import msgspec
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from clusterenv.errors import ProtocolError
from clusterenv.head.inbox import Inbox
from clusterenv.head.io_thread import IoThread
from clusterenv.sync.ledger import Ledger
from clusterenv.wire.addresses import Network
from clusterenv.wire.chunks import CHUNK_BYTES, ENCRYPTION_BYTES
from clusterenv.wire.contact import Contact
from clusterenv.wire.messages import Close, Hello, Stepped
from clusterenv.wire.worker_channel import WorkerSocket
from clusterenv.wire.zmq_channel import HeadSocket

_PATIENCE_S = 30.0
_MAX_MESSAGE_BYTES = 100_000


class Head:
    """The head's socket and I/O thread, with an inbox and nothing else."""

    def __init__(self):
        self.inbox = Inbox()
        self.gone = []
        self.socket = HeadSocket(Network(), "127.0.0.1", lease_s=30.0)
        self.ledger = Ledger()
        self.io = IoThread(
            self.socket,
            self.inbox,
            lambda worker, message: None,
            self.gone.append,
            self.ledger,
            max_message_bytes=_MAX_MESSAGE_BYTES,
        )
        self.io.start()
        self.workers = []

    def invite(self, worker):
        return self.socket.invite(
            worker, lease_s=30.0, step_timeout_s=30.0, startup_timeout_s=30.0, shared=None
        )

    def connect(self, invitation):
        self.workers.append(WorkerSocket(invitation))
        return self.workers[-1]

    def heard(self, count):
        """The next arrivals, as (worker, message)."""
        arrivals, deadline = [], time.monotonic() + _PATIENCE_S
        while len(arrivals) < count:
            assert self.io.is_alive()
            assert time.monotonic() < deadline, f"only {arrivals} arrived"
            self.inbox.wait(0.1)
            arrivals += [(worker, message) for worker, message, _ in self.inbox.take()]
        return arrivals

    def close(self):
        for worker in self.workers:
            worker.close()
        self.io.close()
        self.inbox.close()


@pytest.fixture
def head():
    head = Head()
    yield head
    head.close()


def failed_to_shake_hands(invitation):
    """Connect, and wait for libzmq to say that the head did not let us in."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.set(zmq.CURVE_SERVERKEY, invitation.server_key.encode())
        socket.set(zmq.CURVE_PUBLICKEY, invitation.public_key.encode())
        socket.set(zmq.CURVE_SECRETKEY, invitation.secret_key.encode())
        monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        socket.connect(invitation.address)
        assert monitor.poll(int(_PATIENCE_S * 1000))
        return recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    finally:
        context.destroy(linger=0)


def test_messages_and_frames_arrive_both_ways(head):
    worker = head.connect(head.invite("worker-0.0"))
    worker.send(Stepped(1), [b"frame", memoryview(b"x" * 50_000)])
    assert head.heard(1) == [("worker-0.0", Stepped(1))]
    head.io.send("worker-0.0", Close(), [b"y" * 50_000])
    message, frames = worker.recv(_PATIENCE_S)
    assert message == Close()
    assert [bytes(frame) for frame in frames] == [b"y" * 50_000]


def test_each_worker_speaks_under_its_own_name(head):
    for number in range(3):
        head.connect(head.invite(f"worker-{number}.0")).send(Stepped(number))
    assert sorted((name, message.request) for name, message in head.heard(3)) == [
        ("worker-0.0", 0),
        ("worker-1.0", 1),
        ("worker-2.0", 2),
    ]


def test_a_stranger_is_not_let_in(head):
    public, secret = (key.decode() for key in zmq.curve_keypair())
    stranger = msgspec.structs.replace(
        head.invite("worker-0.0"), public_key=public, secret_key=secret
    )
    assert failed_to_shake_hands(stranger)


def test_a_worker_whose_invitation_was_revoked_is_not_let_in(head):
    invitation = head.invite("worker-0.0")
    head.socket.revoke("worker-0.0")
    assert failed_to_shake_hands(invitation)


def comes_to(worker, contact):
    """Whether the worker's contact becomes this, and stays so."""
    deadline = time.monotonic() + _PATIENCE_S
    while worker.contact() is not contact and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    return worker.contact() is contact


def test_a_worker_knows_that_its_head_is_there(head):
    worker = head.connect(head.invite("worker-0.0"))
    assert comes_to(worker, Contact.THERE)


def test_a_worker_whose_key_is_not_known_knows_that_it_was_refused(head):
    invitation = head.invite("worker-0.0")
    head.socket.revoke("worker-0.0")
    assert comes_to(head.connect(invitation), Contact.REFUSED)


def test_a_worker_of_another_head_knows_that_it_was_refused(head):
    other = Head()
    try:
        worker = head.connect(other.invite("worker-0.0").at(head.socket.address))
        assert comes_to(worker, Contact.REFUSED)
    finally:
        other.close()


def test_a_broken_connection_is_broken_for_good():
    first = Head()
    invitation = first.invite("worker-0.0")
    worker = WorkerSocket(invitation)
    assert comes_to(worker, Contact.THERE)
    first.close()
    assert comes_to(worker, Contact.BROKEN)
    worker.close()


def test_a_worker_without_a_head_goes_on_waiting(head):
    nowhere = head.invite("worker-0.0").at("tcp://127.0.0.1:9")
    assert comes_to(head.connect(nowhere), Contact.NOT_YET)


def test_a_revoked_worker_that_is_not_cut_off_can_still_be_told_to_close(head):
    worker = head.connect(head.invite("worker-0.0"))
    worker.send(Stepped(1))
    head.heard(1)
    head.socket.revoke("worker-0.0", cut=False)
    head.io.send("worker-0.0", Close())
    assert worker.recv(_PATIENCE_S)[0] == Close()


def test_what_a_revoked_worker_still_says_is_not_heard(head):
    first = head.connect(head.invite("worker-0.0"))
    first.send(Stepped(1))
    head.heard(1)
    head.socket.revoke("worker-0.0")
    first.send(Stepped(2))
    head.connect(head.invite("worker-0.1")).send(Stepped(3))
    assert head.heard(1) == [("worker-0.1", Stepped(3))]


HOSTILE = {
    "no message": b"no message",
    "an unknown message": msgspec.msgpack.encode(["Format", 1]),
    "text that is no UTF-8": b"\x92\xa7Refused\xa2\xff\xff",
    "bottomless nesting": b"\x92\xa5Close" + b"\x91" * 90_000,
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_message_is_an_error_of_its_worker_and_no_end_of_the_thread(head, header):
    worker = head.connect(head.invite("worker-0.0"))
    worker.socket.send(header)
    worker.send(Stepped(1))
    ((name, error),) = head.heard(1)
    assert isinstance(error, ProtocolError)
    assert name == "worker-0.0"
    head.connect(head.invite("worker-1.0")).send(Stepped(2))
    assert head.heard(1) == [("worker-1.0", Stepped(2))]


def test_a_message_that_is_too_big_is_an_error_of_its_worker(head):
    big = head.connect(head.invite("worker-0.0"))
    big.send(Stepped(1), [b"x" * (_MAX_MESSAGE_BYTES + 1)])
    ((_, error),) = head.heard(1)
    assert isinstance(error, ProtocolError)


def test_a_frame_that_is_no_chunk_ends_its_connection(head):
    big = head.connect(head.invite("worker-0.0"))
    big.send(Stepped(1))
    head.heard(1)
    big.socket.send(b"x" * (CHUNK_BYTES + ENCRYPTION_BYTES))
    deadline = time.monotonic() + _PATIENCE_S
    while not head.gone and time.monotonic() < deadline:
        time.sleep(0.01)
    assert head.gone == ["worker-0.0"]


def test_a_worker_whose_invitation_is_revoked_is_cut_off(head):
    worker = head.connect(head.invite("worker-0.0"))
    worker.send(Stepped(1))
    head.heard(1)
    head.socket.revoke("worker-0.0")
    # It tries again by itself.
    assert comes_to(worker, Contact.REFUSED)


def test_sending_to_a_worker_that_is_not_there_says_so():
    socket = HeadSocket(Network(), "127.0.0.1", lease_s=30.0)
    assert not socket.send("worker-0.0", [b"x"])
    socket.close()


def test_bytes_are_counted_by_kind(head):
    worker = head.connect(head.invite("worker-0.0"))
    worker.send(Stepped(1), [b"x" * 1000])
    worker.send(Hello(1, {}, "host", 7))
    head.heard(2)
    assert 1000 < head.ledger.bytes_by_kind["Stepped"] < 1100
    assert 0 < head.ledger.bytes_by_kind["Hello"] < 100


def test_waiting_in_vain_ends(head):
    assert head.connect(head.invite("worker-0.0")).recv(0.001) is None
