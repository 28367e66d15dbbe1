"""A ring is a queue, and a mailbox has two of them and calls, across processes too."""

import os
import subprocess
import sys
import time
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.memory.answer_flags import MAY_SPIN, MOST_PARTS
from clusterenv.memory.mailbox import Mailbox, Ring
from clusterenv.memory.messages import PartCall, StepCall
from clusterenv.memory.part_times import PARTS

_PATIENCE_S = 60.0


class SmallRing(Ring):
    """Small enough to be full and to wrap around soon."""

    CAPACITY = 256
    SIZE = Ring.SIZE - Ring.CAPACITY + CAPACITY


def small_ring():
    return SmallRing(memoryview(bytearray(SmallRing.SIZE)))


def room_for(message):
    """Bytes that a message takes in a ring: its length, then its bytes, in words of eight."""
    return 8 + (len(message) + 7) // 8 * 8


pop = st.none()
messages = st.integers(0, 120).map(lambda size: bytes(range(size)))


@given(st.lists(messages | pop, max_size=60))
def test_a_ring_is_a_queue(operations):
    ring, queue = small_ring(), deque()
    for message in operations:
        assert ring.is_empty() == (not queue)
        if message is None:
            assert ring.pop() == (queue.popleft() if queue else None)
        elif ring.push(message):
            queue.append(message)
    while queue:
        assert ring.pop() == queue.popleft()
    assert ring.pop() is None


@given(st.lists(messages | pop, max_size=60))
def test_a_ring_says_no_only_when_it_is_full(operations):
    ring, queue = small_ring(), deque()
    for message in operations:
        if message is None:
            if queue:
                queue.popleft()
            ring.pop()
            continue
        used = sum(map(room_for, queue))
        # A message is never split, so the end of the ring may stay empty before one of them.
        lost_at_the_end = max(map(room_for, [*queue, message]))
        pushed = ring.push(message)
        if used + room_for(message) > ring.CAPACITY:
            assert not pushed
        elif used + room_for(message) + lost_at_the_end <= ring.CAPACITY:
            assert pushed
        if pushed:
            queue.append(message)


@given(st.lists(st.integers(0, SmallRing.CAPACITY // 2 - 8), min_size=50, max_size=50))
def test_an_empty_ring_takes_what_fills_half_of_it_wherever_it_is(sizes):
    ring = small_ring()
    for size in sizes:
        assert ring.push(bytes(size))
        assert ring.pop() == bytes(size)


def test_a_message_may_fill_the_whole_ring():
    ring, message = small_ring(), b"x" * (SmallRing.CAPACITY - 8)
    assert ring.push(message)
    assert not ring.push(b"")
    assert ring.pop() == message
    assert ring.is_empty()


@given(st.lists(messages | pop, max_size=60), st.integers(0, 100))
def test_a_ring_keeps_as_much_room_as_it_is_told_to(operations, keep_free):
    ring, queue = small_ring(), deque()
    for message in operations:
        if message is None:
            assert ring.pop() == (queue.popleft() if queue else None)
        elif ring.push(message, keep_free):
            queue.append(message)
            assert sum(map(room_for, queue)) + keep_free <= ring.CAPACITY


def test_a_message_that_can_never_fit_is_not_taken():
    assert not small_ring().push(bytes(SmallRing.CAPACITY - 7))


# Mailboxes.


@pytest.fixture
def mailbox_fd():
    fd = Mailbox.create()
    yield fd
    os.close(fd)


def test_the_two_rings_of_a_mailbox_do_not_mix(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    assert host.to_worker.push(b"a" * (Ring.CAPACITY - 8))
    assert worker.to_host.push(b"b" * (Ring.CAPACITY - 8))
    worker.notes[0] = 2
    assert worker.to_worker.pop() == b"a" * (Ring.CAPACITY - 8)
    assert host.to_host.pop() == b"b" * (Ring.CAPACITY - 8)


def test_a_new_mailbox_names_no_slot(mailbox_fd):
    assert Mailbox(mailbox_fd).current_slot == Mailbox.NO_SLOT


@pytest.mark.parametrize("slot", [0, 7])
def test_the_host_sees_the_slot_that_the_worker_notes(mailbox_fd, slot):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    worker.notes[0] = slot + 1
    assert host.current_slot == slot


ECHO = """
import os, sys
from clusterenv.memory.mailbox import Mailbox
mailbox = Mailbox(int(sys.argv[1]))
while True:
    while mailbox.to_worker.is_empty():
        os.sched_yield()
    message = mailbox.to_worker.pop()
    if message == b"end":
        break
    while not mailbox.to_host.push(message[::-1]):
        os.sched_yield()
"""


def test_messages_cross_processes_in_order_and_whole(mailbox_fd):
    mailbox, rng = Mailbox(mailbox_fd), np.random.default_rng(1)
    sent = [rng.bytes(size) for size in rng.integers(0, 2000, 1500)]
    echo = subprocess.Popen([sys.executable, "-c", ECHO, str(mailbox_fd)], pass_fds=[mailbox_fd])
    try:
        waiting, received = deque(sent), []
        deadline = time.monotonic() + _PATIENCE_S
        while len(received) < len(sent):
            assert time.monotonic() < deadline
            if waiting and mailbox.to_worker.push(waiting[0]):
                waiting.popleft()
            while (message := mailbox.to_host.pop()) is not None:
                received.append(message[::-1])
        assert received == sent
        assert mailbox.to_worker.push(b"end")
        assert echo.wait(_PATIENCE_S) == 0
    finally:
        echo.kill()
        echo.wait()


def test_waiting_ends_at_once_when_there_is_mail(mailbox_fd):
    mailbox = Mailbox(mailbox_fd)
    mailbox.to_worker.push(b"x")
    assert mailbox.wait_spinning(_PATIENCE_S)


def test_waiting_in_vain_ends(mailbox_fd):
    assert not Mailbox(mailbox_fd).wait_spinning(1e-4)


@pytest.mark.parametrize("dtype", ["|b1", "|i1", "<i8", ">f4", "<c16", "<f16"])
def test_a_call_is_taken_once(mailbox_fd, dtype):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    assert worker.take_call() is None
    Mailbox.call_all([host], 7, dtype)
    assert worker.wait_spinning(_PATIENCE_S)
    assert worker.take_call() == StepCall(7, dtype)
    assert worker.take_call() is None
    assert not worker.has_mail()


@pytest.mark.skipif(not MAY_SPIN, reason="memory is ordered weakly: nobody spins")
def test_a_worker_that_looks_out_for_calls_takes_those_alone(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    assert worker.wait_for_call(1e-4) is None
    Mailbox.call_all([host], 7, "<f4")
    # Said after the call, and heard after it.
    host.to_worker.push(b"later")
    assert worker.wait_for_call(_PATIENCE_S) == StepCall(7, "<f4")
    assert worker.wait_for_call(_PATIENCE_S) is None
    assert worker.to_worker.pop() == b"later"
    host.call_part(8, "<f4", 0, 1)
    assert worker.wait_for_call(_PATIENCE_S) == PartCall(8, "<f4", 0, 1, 0)


def test_calls_for_parts_are_taken_in_their_order(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    for request in range(1, 3 * MOST_PARTS, 2):
        numbers = [host.call_part(one, "<f4", one, 2) for one in (request, request + 1)]
        assert worker.wait_spinning(_PATIENCE_S)
        for one, number in zip((request, request + 1), numbers, strict=True):
            assert worker.take_call() == PartCall(one, "<f4", one, 2, number)
        assert worker.take_call() is None
        assert not worker.has_mail()


def test_only_so_many_calls_for_parts_wait_and_each_has_its_number(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    numbers = []
    while host.can_call_part():
        numbers.append(host.call_part(1 + len(numbers), "<i8", 0, 1))
    assert sorted(numbers) == list(range(MOST_PARTS))
    worker.take_call()
    assert host.can_call_part()


def test_calls_for_parts_wait_for_everything_earlier(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    Mailbox.call_all([host], 1, "<i8")
    assert not host.can_call_part()
    worker.take_call()
    host.call_part(2, "<i8", 0, 1)
    host.to_worker.push(b"later")
    assert not host.can_call_part()
    worker.take_call()
    assert not host.can_call_part()
    worker.to_worker.pop()
    assert host.can_call_part()


def test_a_call_to_step_all_waits_for_those_for_parts(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    host.call_part(1, "<i8", 0, 1)
    host.call_part(2, "<i8", 1, 1)
    worker.take_call()
    assert not host.can_call()
    worker.take_call()
    assert host.can_call()


def test_nobody_is_called_before_everything_earlier_was_heard(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    host.to_worker.push(b"earlier")
    assert not host.can_call()
    worker.to_worker.pop()
    assert host.can_call()
    Mailbox.call_all([host], 1, "<i8")
    assert not host.can_call()
    worker.take_call()
    assert host.can_call()


def test_who_has_mail_does_not_fall_asleep(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    assert worker.fall_asleep()
    assert host.is_asleep
    assert Mailbox.call_all([host], 1, "<i8")
    worker.wake_up()
    worker.take_call()
    assert not host.is_asleep
    assert not Mailbox.call_all([host], 2, "<i8")
    assert not worker.fall_asleep()


def test_who_has_mail_keeps_the_core(mailbox_fd, monkeypatch):
    host, worker, yields = Mailbox(mailbox_fd), Mailbox(mailbox_fd), []
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(1))
    worker.make_way()
    assert yields == [1]
    Mailbox.call_all([host], 1, "<i8")
    worker.make_way()
    worker.take_call()
    host.to_worker.push(b"more")
    worker.make_way()
    assert yields == [1]


def test_the_counters_of_a_mailbox_are_apart(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    host.released_by_host[0] = 5
    worker.released_by_worker[0] = 6
    host.cancel_up_to(7)
    host.call_part(8, "<i8", 1, 2)
    worker.notes[0] = 9
    assert (worker.released_by_host[0], host.released_by_worker[0]) == (5, 6)
    assert worker.cancelled_up_to == 7
    assert worker.take_call() == PartCall(8, "<i8", 1, 2, 0)
    assert host.current_slot == 8


def test_no_call_for_a_part_writes_over_a_counter(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    for request in range(1, 2 * MOST_PARTS):
        host.call_part(request, "<f16", 2**62, 2**62)
        worker.take_call()
    assert host.released_by_worker[0] == host.released_by_host[0] == host.cancelled_up_to == 0
    assert host.current_slot == Mailbox.NO_SLOT


def test_nothing_is_cancelled_at_first(mailbox_fd):
    assert Mailbox(mailbox_fd).cancelled_up_to == 0


def test_all_that_will_ever_be_asked_can_be_cancelled(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    host.cancel_all()
    assert worker.cancelled_up_to >= 2**62


def test_times_are_counted_beside_everything_else(mailbox_fd):
    host, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    host.cancel_up_to(7)
    worker.notes[0] = 9
    host.times.start()
    for part in range(len(PARTS)):
        worker.times.begin(part)
    assert worker.cancelled_up_to == 7
    assert host.current_slot == 8
    assert worker.to_worker.is_empty()
    assert worker.take_call() is None
    assert host.times.stop().keys() == set(PARTS)
