"""The rows of a host's slots, wherever these begin: apart from each other, and taken back."""

import os

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.memory.answer_flags import MOST_PARTS
from clusterenv.memory.segments import allocate
from clusterenv.memory.shared_rows import RowRange, SharedRows
from clusterenv.plain.row_layout import RowLayout
from clusterenv.plain.spaces import Leaf, leaves_of

BOX = leaves_of(spaces.Box(-1.0, 1.0, (3,), np.float32))[0]
DISCRETE = leaves_of(spaces.Discrete(5))[0]
OBJECT = Leaf((), None, ())

array_leaves = st.builds(
    Leaf,
    path=st.just(()),
    dtype=st.sampled_from(["?", "u1", "i2", "f4", "f8", "c16"]).map(np.dtype),
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
some_slots = st.builds(
    lambda first, count: range(first, first + count), st.integers(0, 1000), st.integers(1, 9)
)


def open_rows(slots, action, leaves, maps=1, num_workers=None):
    fd = os.memfd_create("test")
    try:
        allocate(fd, SharedRows.size_of(len(slots), action, leaves))
        workers = len(slots) if num_workers is None else num_workers
        return [SharedRows(fd, slots, workers, action, leaves) for _ in range(maps)]
    finally:
        os.close(fd)


def flip(array):
    array.reshape(-1).view(np.uint8)[...] ^= 0xFF


@given(some_slots, array_leaves, st.lists(array_leaves | st.just(OBJECT), max_size=4))
def test_nothing_in_the_memory_overlaps_anything_else(slots, action, leaves):
    (rows,) = open_rows(slots, action, leaves)
    arrays = [*rows.results.arrays, rows._action_bytes]
    arrays += [before for _, before in rows.now_and_before]
    flags, parts = rows.flags, rows.part_flags
    # Those of the host are shared on purpose.
    words = [flags._words, flags._host, flags._cores, parts.answers, parts._counts, rows._writes]
    arrays += [np.frombuffer(part, np.uint8) for part in words]
    for array in arrays:
        flip(array)
    # What overlaps would have been flipped twice somewhere.
    for array in arrays:
        assert np.ascontiguousarray(array).view(np.uint8).tobytes() == b"\xff" * array.nbytes


def test_two_workers_flags_and_calls_have_words_of_their_own():
    host, worker = open_rows(range(8, 11), None, [BOX], maps=2)
    for place in range(3):
        worker.flags.put(place, 10 + place, says_more=False)
        worker.part_flags.put(place, MOST_PARTS - 1, 20 + place, says_more=False)
    for place in range(3):
        assert host.flags.are_silent([place], 10 + place)
        assert host.part_flags.answers[place * MOST_PARTS + MOST_PARTS - 1] == 20 + place
    assert host.part_flags.total() == 3


def test_a_worker_may_have_many_slots():
    host, worker = open_rows(range(8, 16), None, [BOX], maps=2, num_workers=2)
    for place in range(2):
        worker.flags.put(place, 1, says_more=False)
    assert host.flags.are_silent([0, 1], 1)
    assert not host.flags.are_several_missing(1)


@given(some_slots, st.data())
def test_an_action_reaches_its_slot_and_no_other(slots, data):
    host, worker = open_rows(slots, DISCRETE, [BOX], maps=2)
    chosen = sorted(data.draw(st.sets(st.sampled_from(slots), min_size=1)))
    host.put_actions(np.full(len(slots), -1))
    dtype = host.put_actions(np.array(chosen), chosen)
    expected = [slot if slot in chosen else -1 for slot in slots]
    assert worker.copy_actions(dtype, list(slots)).tolist() == expected
    assert worker.copy_actions(dtype, chosen).tolist() == chosen


@pytest.mark.parametrize("dtype", ["?", "|i1", "<i4", "<i8", "<f4", "<f8", "<f2", "<f16"])
def test_actions_of_any_dtype_that_fits_the_space_reach_the_worker(dtype):
    host, worker = open_rows(range(4, 8), BOX, [], maps=2)
    actions = np.arange(12).reshape(4, 3).astype(dtype)
    said = host.put_actions(actions)
    copy = worker.copy_actions(said, range(4, 8))
    assert copy.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(copy, actions)


def test_actions_of_changing_dtypes_are_each_read_as_they_were_put():
    host, worker = open_rows(range(2), DISCRETE, [], maps=2)
    for actions in (np.array([1, 2]), np.array([3, 4], np.int32), np.array([5, 6])):
        assert worker.copy_actions(host.put_actions(actions), [0, 1]).tolist() == actions.tolist()


def test_the_action_of_a_slot_stays_when_another_slot_gets_one_of_another_dtype():
    # With partial batches a worker may not yet have read the first when the second comes.
    host, worker = open_rows(range(4, 8), DISCRETE, [], maps=2)
    host.put_actions(np.array([3]), [5])
    host.put_actions(np.array([4], np.int32), [6])
    assert worker.copy_actions("<i8", [5]).tolist() == [3]
    assert worker.copy_actions("<i4", [6]).tolist() == [4]


def test_the_actions_an_env_gets_are_its_own():
    host, worker = open_rows(range(4, 6), BOX, [], maps=2)
    dtype = host.put_actions(np.ones((2, 3), np.float32))
    for copy in (worker.copy_actions(dtype, [4, 5]), RowRange(worker, [4, 5]).copy_actions(dtype)):
        copy[...] = 9
    assert (worker.copy_actions(dtype, [4, 5]) == 1).all()


# What travels to another machine, and from there.


@pytest.mark.parametrize("dtype", ["<i8", "|i1", "<f4", "<f8"])
def test_actions_that_came_as_bytes_are_read_as_what_they_are(dtype):
    (rows,) = open_rows(range(4, 8), BOX, [])
    actions = np.arange(6).reshape(2, 3).astype(dtype)
    read = rows.read_actions(dtype, 2, actions.tobytes())
    assert read.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(read, actions)


@pytest.mark.parametrize(
    ("dtype", "count", "size"),
    [("<f4", 2, 23), ("<f4", 2, 25), ("<f4", 3, 24), ("<f8", 2, 24), ("|O", 2, 48), ("x", 2, 24)],
)
def test_bytes_that_are_no_actions_are_refused(dtype, count, size):
    (rows,) = open_rows(range(4, 8), BOX, [])
    with pytest.raises(ProtocolError):
        rows.read_actions(dtype, count, bytes(size))


def test_actions_that_are_no_arrays_cannot_come_as_bytes():
    (rows,) = open_rows(range(4, 8), None, [BOX])
    with pytest.raises(ProtocolError):
        rows.read_actions("<f4", 2, bytes(8))


@given(some_slots, st.data())
def test_a_copy_of_some_rows_is_laid_out_as_if_they_were_all(slots, data):
    (rows,) = open_rows(slots, None, [BOX, OBJECT, DISCRETE])
    results = rows.results
    results.rewards[...] = results.observations[2][...] = np.array(slots)
    results.observations[0][...] = np.array(slots)[:, None]
    results.terminated[...] = np.array(slots) % 2 == 0
    chosen = sorted(data.draw(st.sets(st.sampled_from(slots), min_size=1)))
    memory = rows.copy_of(chosen)
    results.rewards[...] = -1
    copy = RowLayout([BOX, OBJECT, DISCRETE]).view(memory, len(chosen))
    assert copy.rewards.tolist() == copy.observations[2].tolist() == chosen
    assert copy.observations[0].tolist() == [[slot] * 3 for slot in chosen]
    assert copy.terminated.tolist() == [slot % 2 == 0 for slot in chosen]
    assert not copy.truncated.any()


# Some rows of them.


@given(some_slots, st.data())
def test_a_range_shows_the_rows_of_its_slots_and_no_others(slots, data):
    first, last = sorted(data.draw(st.tuples(*[st.sampled_from(slots)] * 2)))
    host, worker = open_rows(slots, DISCRETE, [BOX, OBJECT], maps=2)
    part = RowRange(worker, range(first, last + 1))
    part.rewards[...] = 5
    part.terminated[...] = part.truncated[...] = True
    part.observations[0][...] = 7
    assert part.observations[1] is None
    inside = [first <= slot <= last for slot in slots]
    results = host.results
    assert (results.rewards == 5).tolist() == inside
    assert results.terminated.tolist() == results.truncated.tolist() == inside
    assert (results.observations[0] == 7).all(axis=1).tolist() == inside
    assert (results.observations[0] == 0).all(axis=1).tolist() == [not one for one in inside]


def test_a_range_reads_the_actions_of_its_slots():
    host, worker = open_rows(range(10, 15), DISCRETE, [BOX], maps=2)
    part = RowRange(worker, (12, 13))
    dtype = host.put_actions(np.arange(10, 15))
    assert part.copy_actions(dtype).tolist() == [12, 13]
    host.put_actions(np.array([7]), [13])
    assert part.copy_actions(dtype).tolist() == [12, 7]


# What was written without an answer.


@pytest.mark.parametrize("slots", [(11, 12), (10, 12)], ids=["neighbours", "scattered"])
def test_what_a_worker_wrote_without_an_answer_is_taken_back(slots):
    host, worker = open_rows(range(10, 14), None, [BOX, OBJECT, DISCRETE], maps=2)
    rows = [slot - 10 for slot in slots]
    arrays = [host.results.observations[0], host.results.observations[2]]
    for array in arrays:
        array[...] = 1
    worker.begin_to_write(slots, worker=1, request=5)
    for array in (worker.results.observations[0], worker.results.observations[2]):
        array[rows] = 2
    # Somebody else's request, and one of its own that it has answered.
    host.take_back(slots, worker=0, request=5)
    host.take_back(slots, worker=1, request=4)
    assert (arrays[0][rows] == 2).all()
    host.take_back(slots, worker=1, request=5)
    for array in arrays:
        assert (array == 1).all()


def test_taking_back_leaves_the_rows_of_other_workers_as_they_are():
    host, worker = open_rows(range(10, 14), None, [BOX], maps=2)
    worker.begin_to_write((10, 11), worker=0, request=5)
    worker.results.observations[0][...] = 2
    host.take_back((10, 11), worker=0, request=5)
    assert host.results.observations[0][:, 0].tolist() == [0, 0, 2, 2]


def test_a_range_keeps_what_its_rows_say():
    host, worker = open_rows(range(10, 14), None, [BOX], maps=2)
    host.results.observations[0][...] = 1
    RowRange(worker, (11, 12)).keep()
    worker.note_write(1, 5)
    worker.results.observations[0][...] = 2
    host.take_back((11, 12), worker=1, request=5)
    assert host.results.observations[0][:, 0].tolist() == [2, 1, 1, 2]


def test_mapping_more_than_was_allocated_is_an_error_and_no_signal():
    fd = os.memfd_create("test")
    try:
        with pytest.raises(ValueError, match="greater than file size"):
            SharedRows(fd, range(4), 4, None, [BOX])
    finally:
        os.close(fd)
