"""A line carries messages of any size both ways, in order, and wakes who sleeps."""

import gc
import os
import select
import threading
import time

import msgspec
import pytest

from clusterenv.bell import Bell
from clusterenv.errors import ProtocolError
from clusterenv.memory import line as line_module
from clusterenv.memory.answer_flags import MAY_SPIN
from clusterenv.memory.line import Descriptors, HostEnd, WorkerEnd
from clusterenv.memory.mailbox import Mailbox
from clusterenv.memory.messages import EnvWarned, PartCall, StepCall
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.replies import Collected, Returned, Stepped
from clusterenv.protocol.requests import Call, Step

_PATIENCE_S = 60.0


@pytest.fixture
def host_bell():
    bell = Bell(hands_over=True)
    yield bell
    bell.close()


@pytest.fixture
def host(host_bell):
    end = HostEnd(host_bell, rows=-1, weights=-1, evaluation_weights=-1)
    yield end
    end.close()


@pytest.fixture
def worker(host):
    return WorkerEnd(host.descriptors, spins=False)


def is_ringing(fd):
    return bool(select.select([fd], [], [], 0)[0])


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


def heard_by_worker(worker):
    messages = []
    while (message := worker.receive(0.0)) is not None:
        messages.append(message)
    return messages


def heard_by_host(host):
    messages = []
    while (received := host.receive()) is not None:
        messages.append(received)
    return messages


# Messages.


def test_nothing_was_said_at_first(host, worker):
    assert host.receive() is None
    assert worker.receive(0.0) is None


def test_messages_to_the_worker_come_in_order(host, worker):
    sent = [Step(request, (0, 1)) for request in range(3)]
    for message in sent:
        host.send(message)
    assert heard_by_worker(worker) == sent


def test_messages_to_the_host_come_in_order(host, worker):
    for request in range(3):
        worker.send(Stepped(request))
    assert heard_by_host(host) == [(Stepped(request), [], 0) for request in range(3)]


@pytest.mark.parametrize("size", [0, 5_000, 10_000, 300_000, 3_000_000])
def test_a_message_to_the_worker_may_be_of_any_size(host, worker, size):
    sent = [TakePolicy(number, bytes([number]) * size, b"layout") for number in range(3)]
    for message in sent:
        host.send(message)
    assert heard_by_worker(worker) == sent


@pytest.mark.parametrize("size", [0, 5_000, 10_000, 300_000, 3_000_000])
def test_a_message_to_the_host_may_be_of_any_size(host, worker, size):
    sent = [Returned(number, bytes([number]) * size) for number in range(3)]
    for message in sent:
        worker.send(message)
    assert [message for message, _, _ in heard_by_host(host)] == sent


def test_large_messages_use_their_room_again(host, worker):
    for number in range(200):
        host.send(TakePolicy(number, bytes(100_000), b""))
        worker.receive(0.0)
        worker.send(Returned(number, bytes(100_000)))
        host.receive()
    for fd in (host.descriptors.to_worker, host.descriptors.from_worker):
        assert os.fstat(fd).st_size <= 400_000


def test_frames_come_with_their_message_and_stay_until_they_are_released(host, worker):
    reply = Collected(7, 3, ("a", "b"), (("<f8", (1,)), ("<f8", (2,))))
    worker.send(reply, [b"a" * 8, b"b" * 16])
    ((message, frames, number),) = heard_by_host(host)
    assert message == reply
    for _ in range(100):
        worker.send(reply, [b"c" * 8_000, b"d" * 16])
        ((_, _, later),) = heard_by_host(host)
        host.release(later)
    assert [bytes(frame) for frame in frames] == [b"a" * 8, b"b" * 16]
    before = os.fstat(host.descriptors.from_worker).st_size
    host.release(number)
    for _ in range(100):
        worker.send(reply, [b"c" * 8_000, b"d" * 16])
        ((_, _, later),) = heard_by_host(host)
        host.release(later)
    assert os.fstat(host.descriptors.from_worker).st_size == before


def test_a_message_without_frames_has_nothing_to_release(host, worker):
    worker.send(Stepped(1))
    ((_, frames, number),) = heard_by_host(host)
    assert (frames, number) == ([], 0)


def test_frames_that_are_looked_at_outlive_the_line(host_bell):
    host = HostEnd(host_bell, -1, -1, -1)
    worker = WorkerEnd(host.descriptors, spins=False)
    worker.send(Collected(1, 1, ("a",), (("|u1", (3,)),)), [b"abc"])
    ((_, (frame,), _),) = heard_by_host(host)
    host.close()
    assert bytes(frame) == b"abc"


@pytest.mark.parametrize("data", [b"", b"no message", b"\x92\xa4Step\x01"])
def test_what_is_no_message_of_a_worker_is_a_protocol_error(host, data):
    Mailbox(host.descriptors.mailbox).to_host.push(data)
    with pytest.raises(ProtocolError):
        host.receive()


# A full ring.


def test_what_finds_no_room_goes_out_later_and_in_order(host, worker):
    sent = [Call(number, (0,), "name", bytes(5_000)) for number in range(200)]
    for message in sent:
        host.send(message)
    received = heard_by_worker(worker)
    assert 0 < len(received) < len(sent)
    while len(received) < len(sent):
        host.flush()
        received += heard_by_worker(worker)
    assert received == sent


def test_what_is_sent_after_something_that_found_no_room_waits_behind_it(host, worker):
    number = 0
    while not host._waiting:
        number += 1
        host.send(Call(number, (0,), "large", bytes(8_000)))
    host.send(Call(number + 1, (0,), "small", b""))
    received = []
    while host._waiting:
        received += heard_by_worker(worker)
        host.flush()
    received += heard_by_worker(worker)
    assert [message.request for message in received] == list(range(1, number + 2))


def test_a_worker_whose_ring_is_full_wakes_the_host_and_waits(host, worker, host_bell):
    sent = [Returned(number, bytes(8_000)) for number in range(100)]

    def speak():
        for message in sent:
            worker.leave(message)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    deadline = time.monotonic() + _PATIENCE_S
    while not is_ringing(host_bell.fd):
        assert time.monotonic() < deadline
    received = []
    while len(received) < len(sent):
        assert time.monotonic() < deadline
        received += heard_by_host(host)
    thread.join(_PATIENCE_S)
    assert [message for message, _, _ in received] == sent


# Bells.


def test_a_message_rings_at_the_other_end(host, worker, host_bell):
    assert not is_ringing(host.doorbell.fd)
    host.send(Step(1, (0,)))
    assert is_ringing(host.doorbell.fd)
    worker.send(Stepped(1))
    assert is_ringing(host_bell.fd)


def test_what_found_no_room_does_not_ring(host, worker):
    while not host._waiting:
        host.send(Call(1, (0,), "name", bytes(8_000)))
    host.doorbell.clear()
    host.flush()
    assert not is_ringing(host.doorbell.fd)
    worker.receive(0.0)
    host.flush()
    assert is_ringing(host.doorbell.fd)


def test_a_message_can_be_left_without_a_ring(host, worker, host_bell):
    worker.leave(Stepped(1))
    assert not is_ringing(host_bell.fd)
    assert heard_by_host(host) == [(Stepped(1), [], 0)]


def test_a_worker_knows_whether_it_has_spoken(worker):
    assert not worker.has_spoken
    worker.send(EnvWarned("UserWarning", "hm"))
    assert worker.has_spoken
    worker.has_spoken = False
    worker.leave(Stepped(1))
    assert worker.has_spoken


@pytest.mark.parametrize("spins", [True, False])
def test_a_worker_that_sleeps_is_woken_by_a_message(host, spins):
    worker = WorkerEnd(host.descriptors, spins)

    def wait_and_send():
        while not host.mailbox.is_asleep:
            time.sleep(1e-4)
        host.send(Step(1, (0,)))

    thread = threading.Thread(target=wait_and_send, daemon=True)
    thread.start()
    begun = time.monotonic()
    assert worker.receive(_PATIENCE_S) == Step(1, (0,))
    assert time.monotonic() - begun < _PATIENCE_S / 2
    thread.join()
    assert not host.mailbox.is_asleep
    assert not is_ringing(host.doorbell.fd)


def test_a_worker_waits_no_longer_than_it_was_told(worker):
    begun = time.monotonic()
    assert worker.receive(0.05) is None
    assert 0.05 <= time.monotonic() - begun < _PATIENCE_S


def test_a_ring_without_mail_does_not_end_the_waiting(host, worker):
    host.doorbell.ring()
    begun = time.monotonic()
    assert worker.receive(0.05) is None
    assert time.monotonic() - begun >= 0.05


# Calls.


def test_a_call_is_heard_before_what_was_sent_after_it(host, worker):
    Mailbox.call_all([host.mailbox], 1, "<i8")
    host.send(Step(2, (0,)))
    assert heard_by_worker(worker) == [StepCall(1, "<i8"), Step(2, (0,))]
    host.mailbox.call_part(3, "<i8", 0, 1)
    assert heard_by_worker(worker) == [PartCall(3, "<i8", 0, 1, 0)]


@pytest.mark.skipif(not MAY_SPIN, reason="memory is ordered weakly: nobody spins")
def test_a_worker_that_may_spin_looks_out_for_calls(host):
    worker = WorkerEnd(host.descriptors, spins=True)
    assert worker.wait_for_call() is None
    Mailbox.call_all([host.mailbox], 1, "<i8")
    assert worker.wait_for_call() == StepCall(1, "<i8")


def test_a_worker_that_may_not_spin_does_not_look_out_for_calls(host, worker):
    Mailbox.call_all([host.mailbox], 1, "<i8")
    assert worker.wait_for_call() is None
    assert worker.receive(0.0) == StepCall(1, "<i8")


# Descriptors.


def test_closing_gives_every_descriptor_back(host_bell):
    gc.collect()  # what other tests have left is not to end meanwhile
    before = num_descriptors()
    host = HostEnd(host_bell, -1, -1, -1)
    assert num_descriptors() > before
    host.close()
    # A map has a descriptor of its own as long as somebody looks at it.
    del host
    gc.collect()
    assert num_descriptors() == before


@pytest.mark.parametrize("nth", [0, 1])
def test_a_line_for_which_there_is_no_memory_leaves_nothing_behind(host_bell, monkeypatch, nth):
    create, created = line_module.create, []

    def run_out(name):
        created.append(name)
        if len(created) > nth:
            raise OSError("no memory")
        return create(name)

    monkeypatch.setattr(line_module, "create", run_out)
    before = num_descriptors()
    with pytest.raises(OSError, match="no memory"):
        HostEnd(host_bell, -1, -1, -1)
    assert num_descriptors() == before


def test_every_descriptor_a_worker_inherits_is_another(host):
    fds = host.descriptors
    own = [fds.mailbox, fds.from_worker, fds.to_worker, fds.doorbell, fds.host_bell]
    assert len(set(own)) == len(own)


def test_a_thread_has_descriptors_of_its_own_that_outlive_the_hosts(host_bell):
    rows = [os.memfd_create("test") for _ in range(3)]
    host = HostEnd(host_bell, *rows)
    own = host.descriptors.duplicated()
    worker = WorkerEnd(own, spins=False)
    host.close()
    for fd in rows:
        os.close(fd)
    # It grows its frames: what was closed may be anybody's by now.
    worker.send(Returned(1, bytes(1_000_000)))
    assert os.fstat(own.from_worker).st_size >= 1_000_000
    own.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(own.from_worker)


def test_descriptors_that_cannot_all_be_duplicated_leave_nothing_behind(host, monkeypatch):
    dup, made = os.dup, []

    def run_out(fd):
        if len(made) == 3:
            raise OSError("too many")
        made.append(dup(fd))
        return made[-1]

    names = msgspec.structs.asdict(host.descriptors)
    descriptors = Descriptors(**dict.fromkeys(names, host.descriptors.mailbox))
    before = num_descriptors()
    monkeypatch.setattr(os, "dup", run_out)
    with pytest.raises(OSError, match="too many"):
        descriptors.duplicated()
    assert num_descriptors() == before


def test_a_thread_whose_host_has_hung_up_hears_and_says_nothing_more(host, worker):
    host.send(Step(1, (0,)))
    worker.is_over = True
    assert worker.receive(_PATIENCE_S) is None
    while worker.mailbox.to_host.push(bytes(8_000)):
        pass
    begun = time.monotonic()
    worker.leave(Stepped(1))
    assert time.monotonic() - begun < _PATIENCE_S / 2
