"""What workers say is found in one place, and one bell announces it."""

import threading
import time

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.host.inbox import Inbox
from clusterenv.memory.answer_flags import MAY_SPIN, AnswerFlags
from clusterenv.memory.line import HostEnd, WorkerEnd
from clusterenv.protocol.replies import Collected, Returned, Stepped

_PATIENCE_S = 60.0


@pytest.fixture(params=[False, True], ids=["sleeps", "spins"])
def inbox(request):
    inbox = Inbox(may_spin=request.param)
    yield inbox
    inbox.close()


@pytest.fixture
def make_worker(inbox):
    lines = []

    def make(index=0):
        lines.append(HostEnd(inbox.bell, -1, -1, -1))
        inbox.watch(index, lines[-1])
        return WorkerEnd(lines[-1].descriptors, spins=False)

    yield make
    for line in lines:
        line.close()


def test_a_new_inbox_is_empty(inbox):
    assert inbox.is_empty()
    assert list(inbox.take()) == []


def test_what_a_worker_says_is_taken_in_order(inbox, make_worker):
    worker = make_worker(3)
    for request in range(3):
        worker.leave(Stepped(request))
    assert not inbox.is_empty()
    assert list(inbox.take()) == [(3, Stepped(request), [], 0) for request in range(3)]
    assert inbox.is_empty()


def test_frames_come_with_their_message(inbox, make_worker):
    reply = Collected(1, 2, ("a", "b"), (("|u1", (3,)), ("|u1", (3,))))
    make_worker().send(reply, [b"one", b"two"])
    ((index, message, frames, number),) = inbox.take()
    assert (index, message, number) == (0, reply, 1)
    assert [bytes(frame) for frame in frames] == [b"one", b"two"]


def test_a_worker_that_was_forgotten_is_not_heard(inbox, make_worker):
    worker = make_worker(1)
    inbox.forget(1)
    worker.leave(Stepped(1))
    assert inbox.is_empty()
    assert list(inbox.take()) == []
    inbox.forget(1)


def test_a_successor_is_heard_in_place_of_its_predecessor(inbox, make_worker):
    before, after = make_worker(1), make_worker(1)
    before.leave(Stepped(1))
    after.leave(Stepped(2))
    assert [message for _, message, _, _ in inbox.take()] == [Stepped(2)]


def test_waiting_ends_at_once_when_something_is_here(inbox, make_worker):
    make_worker().leave(Stepped(1))
    begun = time.monotonic()
    assert inbox.wait(_PATIENCE_S)
    assert time.monotonic() - begun < _PATIENCE_S / 2


def test_waiting_in_vain_ends(inbox, make_worker):
    make_worker()
    assert not inbox.wait(0.001)
    assert inbox.is_empty()


def test_not_to_wait_is_to_look_once(inbox, make_worker):
    worker = make_worker()
    assert not inbox.wait(0.0)
    worker.leave(Stepped(1))
    assert inbox.wait(0.0)


def test_a_worker_ends_the_waiting_by_the_bell(inbox, make_worker):
    worker = make_worker()
    thread = threading.Thread(target=worker.send, args=(Stepped(1),))
    thread.start()
    assert inbox.wait(_PATIENCE_S)
    thread.join()
    assert [message for _, message, _, _ in inbox.take()] == [Stepped(1)]


def test_another_thread_ends_the_waiting(inbox):
    thread = threading.Thread(target=inbox.wake)
    thread.start()
    assert inbox.wait(_PATIENCE_S)
    thread.join()
    assert inbox.was_woken
    # Until somebody has looked what is wanted.
    assert not inbox.is_empty()
    inbox.was_woken = False
    assert inbox.is_empty()


def test_a_ring_without_a_message_ends_the_waiting_once(inbox):
    # A worker may have answered without one.
    inbox.bell.ring()
    assert inbox.wait(_PATIENCE_S)
    assert not inbox.wait(0.001)


def test_what_is_done_is_not_waited_for(inbox):
    assert inbox.wait(0.0, lambda: True)


def test_what_is_no_message_arrives_as_the_error_of_its_worker(inbox, make_worker):
    # So that the worker is lost, and not the user's call.
    spoilt, fine = make_worker(0), make_worker(1)
    spoilt.mailbox.to_host.push(b"no message")
    fine.leave(Returned(2, b""))
    (first, error, _, _), (second, message, _, _) = inbox.take()
    assert (first, second) == (0, 1)
    assert isinstance(error, ProtocolError)
    assert message == Returned(2, b"")


# Sleeping.


def words(count):
    return memoryview(bytearray(8 * count)).cast("q")


def test_workers_see_whether_the_host_sleeps(inbox):
    inbox.flags, asleep = AnswerFlags(words(1), asleep_word := words(2), words(2)), []

    def look_and_ring():
        while not asleep_word[0]:
            pass
        asleep.append(True)
        inbox.bell.ring()

    thread = threading.Thread(target=look_and_ring, daemon=True)
    thread.start()
    assert inbox.wait(_PATIENCE_S)
    thread.join()
    assert asleep
    assert not asleep_word[0]


def test_the_host_looks_once_more_before_it_sleeps(inbox):
    # Who answered when it was awake did not ring.
    inbox.flags = AnswerFlags(words(1), asleep := words(2), words(2))
    assert inbox.wait(_PATIENCE_S, lambda: asleep[0] == 1)
    assert not asleep[0]


def test_nobody_spins_where_memory_is_not_ordered():
    inbox = Inbox(may_spin=True)
    assert inbox.may_spin == MAY_SPIN
    inbox.close()
