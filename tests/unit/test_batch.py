"""Rows lie where their slots are, whatever the order in which they arrived."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.head.batch import Batch
from clusterenv.plain.row_layout import RowLayout
from clusterenv.plain.spaces import leaves_of
from tests.equality import assert_same

SPACE = spaces.Dict(
    a=spaces.Box(-9.0, 9.0, (2,), np.float32), b=spaces.Text(5), c=spaces.Discrete(9)
)


def rows_of(slots):
    """Arrays and objects of SPACE whose every number says which slot it belongs to."""
    numbers = np.asarray(slots)
    arrays = [
        numbers.astype(np.float64),
        numbers % 2 == 0,
        numbers % 3 == 0,
        np.stack([numbers, -numbers], axis=1).astype(np.float32),
        numbers.astype(np.int64),
    ]
    return arrays, [[f"t{slot}" for slot in slots]]


def batch_of(space, num_envs):
    """A batch, and the results of all slots that it shows."""
    layout = RowLayout(leaves_of(space))
    results = layout.view(bytearray(layout.size(num_envs)), num_envs)
    return Batch(space, results), results


def write(results, slots, arrays):
    """As a worker does."""
    for target, array in zip(results.arrays, arrays, strict=True):
        target[list(slots)] = array


def put(batch, results, slots):
    arrays, objects = rows_of(slots)
    write(results, slots, arrays)
    batch.put_objects(slots, objects)


arrivals = st.permutations(range(8)).flatmap(
    lambda slots: st.lists(st.integers(1, 7), max_size=3).map(
        lambda cuts: [
            sorted(slots[start:end])
            for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 8], strict=True)
            if start < end
        ]
    )
)


@given(arrivals)
def test_rows_lie_by_slot_whatever_the_order_of_arrival(groups):
    batch, results = batch_of(SPACE, 8)
    for group in groups:
        put(batch, results, group)
    (rewards, terminated, truncated, a, c), (b,) = rows_of(range(8))
    assert_same(batch.observations(copy=True), {"a": a, "b": tuple(b), "c": c})
    assert_same((batch.rewards, batch.terminated), (rewards, terminated))
    assert_same(batch.truncated, truncated)


@given(st.sets(st.integers(0, 7), min_size=1).map(sorted))
def test_a_copy_of_some_slots_is_in_slot_order(slots):
    batch, results = batch_of(SPACE, 8)
    put(batch, results, list(range(8)))
    (*numbers, a, c), (b,) = rows_of(slots)
    expected = {"a": a, "b": tuple(b), "c": c}, *numbers, {"env_id": np.array(slots)}
    assert_same(batch.results_of(slots), expected)


@given(st.lists(st.sets(st.integers(0, 79), min_size=1).map(sorted), max_size=100))
def test_a_copy_of_neighbours_is_like_that_of_others(batches):
    batch, rows_of_batch = batch_of(spaces.Box(-1, 1, ()), 80)
    for number, slots in enumerate(batches):
        neighbours = list(range(slots[0], slots[-1] + 1))
        for some in (slots, neighbours):
            rows = np.array(some, np.float64) + number
            flags = [rows % 2 == 0, rows % 3 == 0]
            write(rows_of_batch, some, [rows, *flags, rows.astype(np.float32)])
            expected = rows.astype(np.float32), rows, *flags, {"env_id": np.array(some)}
            results = batch.results_of(some)
            assert_same(results, expected)
            # They are the caller's own.
            for array in (*results[:4], results[4]["env_id"]):
                array[:] = 1
            assert_same(batch.results_of(some), expected)


def test_the_observation_of_one_slot_is_not_batched():
    batch, results = batch_of(SPACE, 8)
    put(batch, results, list(range(8)))
    expected = {"a": np.array([5, -5], np.float32), "b": "t5", "c": np.int64(5)}
    assert_same(batch.observation_of(5), expected)


@pytest.mark.parametrize(
    "space",
    [spaces.Dict(a=spaces.Discrete(3)), spaces.Tuple((spaces.Text(3),)), spaces.Dict({})],
    ids=["dict of one", "tuple of one", "empty dict"],
)
def test_observations_have_the_structure_of_their_space(space):
    batch, _ = batch_of(space, 2)
    assert_same(batch.observations(copy=True), batch.results_of([0, 1])[0])


def test_a_copy_of_the_observations_is_the_callers_own():
    batch, _ = batch_of(spaces.Box(0, 1, (2,)), 2)
    batch.observations(copy=True)[:] = 1
    assert not batch.observations(copy=True).any()


IMAGES = spaces.Box(0, 255, (84, 84, 4), np.uint8)


def images(batch, results, number):
    results.observations[0][...] = number
    return batch.observations(copy=True)


def test_large_copies_that_somebody_holds_are_left_alone():
    batch, results = batch_of(IMAGES, 8)
    held = [images(batch, results, number) for number in range(6)]
    views = [images(batch, results, number)[2:4] for number in range(6, 9)]
    tensors = [torch.from_numpy(images(batch, results, number)) for number in range(9, 12)]
    for number, array in enumerate([*held, *views, *tensors]):
        assert (np.asarray(array) == number).all()


def test_memory_of_large_copies_that_nobody_holds_is_used_again():
    batch, results = batch_of(IMAGES, 8)
    places = {images(batch, results, n).__array_interface__["data"][0] for n in range(10)}
    assert len(places) == 1


def test_without_a_copy_the_same_array_comes_again():
    batch, _ = batch_of(spaces.Box(0, 1, (2,)), 2)
    assert batch.observations(copy=False) is batch.observations(copy=False)


def test_all_results_of_a_step_are_the_callers_own_copies():
    batch, results = batch_of(spaces.Box(-9, 9, (2,)), 3)
    write(results, range(3), [np.arange(3.0), [True, False, False], [False, False, True], 5.0])
    observations, rewards, terminated, truncated, infos = batch.results(True, None)
    for array in results.arrays:
        array[...] = 0
    assert (observations == 5).all()
    assert rewards.tolist() == [0, 1, 2]
    assert (terminated.tolist(), truncated.tolist()) == ([True, False, False], [False, False, True])
    assert infos == {}


def test_what_a_policy_acts_on_is_a_copy_of_the_arrays_of_some_slots():
    batch, results = batch_of(SPACE, 8)
    put(batch, results, list(range(8)))
    leaves = batch.leaves_of([2, 3, 6])
    expected = rows_of([2, 3, 6])[0][3:]
    results.observations[0][...] = 0
    assert_same(leaves, expected)


# Replies that do not fit.


@pytest.mark.parametrize(
    "columns", [[], [["x", "y"], ["x", "y"]], [["x"]], [["x", "y", "z"]], 5, [5]]
)
def test_objects_of_another_layout_are_a_protocol_error(columns):
    with pytest.raises(ProtocolError):
        batch_of(SPACE, 4)[0].put_objects([1, 2], columns)


def test_a_lost_slot_is_truncated_with_no_reward_and_says_so():
    batch, results = batch_of(SPACE, 3)
    put(batch, results, [0, 1, 2])
    batch.mark_lost(1)
    assert (batch.rewards[1], batch.terminated[1], batch.truncated[1]) == (0.0, False, True)
    assert batch.infos.take_of([0, 1, 2])["_env_lost"].tolist() == [False, True, False]


def test_a_lost_slot_keeps_its_last_observation():
    batch, results = batch_of(SPACE, 3)
    put(batch, results, [0, 1, 2])
    before = batch.observation_of(1)
    batch.mark_lost(1)
    assert_same(batch.observation_of(1), before)
