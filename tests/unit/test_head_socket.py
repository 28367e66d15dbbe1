"""Only invited hosts are heard, under their own names, and nothing they send ends the driving."""

import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from clusterenv.errors import ProtocolError
from clusterenv.host.plan import WorkerLimits
from clusterenv.sync.ledger import Ledger
from clusterenv.wire import driver as driving
from clusterenv.wire.addresses import Network
from clusterenv.wire.chunks import CHUNK_BYTES, ENCRYPTION_BYTES
from clusterenv.wire.driver import Driver
from clusterenv.wire.head_socket import HeadSocket
from clusterenv.wire.host_socket import Contact, HostSocket
from clusterenv.wire.invitation import TICKET
from clusterenv.wire.messages import Close, Hello, Leaving, Ready, StaffReport
from tests.integration.polling import eventually

_PATIENCE_S = 30.0
_LIMITS = WorkerLimits(30.0, 30.0, 30.0, 3)


class Head:
    """The head's socket and what drives it, and nothing else."""

    def __init__(self):
        self.gone, self.answered = [], []
        self.socket = HeadSocket(Network(), "127.0.0.1", lease_s=30.0)
        self.ledger = Ledger()
        self.driver = Driver(self.socket, self._answer, self.gone.append, self.ledger)
        self.driver.start()
        self.hosts = []

    def _answer(self, host, message):
        """Answer at once what the I/O thread answers: here a Hello."""
        if isinstance(message, Hello):
            self.answered.append((host, threading.current_thread()))
        return isinstance(message, Hello)

    def invite(self, host):
        return self.socket.invite(host, 30.0, _LIMITS, None)

    def connect(self, invitation):
        self.hosts.append(HostSocket(invitation))
        return self.hosts[-1]

    def heard(self, count):
        """The next arrivals, as (host, message)."""
        arrivals, deadline = [], time.monotonic() + _PATIENCE_S
        while len(arrivals) < count:
            assert self.driver.is_alive()
            assert time.monotonic() < deadline, f"only {arrivals} arrived"
            with self.driver:
                self.driver.drive(0.1)
            arrivals += [(host, message) for host, message, _ in self.driver.take_arrivals()]
        return arrivals

    def say(self, host, message, frames=()):
        with self.driver:
            return self.driver.send(host, message, frames)

    def close(self):
        for host in self.hosts:
            host.close()
        self.driver.close()


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
    host = head.connect(head.invite("host-0.0"))
    host.send(Ready(1), [b"frame", memoryview(b"x" * 50_000)])
    assert head.heard(1) == [("host-0.0", Ready(1))]
    assert head.say("host-0.0", Close(1.0), [b"y" * 50_000])
    message, frames = host.receive(_PATIENCE_S)
    assert message == Close(1.0)
    assert [bytes(frame) for frame in frames] == [b"y" * 50_000]


def test_frames_of_any_size_come_back_from_their_chunks(head):
    host = head.connect(head.invite("host-0.0"))
    sent = [bytes([number]) * size for number, size in enumerate((0, 5, 3 * CHUNK_BYTES, 7))]
    host.send(Ready(1), sent)
    deadline = time.monotonic() + _PATIENCE_S
    while not head.driver.arrivals and time.monotonic() < deadline:
        with head.driver:
            head.driver.drive(0.1)
    ((_, _, frames),) = head.driver.take_arrivals()
    assert [bytes(frame) for frame in frames] == sent


def test_each_host_speaks_under_its_own_name(head):
    for number in range(3):
        head.connect(head.invite(f"host-{number}.0")).send(Ready(number))
    assert sorted((name, message.epoch) for name, message in head.heard(3)) == [
        ("host-0.0", 0),
        ("host-1.0", 1),
        ("host-2.0", 2),
    ]


def test_applicants_with_the_same_ticket_are_told_apart(head):
    ticket = head.invite(TICKET)
    applicants = [head.connect(ticket) for _ in range(2)]
    for number, applicant in enumerate(applicants):
        applicant.send(Ready(number))
    heard = {message.epoch: name for name, message in head.heard(2)}
    assert heard[0] != heard[1]
    assert head.say(heard[1], Close(0.0))
    assert applicants[1].receive(_PATIENCE_S)[0] == Close(0.0)
    assert applicants[0].receive(0.1) is None


def test_an_applicant_that_is_refused_is_not_heard_again_and_others_are(head):
    ticket = head.invite(TICKET)
    liar, honest = head.connect(ticket), head.connect(ticket)
    honest.send(Ready(1))
    head.heard(1)
    for _ in range(20):
        liar.socket.send(b"no message")
    liar.send(Ready(2))
    ((name, error),) = head.heard(1)
    assert isinstance(error, ProtocolError)
    # What it sent with that does not count as said by somebody new.
    assert head.gone == [name]
    assert not head.say(name, Close(0.0))
    honest.send(Ready(3))
    ((_, message),) = head.heard(1)
    assert message == Ready(3)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_ticket_does_not_use_up_the_descriptors(head):
    ticket = head.invite(TICKET)
    crowd = """
import sys
import zmq
from clusterenv.protocol.message import encode
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import Ready
ticket = Invitation.from_bytes(sys.stdin.buffer.readline())
context = zmq.Context()
for _ in range(300):
    socket = context.socket(zmq.DEALER)
    for name in ("server_key", "public_key", "secret_key"):
        option = getattr(zmq, "CURVE_" + name.replace("_", "").upper())
        socket.set(option, getattr(ticket, name).encode())
    socket.connect(ticket.address)
    socket.send(encode(Ready(1)))
print("sent", flush=True)
sys.stdin.read()
context.destroy(linger=0)
"""
    before = descriptors()
    process = subprocess.Popen(
        [sys.executable, "-c", crowd], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        process.stdin.write(ticket.to_bytes() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"sent\n"
        names, deadline = set(), time.monotonic() + 3.0
        while time.monotonic() < deadline:
            with head.driver:
                head.driver.drive(0.1)
            names.update(name for name, _, _ in head.driver.take_arrivals())
        # 64 and two for the ticket itself, and a few that were let in since.
        assert 60 <= len(names) <= 90
        assert eventually(lambda: descriptors() - before < 150)
        honest = head.connect(head.invite("host-0.0"))
        honest.send(Ready(7))
        while ("host-0.0", Ready(7)) not in head.heard(1):
            pass
    finally:
        process.communicate()


def test_the_first_connection_with_a_hosts_key_stays_and_another_is_cut_off(head):
    invitation = head.invite("host-0.0")
    host = head.connect(invitation)
    host.send(Ready(1))
    head.heard(1)
    thief = head.connect(invitation)
    thief.send(Ready(2))
    assert comes_to(thief, Contact.BROKEN)
    host.send(Ready(3))
    assert head.heard(1) == [("host-0.0", Ready(3))]
    assert head.say("host-0.0", Close(0.0))
    assert host.receive(_PATIENCE_S)[0] == Close(0.0)


def test_a_stranger_is_not_let_in(head):
    public, secret = (key.decode() for key in zmq.curve_keypair())
    stranger = msgspec.structs.replace(
        head.invite("host-0.0"), public_key=public, secret_key=secret
    )
    assert failed_to_shake_hands(stranger)


def test_a_host_whose_invitation_was_revoked_is_not_let_in(head):
    invitation = head.invite("host-0.0")
    head.socket.revoke("host-0.0")
    assert failed_to_shake_hands(invitation)


def comes_to(host, contact):
    """Whether the host's contact becomes this, and stays so."""
    deadline = time.monotonic() + _PATIENCE_S
    while host.contact() is not contact and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    return host.contact() is contact


def test_a_host_knows_that_its_head_is_there(head):
    host = head.connect(head.invite("host-0.0"))
    assert comes_to(host, Contact.THERE)


def test_a_host_whose_key_is_not_known_knows_that_it_was_refused(head):
    invitation = head.invite("host-0.0")
    head.socket.revoke("host-0.0")
    assert comes_to(head.connect(invitation), Contact.REFUSED)


def test_a_host_of_another_head_knows_that_it_was_refused(head):
    other = Head()
    try:
        host = head.connect(other.invite("host-0.0").at(head.socket.address))
        assert comes_to(host, Contact.REFUSED)
    finally:
        other.close()


def test_a_broken_connection_is_broken_for_good():
    first = Head()
    host = HostSocket(first.invite("host-0.0"))
    assert comes_to(host, Contact.THERE)
    first.close()
    assert comes_to(host, Contact.BROKEN)
    host.close()


def test_a_host_without_a_head_goes_on_waiting(head):
    nowhere = head.invite("host-0.0").at("tcp://127.0.0.1:9")
    assert comes_to(head.connect(nowhere), Contact.NOT_YET)


def test_a_revoked_host_that_is_not_cut_off_can_still_be_told_to_close(head):
    host = head.connect(head.invite("host-0.0"))
    host.send(Ready(1))
    head.heard(1)
    head.socket.revoke("host-0.0", cut=False)
    head.say("host-0.0", Close(0.0))
    assert host.receive(_PATIENCE_S)[0] == Close(0.0)


def test_what_a_revoked_host_still_says_is_not_heard(head):
    first = head.connect(head.invite("host-0.0"))
    first.send(Ready(1))
    head.heard(1)
    head.socket.revoke("host-0.0")
    first.send(Ready(2))
    head.connect(head.invite("host-0.1")).send(Ready(3))
    assert head.heard(1) == [("host-0.1", Ready(3))]


HOSTILE = {
    "no message": b"no message",
    "an unknown message": msgspec.msgpack.encode(["Format", 1]),
    "what only the head says": msgspec.msgpack.encode(["Close", 1.0]),
    "text that is no UTF-8": b"\x92\xa7Leaving\xa2\xff\xff",
    "bottomless nesting": b"\x92\xa5Ready" + b"\x91" * 90_000,
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_message_is_an_error_of_its_host_and_ends_nothing_else(head, header):
    host = head.connect(head.invite("host-0.0"))
    host.socket.send(header)
    host.send(Ready(1))
    ((name, error),) = head.heard(1)
    assert isinstance(error, ProtocolError)
    assert name == "host-0.0"
    head.connect(head.invite("host-1.0")).send(Ready(2))
    assert head.heard(1) == [("host-1.0", Ready(2))]


def test_a_message_that_is_too_big_is_an_error_of_its_host(head, monkeypatch):
    monkeypatch.setattr(driving, "_MAX_MESSAGE_BYTES", 100_000)
    head.connect(head.invite("host-0.0")).send(Ready(1), [b"x" * 100_001])
    ((_, error),) = head.heard(1)
    assert isinstance(error, ProtocolError)


def test_a_host_that_sends_more_than_is_looked_at_is_cut_off(head, monkeypatch):
    monkeypatch.setattr(driving, "_MOST_WAITING_BYTES", 100_000)
    # The user's thread is away: nobody takes what has come.
    host = head.connect(head.invite("host-0.0"))
    for epoch in range(10):
        host.send(Ready(epoch), [bytes(20_000)])
    assert comes_to(host, Contact.REFUSED)
    *arrived, (_, error) = head.heard(1)
    assert len(arrived) < 5
    assert "more than it is asked for" in str(error)


def test_small_messages_count_too(head, monkeypatch):
    monkeypatch.setattr(driving, "_MOST_WAITING_BYTES", 20_000)
    host = head.connect(head.invite("host-0.0"))
    for epoch in range(100):
        host.send(Ready(epoch))
    assert comes_to(host, Contact.REFUSED)


def test_what_was_looked_at_does_not_count(head, monkeypatch):
    monkeypatch.setattr(driving, "_MOST_WAITING_BYTES", 20_000)
    host = head.connect(head.invite("host-0.0"))
    for epoch in range(100):
        host.send(Ready(epoch))
        assert head.heard(1) == [("host-0.0", Ready(epoch))]


def test_a_frame_that_is_no_chunk_ends_its_connection(head):
    big = head.connect(head.invite("host-0.0"))
    big.send(Ready(1))
    head.heard(1)
    big.socket.send(b"x" * (CHUNK_BYTES + ENCRYPTION_BYTES))
    deadline = time.monotonic() + _PATIENCE_S
    while not head.gone and time.monotonic() < deadline:
        time.sleep(0.01)
    assert head.gone == ["host-0.0"]


def test_a_host_whose_invitation_is_revoked_is_cut_off(head):
    host = head.connect(head.invite("host-0.0"))
    host.send(Ready(1))
    head.heard(1)
    head.socket.revoke("host-0.0")
    # It tries again by itself.
    assert comes_to(host, Contact.REFUSED)


def test_sending_to_a_host_that_is_not_there_says_so(head):
    head.invite("host-0.0")
    assert not head.say("host-0.0", Close(0.0))


def test_bytes_are_counted_by_kind(head):
    host = head.connect(head.invite("host-0.0"))
    host.send(Ready(1), [b"x" * 1000])
    host.send(StaffReport(()))
    head.heard(2)
    assert 1000 < head.ledger.bytes_by_kind["Ready"] < 1100
    assert 0 < head.ledger.bytes_by_kind["StaffReport"] < 100


def test_waiting_in_vain_ends(head):
    assert head.connect(head.invite("host-0.0")).receive(0.001) is None


# Who drives.


def test_while_the_user_is_away_joins_are_answered_by_another_thread(head):
    head.connect(head.invite("host-0.0")).send(Hello(1, {}, "machine", 1, 1))
    deadline = time.monotonic() + _PATIENCE_S
    while not head.answered and time.monotonic() < deadline:
        time.sleep(0.01)
    assert head.answered == [("host-0.0", head.driver)]
    assert not head.driver.arrivals


def test_while_the_user_waits_it_reads_the_socket_itself(head):
    host = head.connect(head.invite("host-0.0"))
    assert comes_to(host, Contact.THERE)
    with head.driver:
        host.send(Hello(1, {}, "machine", 1, 1))
        deadline = time.monotonic() + _PATIENCE_S
        while not head.answered and time.monotonic() < deadline:
            head.driver.drive(0.1)
    assert head.answered == [("host-0.0", threading.main_thread())]


def test_the_user_does_not_wait_for_whoever_drives_meanwhile(head):
    time.sleep(0.1)
    began = time.monotonic()
    with head.driver:
        assert time.monotonic() - began < 0.5


def test_any_thread_can_end_a_wait(head):
    threading.Timer(0.1, head.driver.wake).start()
    began = time.monotonic()
    with head.driver:
        head.driver.drive(_PATIENCE_S)
    assert time.monotonic() - began < 0.9


def test_what_another_thread_leaves_for_the_user_arrives(head):
    threading.Timer(0.1, head.driver.put, ("host-0.0", Leaving("soon"))).start()
    assert head.heard(1) == [("host-0.0", Leaving("soon"))]


# Ctrl-C in the user's thread.


class PressingSocket:
    """Has Ctrl-C pressed just before the frame of this number is sent."""

    def __init__(self, socket, number):
        self._socket, self._left = socket, number

    def send(self, *args, **kwargs):
        if self._left == 0:
            signal.raise_signal(signal.SIGINT)
        self._left -= 1
        return self._socket.send(*args, **kwargs)


@pytest.fixture
def _ctrl_c_raises():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_raises")
@pytest.mark.parametrize("number", range(4), ids=["route", "header", "first", "last"])
def test_ctrl_c_before_any_frame_cuts_no_message_in_half(number, head, monkeypatch):
    host = head.connect(head.invite("host-0.0"))
    host.send(Ready(1))
    head.heard(1)
    socket = PressingSocket(head.socket._router, number)
    with monkeypatch.context() as patch:
        patch.setattr(head.socket, "_router", socket)
        with pytest.raises(KeyboardInterrupt):
            head.say("host-0.0", Close(1.0), [b"small", b"y" * 50_000])
    assert head.say("host-0.0", Close(2.0))
    message, frames = host.receive(_PATIENCE_S)
    assert message == Close(1.0)
    assert [len(frame) for frame in frames] == [5, 50_000]
    assert host.receive(_PATIENCE_S) == (Close(2.0), [])


@pytest.mark.usefixtures("_ctrl_c_raises")
def test_ctrl_c_while_a_message_is_received_does_not_lose_it(head, monkeypatch):
    host = head.connect(head.invite("host-0.0"))
    decode = driving.decode_from_host

    def decode_and_press(frame):
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
        return decode(frame)

    monkeypatch.setattr(driving, "decode_from_host", decode_and_press)
    host.send(Ready(1))
    with pytest.raises(KeyboardInterrupt), head.driver:
        deadline = time.monotonic() + _PATIENCE_S
        while not head.driver.arrivals and time.monotonic() < deadline:
            head.driver.drive(0.1)
    assert head.heard(1) == [("host-0.0", Ready(1))]


@pytest.mark.usefixtures("_ctrl_c_raises")
def test_ctrl_c_ends_a_wait_for_messages(head):
    main = threading.main_thread().ident
    timer = threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT])
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), head.driver:
        for _ in range(60):
            head.driver.drive(1.0)
            if time.monotonic() > began + 0.2:
                break
    assert time.monotonic() - began < _PATIENCE_S
