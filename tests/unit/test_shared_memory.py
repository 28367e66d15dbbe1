"""A ring is a queue, an arena keeps its arrays apart, across processes too."""

import os
import subprocess
import sys
import time
from collections import deque

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.plain.spaces import Leaf, leaves_of
from clusterenv.wire.arena import Arena
from clusterenv.wire.marks import MAY_SPIN, MOST_PARTS
from clusterenv.wire.messages import PartCall, StepCall
from clusterenv.wire.shared_memory import Mailbox, Ring, allocate

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


def test_a_message_that_can_never_fit_is_not_taken():
    assert not small_ring().push(bytes(SmallRing.CAPACITY - 7))


# Mailboxes.


@pytest.fixture
def mailbox_fd():
    fd = Mailbox.create()
    yield fd
    os.close(fd)


def test_the_two_rings_of_a_mailbox_do_not_mix(mailbox_fd):
    head, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    assert head.to_worker.push(b"a" * (Ring.CAPACITY - 8))
    assert worker.to_head.push(b"b" * (Ring.CAPACITY - 8))
    worker.notes[0] = 2
    assert worker.to_worker.pop() == b"a" * (Ring.CAPACITY - 8)
    assert head.to_head.pop() == b"b" * (Ring.CAPACITY - 8)


def test_a_new_mailbox_names_no_slot(mailbox_fd):
    assert Mailbox(mailbox_fd).current_slot == Mailbox.NO_SLOT


@pytest.mark.parametrize("slot", [0, 7])
def test_the_head_sees_the_slot_that_the_worker_notes(mailbox_fd, slot):
    head, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    worker.notes[0] = slot + 1
    assert head.current_slot == slot


ECHO = """
import os, sys
from clusterenv.wire.shared_memory import Mailbox
mailbox = Mailbox(int(sys.argv[1]))
while True:
    while mailbox.to_worker.is_empty():
        os.sched_yield()
    message = mailbox.to_worker.pop()
    if message == b"end":
        break
    while not mailbox.to_head.push(message[::-1]):
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
            while (message := mailbox.to_head.pop()) is not None:
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
    head, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    assert worker.take_call() is None
    Mailbox.call_all([head], 7, dtype)
    assert worker.wait_spinning(_PATIENCE_S)
    assert worker.take_call() == StepCall(7, dtype)
    assert worker.take_call() is None
    assert not worker.has_mail()


@pytest.mark.skipif(not MAY_SPIN, reason="memory is ordered weakly: nobody spins")
def test_a_worker_that_looks_out_for_calls_takes_those_alone(mailbox_fd):
    head, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    assert worker.wait_for_call(1e-4) is None
    Mailbox.call_all([head], 7, "<f4")
    # Said after the call, and heard after it.
    head.to_worker.push(b"later")
    assert worker.wait_for_call(_PATIENCE_S) == StepCall(7, "<f4")
    assert worker.wait_for_call(_PATIENCE_S) is None
    assert worker.to_worker.pop() == b"later"
    head.call_part(8, "<f4", 0, 1)
    assert worker.wait_for_call(_PATIENCE_S) == PartCall(8, "<f4", 0, 1, 0)


def test_calls_for_parts_are_taken_in_their_order(mailbox_fd):
    head, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    for request in range(1, 3 * MOST_PARTS, 2):
        numbers = [head.call_part(one, "<f4", one, 2) for one in (request, request + 1)]
        assert worker.wait_spinning(_PATIENCE_S)
        for one, number in zip((request, request + 1), numbers, strict=True):
            assert worker.take_call() == PartCall(one, "<f4", one, 2, number)
        assert worker.take_call() is None
        assert not worker.has_mail()


def test_only_so_many_calls_for_parts_wait_and_each_has_its_number(mailbox_fd):
    head, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    numbers = []
    while head.can_call_part():
        numbers.append(head.call_part(1 + len(numbers), "<i8", 0, 1))
    assert sorted(numbers) == list(range(MOST_PARTS))
    worker.take_call()
    assert head.can_call_part()


def test_calls_for_parts_wait_for_everything_earlier(mailbox_fd):
    head, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    Mailbox.call_all([head], 1, "<i8")
    assert not head.can_call_part()
    worker.take_call()
    head.call_part(2, "<i8", 0, 1)
    head.to_worker.push(b"later")
    assert not head.can_call_part()
    worker.take_call()
    assert not head.can_call_part()
    worker.to_worker.pop()
    assert head.can_call_part()


def test_a_call_to_step_all_waits_for_those_for_parts(mailbox_fd):
    head, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    head.call_part(1, "<i8", 0, 1)
    head.call_part(2, "<i8", 1, 1)
    worker.take_call()
    assert not head.can_call()
    worker.take_call()
    assert head.can_call()


def test_nobody_is_called_before_everything_earlier_was_heard(mailbox_fd):
    head, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    head.to_worker.push(b"earlier")
    assert not head.can_call()
    worker.to_worker.pop()
    assert head.can_call()
    Mailbox.call_all([head], 1, "<i8")
    assert not head.can_call()
    worker.take_call()
    assert head.can_call()


def test_who_has_mail_does_not_fall_asleep(mailbox_fd):
    head, worker = Mailbox(mailbox_fd), Mailbox(mailbox_fd)
    assert worker.fall_asleep()
    assert head.is_asleep
    assert Mailbox.call_all([head], 1, "<i8")
    worker.wake_up()
    worker.take_call()
    assert not head.is_asleep
    assert not Mailbox.call_all([head], 2, "<i8")
    assert not worker.fall_asleep()


def test_who_has_mail_keeps_the_core(mailbox_fd, monkeypatch):
    head, worker, yields = Mailbox(mailbox_fd), Mailbox(mailbox_fd), []
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(1))
    worker.make_way()
    assert yields == [1]
    Mailbox.call_all([head], 1, "<i8")
    worker.make_way()
    worker.take_call()
    head.to_worker.push(b"more")
    worker.make_way()
    assert yields == [1]


def test_a_mailbox_that_was_cleared_has_no_call(mailbox_fd):
    mailbox = Mailbox(mailbox_fd)
    Mailbox.call_all([mailbox], 1, "<i8")
    mailbox.clear()
    assert mailbox.take_call() is None
    mailbox.call_part(1, "<i8", 0, 1)
    mailbox.clear()
    assert mailbox.take_call() is None
    assert mailbox.can_call()


# Arenas.


def open_arena(num_envs, action, leaves, maps=1):
    fd = os.memfd_create("test")
    try:
        allocate(fd, Arena.size_of(num_envs, action, leaves))
        return [Arena(fd, num_envs, num_envs, action, leaves) for _ in range(maps)]
    finally:
        os.close(fd)


array_leaves = st.builds(
    Leaf,
    path=st.just(()),
    dtype=st.sampled_from(["?", "u1", "i2", "f4", "f8", "c16"]).map(np.dtype),
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
object_leaves = st.just(Leaf((), None, ()))


@given(st.integers(1, 9), array_leaves, st.lists(array_leaves | object_leaves, max_size=4))
def test_no_array_of_an_arena_overlaps_another(num_envs, action, leaves):
    (arena,) = open_arena(num_envs, action, leaves)
    arrays = [arena.rewards, arena.terminated, arena.truncated, arena.actions(action.dtype.str)]
    arrays += [array for array in arena.observations if array is not None]
    # Bools can hold two patterns only.
    arrays = [array.view(np.uint8) if array.dtype == np.bool_ else array for array in arrays]
    patterns = [
        np.frombuffer(bytes([number]) * array.itemsize, array.dtype)[0]
        for number, array in enumerate(arrays, start=1)
    ]
    for array, pattern in zip(arrays, patterns, strict=True):
        array[...] = pattern
    for array, pattern in zip(arrays, patterns, strict=True):
        assert (array == pattern).all()


@given(st.integers(1, 9), st.lists(array_leaves | object_leaves, max_size=4))
def test_observations_have_a_row_per_slot_of_their_leaf(num_envs, leaves):
    (arena,) = open_arena(num_envs, None, leaves)
    for leaf, array in zip(leaves, arena.observations, strict=True):
        expected = ((num_envs, *leaf.shape), leaf.dtype) if leaf.is_array else None
        assert (None if array is None else (array.shape, array.dtype)) == expected


@pytest.mark.parametrize("slots", [(1, 2), (0, 2)])
def test_what_a_worker_wrote_without_an_answer_is_taken_back(slots):
    leaves = [BOX, Leaf((), None, ()), DISCRETE]
    head, worker = open_arena(4, None, leaves, maps=2)
    for array in (head.observations[0], head.observations[2]):
        array[...] = 1
    worker.begin_to_write(slots, place=1, request=5)
    for array in (worker.observations[0], worker.observations[2]):
        array[list(slots)] = 2
    # Somebody else's request, and one of its own that it has answered.
    head.take_back(slots, place=0, request=5)
    head.take_back(slots, place=1, request=4)
    assert (head.observations[0][list(slots)] == 2).all()
    head.take_back(slots, place=1, request=5)
    for array in (head.observations[0], head.observations[2]):
        assert (array == 1).all()


BOX = leaves_of(spaces.Box(-1.0, 1.0, (3,), np.float32))[0]
DISCRETE = leaves_of(spaces.Discrete(5))[0]


@pytest.mark.parametrize("dtype", ["?", "|i1", "<i4", "<i8", "<f4", "<f8", "<f2", "<f16"])
def test_actions_of_any_dtype_that_fits_the_space_reach_the_worker(dtype):
    head, worker = open_arena(4, BOX, [], maps=2)
    actions = np.arange(12).reshape(4, 3).astype(dtype)
    head.actions(dtype)[...] = actions
    assert worker.actions(dtype).dtype == np.dtype(dtype)
    np.testing.assert_array_equal(worker.actions(dtype), actions)


def test_the_action_of_a_slot_stays_when_another_slot_gets_one_of_another_dtype():
    # With partial batches a worker may not yet have read the first when the second comes.
    head, worker = open_arena(4, DISCRETE, [], maps=2)
    head.actions("<i8")[1] = 3
    head.actions("<i4")[2] = 4
    assert (worker.actions("<i8")[1], worker.actions("<i4")[2]) == (3, 4)


def test_mapping_more_than_was_allocated_is_an_error_and_no_signal():
    fd = os.memfd_create("test")
    try:
        with pytest.raises(ValueError, match="greater than file size"):
            Arena(fd, 4, 4, None, [BOX])
    finally:
        os.close(fd)


def test_more_memory_than_there_is_is_an_error_at_once():
    fd = os.memfd_create("test")
    try:
        with pytest.raises(OSError, match="bytes wanted"):
            allocate(fd, 1 << 50)
        assert os.fstat(fd).st_size == 0
    finally:
        os.close(fd)
