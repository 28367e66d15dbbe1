"""Results reach the rows of their slots, and only if they fit."""

import os

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st

from clusterenv.memory.segments import allocate
from clusterenv.memory.shared_rows import SharedRows
from clusterenv.plain.infos import unpack_infos
from clusterenv.plain.spaces import leaves_of
from clusterenv.plain.values import unpack
from clusterenv.worker.rows import _MOST_RANGES, Landing, Outcome, RowWriter

SLOTS = range(10, 15)
"""Those of the host; the worker under test is its second."""
WORKER = 1


def rows_for(space, slots=SLOTS):
    """A writer for results of this space, and the rows as the host sees them."""
    leaves = leaves_of(space)
    fd = os.memfd_create("test")
    allocate(fd, SharedRows.size_of(len(slots), None, leaves))
    worker, host = (SharedRows(fd, slots, 2, None, leaves) for _ in range(2))
    os.close(fd)
    return RowWriter(worker, WORKER, leaves, trusted=False), host


def outcome_of(observations, **rest):
    count = len(observations)
    no = [False] * count
    fields = {"rewards": [0.0] * count, "terminated": no, "truncated": no, **rest}
    return Outcome(observations, **fields)


def results(space, slots, outcome):
    """(rewards, terminated, truncated, *leaves) of these slots, as the head would see them."""
    writer, host = rows_for(space)
    writer.write(1, slots, outcome)
    return [array[host.rows_of(slots)] for array in host.results.arrays]


@pytest.mark.parametrize("slots", [(11, 12, 13), (10, 12, 14)], ids=["neighbours", "scattered"])
def test_every_result_lies_in_its_slots_row(slots):
    outcome = outcome_of(
        [np.full(2, slot - 10, np.float32) for slot in slots],
        rewards=[0.5, np.float32(1.5), 2],
        terminated=[True, np.False_, False],
        truncated=[False, False, True],
    )
    rewards, terminated, truncated, observations = results(spaces.Box(0, 9, (2,)), slots, outcome)
    assert rewards.tolist() == [0.5, 1.5, 2.0]
    assert terminated.tolist() == [True, False, False]
    assert truncated.tolist() == [False, False, True]
    assert observations.tolist() == [[slot - 10, slot - 10] for slot in slots]


@pytest.mark.parametrize("slots", [(11, 12), (11, 13)], ids=["neighbours", "scattered"])
def test_rows_of_other_slots_are_left_alone(slots):
    writer, host = rows_for(spaces.Box(0, 9, (2,)))
    host.results.observations[0][:] = 7
    writer.write(1, slots, outcome_of([np.zeros(2), np.zeros(2)]))
    others = [slot - 10 for slot in SLOTS if slot not in slots]
    assert host.results.observations[0][others].tolist() == [[7, 7]] * 3


def test_results_that_landed_already_are_not_written_again():
    writer, host = rows_for(spaces.Box(0, 9, (2,)))
    landing = writer.landing(1, (11, 12))
    landing.observations[...] = 3
    landing.outcome.observations = None
    writer.write(1, (11, 12), landing.outcome)
    assert host.results.observations[0][:, 0].tolist() == [0, 3, 3, 0, 0]


@pytest.mark.parametrize(
    ("space", "slots", "lands"),
    [
        (spaces.Box(0, 9, (2,)), (11, 12), True),
        (spaces.Box(0, 9, (2,)), (11, 13), False),
        (spaces.Discrete(3), (11, 12), False),
        (spaces.Dict(a=spaces.Box(0, 9, (2,))), (11, 12), False),
        (spaces.Text(3), (11, 12), False),
    ],
    ids=str,
)
def test_single_arrays_of_neighbours_land_in_their_rows(space, slots, lands):
    writer, host = rows_for(space)
    landing = writer.landing(1, slots)
    assert (landing is not None) == lands
    if lands:
        assert isinstance(landing, Landing)
        landing.observations[...] = 5
        landing.rewards[...] = 6
        landing.terminated[...] = landing.truncated[...] = True
        rows = host.rows_of(slots)
        assert (host.results.observations[0][rows] == 5).all()
        assert host.results.rewards.tolist() == [0, 6, 6, 0, 0]
        assert host.results.terminated.tolist() == [False, True, True, False, False]


@pytest.mark.parametrize("slots", [(11, 12), (11, 13)], ids=["neighbours", "scattered"])
def test_actions_are_those_of_the_slots(slots):
    box, discrete = spaces.Box(0, 9, (2,)), leaves_of(spaces.Discrete(99))[0]
    fd = os.memfd_create("test")
    allocate(fd, SharedRows.size_of(len(SLOTS), discrete, leaves_of(box)))
    host, worker = (SharedRows(fd, SLOTS, 2, discrete, leaves_of(box)) for _ in range(2))
    os.close(fd)
    writer = RowWriter(worker, WORKER, leaves_of(box), trusted=False)
    dtype = host.put_actions(np.array(SLOTS))
    actions, _ = writer.begin(1, slots, dtype)
    assert actions.tolist() == list(slots)


def test_any_number_of_ranges_can_be_written_to():
    slots = range(10, 10 + 3 * _MOST_RANGES)
    writer, host = rows_for(spaces.Box(0, 999, (2,)), slots)
    for slot in slots:
        writer.write(slot, (slot,), outcome_of([np.full(2, slot)]))
    assert host.results.observations[0][:, 0].tolist() == list(slots)
    assert len(writer._ranges) <= _MOST_RANGES


some_slots = st.sets(st.sampled_from(SLOTS), min_size=1).map(sorted).map(tuple)
ends = st.sampled_from(["answered", "answered and idle", "killed"])


@given(st.lists(st.tuples(some_slots, ends), max_size=20))
@example([((12,), "answered"), ((10,), "answered and idle"), ((12,), "killed")])
def test_what_a_killed_worker_wrote_without_an_answer_is_taken_back(writes):
    space = spaces.Box(0, 99, (2,))
    writer, host = rows_for(space)
    expected = np.zeros(len(SLOTS))
    for request, (slots, end) in enumerate(writes, start=1):
        writer.write(request, slots, outcome_of([np.full(2, request)] * len(slots)))
        if end == "killed":
            host.take_back(slots, WORKER, request)
            writer = RowWriter(host, WORKER, leaves_of(space), trusted=False)
        else:
            expected[[slot - 10 for slot in slots]] = request
        if end == "answered and idle":
            writer.keep()
            # It may be killed right now: what was answered stays.
            host.take_back(slots, WORKER, request)
        assert (host.results.observations[0] == expected[:, None]).all()


@given(st.lists(st.tuples(some_slots, st.booleans()), max_size=20))
def test_what_landed_without_an_answer_is_taken_back(writes):
    space = spaces.Box(0, 99, (2,))
    writer, host = rows_for(space)
    expected = np.zeros(len(SLOTS))
    for request, (chosen, is_killed) in enumerate(writes, start=1):
        slots = tuple(range(chosen[0], chosen[-1] + 1))
        writer.landing(request, slots).observations[...] = request
        if is_killed:
            host.take_back(slots, WORKER, request)
            writer = RowWriter(host, WORKER, leaves_of(space), trusted=False)
        else:
            expected[[slot - 10 for slot in slots]] = request
            writer.keep()
        assert (host.results.observations[0] == expected[:, None]).all()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 3), (3, 0), (2, 0, 2), (2, 3, 4)])
def test_observations_of_any_shape_are_stacked(shape):
    space = spaces.Box(-1.0, 1.0, shape)
    observations = [space.sample() for _ in range(3)]
    *_, stacked = results(space, (11, 12, 13), outcome_of(observations))
    np.testing.assert_array_equal(stacked, np.stack(observations))


FITS_AFTER_A_CAST = {
    "float64 in float32": (spaces.Box(-9, 9, (2,)), [np.array([1.5, 2.5]), np.array([3.5, 4.5])]),
    "ints in float32": (spaces.Box(-9, 9, (2,)), [np.array([1, 2]), np.array([3, 4])]),
    "lists": (spaces.Box(-9, 9, (2,)), [[1.0, 2.0], [3.0, 4.0]]),
    "Python ints": (spaces.Discrete(9), [1, 2]),
    "numpy ints": (spaces.Discrete(9), [np.int32(1), np.uint8(2)]),
    "0-d arrays": (spaces.Discrete(9), [np.array(1), np.array(2)]),
}


@pytest.mark.parametrize(
    ("space", "observations"), FITS_AFTER_A_CAST.values(), ids=FITS_AFTER_A_CAST
)
def test_what_numpy_would_stack_into_the_space_is_taken(space, observations):
    expected = np.empty((2, *space.shape), space.dtype)
    np.stack(observations, out=expected)
    *_, stacked = results(space, (11, 12), outcome_of(observations))
    np.testing.assert_array_equal(stacked, expected)


MISFITS = {
    "another shape": (spaces.Box(-9, 9, (3,)), [np.zeros(2), np.zeros(2)]),
    "shapes that differ": (spaces.Box(-9, 9, (3,)), [np.zeros(2), np.zeros(4)]),
    "rows that differ": (spaces.Box(-9, 9, (2, 2)), [np.zeros((1, 2)), np.zeros((3, 2))]),
    "one dimension more": (spaces.Box(-9, 9, (3,)), [np.zeros((3, 1)), np.zeros((3, 1))]),
    "one dimension less": (spaces.Box(-9, 9, (1,)), [0.0, 0.0]),
    "an array in a Discrete": (spaces.Discrete(3), [np.zeros(1, int), np.zeros(1, int)]),
    "floats in a Discrete": (spaces.Discrete(3), [1.5, 2.0]),
    "floats in an image": (spaces.Box(0, 255, (2,), np.uint8), [np.zeros(2), np.zeros(2)]),
    "text": (spaces.Box(-9, 9, (2,)), [["a", "b"], ["a", "b"]]),
    "nothing": (spaces.Discrete(3), [None, None]),
}


@pytest.mark.parametrize(("space", "observations"), MISFITS.values(), ids=MISFITS)
def test_observations_that_do_not_fit_are_refused(space, observations):
    with pytest.raises((TypeError, ValueError), match="does not fit the observation space"):
        results(space, (11, 12), outcome_of(observations))


PLACES = spaces.Dict(place=spaces.Discrete(9), near=spaces.Tuple((spaces.Discrete(9),) * 2))
INCOMPLETE = {
    "a key": ({"place": 1}, r"observation has no 'near', .*; it is a dict with \['place'\]"),
    "a part": ({"place": 1, "near": (1,)}, r"observation\['near'\] has no 1, .*; it is a tuple"),
    "all": (np.zeros(3), "observation has no 'place', .*; it is a ndarray"),
}


@pytest.mark.parametrize(("observation", "text"), INCOMPLETE.values(), ids=INCOMPLETE)
def test_what_an_observation_lacks_is_named(observation, text):
    good = {"place": 1, "near": (1, 2)}
    with pytest.raises(ValueError, match=text):
        results(PLACES, (11, 12), outcome_of([good, observation]))


def test_one_env_alone_gets_no_more_freedom():
    with pytest.raises((TypeError, ValueError), match="does not fit the observation space"):
        results(spaces.Discrete(3), (11,), outcome_of([np.zeros(1, int)]))


def test_the_error_names_the_place_what_was_expected_and_what_came():
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple((spaces.Box(-9, 9, (3,)),)))
    observations = [{"a": 1, "b": (np.zeros(2),)}] * 2
    text = r"observation\['b'\]\[0\] does not fit .*expected \(3,\) float32, got \(2,\) float64"
    with pytest.raises(ValueError, match=text):
        results(space, (10, 11), outcome_of(observations))


def test_what_is_no_array_travels_packed():
    space = spaces.Dict(a=spaces.Text(3), b=spaces.Discrete(3))
    writer, host = rows_for(space)
    outcome = outcome_of([{"a": "x", "b": 1}, {"a": "y", "b": 2}], infos=[(11, {"k": 3})])
    writer.write(7, (11, 12), outcome)
    reply = writer.rest(7, outcome)
    assert reply.request == 7
    assert unpack(reply.objects, allow_pickle=False) == [["x", "y"]]
    assert unpack_infos(reply.infos, allow_pickle=False).by_slot() == [(11, {"k": 3})]
    assert host.results.observations[1].tolist() == [0, 1, 2, 0, 0]


@pytest.mark.parametrize(
    ("space", "infos", "not_all"),
    [
        (spaces.Discrete(3), [], False),
        (spaces.Discrete(3), [(11, {"k": 3})], True),
        (spaces.Text(3), [], True),
        (spaces.Dict(a=spaces.Discrete(3), b=spaces.Text(3)), [], True),
    ],
    ids=str,
)
def test_rows_are_all_where_there_is_no_info_and_no_object(space, infos, not_all):
    writer, _ = rows_for(space)
    assert writer.are_not_all(outcome_of([None], infos=infos)) == not_all


def test_rows_that_are_all_need_no_more_words():
    writer, _ = rows_for(spaces.Discrete(3))
    reply = writer.rest(7, outcome_of([1]))
    assert (reply.objects, reply.infos, reply.acted) == (b"", b"", b"")
