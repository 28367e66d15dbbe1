"""Everything that arrives is found in one place, and a bell announces it."""

import os
import threading

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.head.inbox import Inbox
from clusterenv.wire import bell
from clusterenv.wire.codec import encode
from clusterenv.wire.frame_buffer import FrameWriter
from clusterenv.wire.marks import Marks
from clusterenv.wire.messages import Returned, Stepped
from clusterenv.wire.shared_memory import Mailbox

_PATIENCE_S = 60.0


@pytest.fixture
def inbox():
    inbox = Inbox()
    yield inbox
    inbox.close()


@pytest.fixture
def mailbox():
    fd = Mailbox.create()
    yield Mailbox(fd)
    os.close(fd)


@pytest.fixture
def frames_fd():
    fd = os.memfd_create("test")
    yield fd
    os.close(fd)


def test_a_new_inbox_is_empty(inbox):
    assert inbox.is_empty()
    assert list(inbox.take()) == []


def test_what_another_thread_puts_is_taken_in_order(inbox):
    inbox.put("a", Stepped(1))
    inbox.put("b", Stepped(2), [b"frame"])
    assert list(inbox.take()) == [("a", Stepped(1), []), ("b", Stepped(2), [b"frame"])]
    assert inbox.is_empty()


def test_what_a_worker_pushes_is_taken_in_order(inbox, mailbox, frames_fd):
    inbox.watch("a", mailbox, frames_fd)
    for request in range(3):
        mailbox.to_head.push(encode(Stepped(request)))
    assert [message.request for _, message, _ in inbox.take()] == [0, 1, 2]


def test_frames_in_shared_memory_come_with_their_message(inbox, mailbox, frames_fd):
    inbox.watch("a", mailbox, frames_fd)
    writer = FrameWriter(frames_fd, mailbox.frames_released)
    mailbox.to_head.push(encode(writer.write(encode(Stepped(1)), [b"one", b"two"])))
    ((worker, message, frames),) = inbox.take()
    assert (worker, message) == ("a", Stepped(1))
    assert [bytes(frame) for frame in frames] == [b"one", b"two"]


def test_a_mailbox_that_was_forgotten_is_not_looked_into(inbox, mailbox, frames_fd):
    inbox.watch("a", mailbox, frames_fd)
    inbox.forget("a")
    mailbox.to_head.push(encode(Stepped(1)))
    assert inbox.is_empty()
    assert list(inbox.take()) == []


def test_waiting_ends_at_once_when_something_is_here(inbox):
    inbox.put("a", Stepped(1))
    inbox.wait(_PATIENCE_S)
    assert not inbox.is_empty()


def test_waiting_in_vain_ends(inbox):
    assert not inbox.wait(0.001)
    assert inbox.is_empty()


def test_another_thread_ends_the_waiting(inbox):
    thread = threading.Thread(target=inbox.put, args=("a", Stepped(1)))
    thread.start()
    inbox.wait(_PATIENCE_S)
    assert not inbox.is_empty()
    thread.join()


def test_a_worker_ends_the_waiting_by_the_bell(inbox, mailbox, frames_fd):
    inbox.watch("a", mailbox, frames_fd)

    def answer():
        mailbox.to_head.push(encode(Stepped(1)))
        bell.ring(inbox.bell.ring_fd)

    thread = threading.Thread(target=answer)
    thread.start()
    inbox.wait(_PATIENCE_S)
    assert not inbox.is_empty()
    thread.join()


def test_a_ring_without_a_message_ends_the_waiting_once(inbox):
    # A worker may have answered without one.
    inbox.bell.ring()
    assert inbox.wait(_PATIENCE_S)
    assert not inbox.wait(0.001)


@pytest.mark.parametrize("may_spin", [True, False])
def test_what_is_done_is_not_waited_for(may_spin):
    inbox = Inbox(may_spin)
    assert inbox.wait(0.0, lambda: True)
    inbox.close()


def test_what_is_no_message_arrives_as_the_error_of_its_worker(inbox, mailbox, frames_fd):
    # As from the I/O thread, so that the worker is lost, and not the user's call.
    inbox.watch("a", mailbox, frames_fd)
    mailbox.to_head.push(b"no message")
    mailbox.to_head.push(encode(Returned(2, b"")))
    (first, error, _), (second, message, _) = inbox.take()
    assert (first, second) == ("a", "a")
    assert isinstance(error, ProtocolError)
    assert message == Returned(2, b"")


def words(count):
    return memoryview(bytearray(8 * count)).cast("q")


def test_workers_see_whether_the_head_sleeps(inbox):
    inbox.marks, asleep = Marks(words(1), asleep_word := words(2), words(2)), []

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


def test_the_head_looks_once_more_before_it_sleeps(inbox):
    # Who answered when it was awake did not ring.
    inbox.marks = Marks(words(1), asleep := words(2), words(2))
    assert inbox.wait(_PATIENCE_S, lambda: asleep[0] == 1)
    assert not asleep[0]
