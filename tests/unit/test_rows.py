"""Results reach their rows in the arena or in frames, and only if they fit."""

import os

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st

from clusterenv.plain.infos import unpack_infos
from clusterenv.plain.spaces import leaves_of
from clusterenv.plain.values import unpack
from clusterenv.wire.arena import Arena
from clusterenv.wire.codec import read_arrays
from clusterenv.wire.shared_memory import allocate
from clusterenv.worker.rows import ArenaRows, FrameRows, Outcome

NUM_ENVS = 5
every_kind = pytest.mark.parametrize("kind", ["frames", "arena"])


def rows_for(space, kind):
    """Something that takes outcomes, and a function that finds a slot's observation leaves."""
    leaves = leaves_of(space)
    if kind == "frames":
        return FrameRows(leaves, trusted=False), None
    fd = os.memfd_create("test")
    allocate(fd, Arena.size_of(NUM_ENVS, None, leaves))
    arena = Arena(fd, NUM_ENVS, 1, None, leaves)
    os.close(fd)
    return ArenaRows(arena, 0, leaves, trusted=False), arena


def outcome_of(observations, **rest):
    count = len(observations)
    no = [False] * count
    fields = {"rewards": [0.0] * count, "terminated": no, "truncated": no, **rest}
    return Outcome(observations, **fields)


def results(space, kind, slots, outcome):
    """(rewards, terminated, truncated, *leaves) of these slots, as the head would see them."""
    rows, arena = rows_for(space, kind)
    reply, frames = rows.reply(1, slots, outcome)
    if arena is None:
        return read_arrays(reply.arrays, frames)
    assert (reply.arrays, frames) == ((), [])
    arrays = [arena.rewards, arena.terminated, arena.truncated]
    arrays += [array for array in arena.observations if array is not None]
    return [array[list(slots)] for array in arrays]


@every_kind
@pytest.mark.parametrize("slots", [(1, 2, 3), (0, 2, 4)], ids=["neighbours", "scattered"])
def test_every_result_lies_in_its_slots_row(kind, slots):
    outcome = outcome_of(
        [np.full(2, slot, np.float32) for slot in slots],
        rewards=[0.5, np.float32(1.5), 2],
        terminated=[True, np.False_, False],
        truncated=[False, False, True],
    )
    rewards, terminated, truncated, observations = results(
        spaces.Box(0, 9, (2,)), kind, slots, outcome
    )
    assert rewards.tolist() == [0.5, 1.5, 2.0]
    assert terminated.tolist() == [True, False, False]
    assert truncated.tolist() == [False, False, True]
    assert observations.tolist() == [[slot, slot] for slot in slots]


def test_rows_of_other_slots_are_left_alone():
    rows, arena = rows_for(spaces.Box(0, 9, (2,)), "arena")
    arena.observations[0][:] = 7
    rows.reply(1, (1, 3), outcome_of([np.zeros(2), np.zeros(2)]))
    assert arena.observations[0][[0, 2, 4]].tolist() == [[7, 7]] * 3


some_slots = st.sets(st.integers(0, NUM_ENVS - 1), min_size=1).map(sorted).map(tuple)
ends = st.sampled_from(["answered", "answered and idle", "killed"])


@given(st.lists(st.tuples(some_slots, ends), max_size=20))
@example([((2,), "answered"), ((0,), "answered and idle"), ((2,), "killed")])
def test_what_a_killed_worker_wrote_without_an_answer_is_taken_back(writes):
    space = spaces.Box(0, 99, (2,))
    rows, arena = rows_for(space, "arena")
    expected = np.zeros(NUM_ENVS)
    for request, (slots, end) in enumerate(writes, start=1):
        rows.reply(request, slots, outcome_of([np.full(2, request)] * len(slots)))
        if end == "killed":
            arena.take_back(slots, place=0, request=request)
            rows = ArenaRows(arena, 0, leaves_of(space), trusted=False)
        else:
            expected[list(slots)] = request
        if end == "answered and idle":
            rows.keep()
            # It may be killed right now: what was answered stays.
            arena.take_back(slots, place=0, request=request)
        assert (arena.observations[0] == expected[:, None]).all()


@every_kind
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 3), (3, 0), (2, 0, 2), (2, 3, 4)])
def test_observations_of_any_shape_are_stacked(kind, shape):
    space = spaces.Box(-1.0, 1.0, shape)
    observations = [space.sample() for _ in range(3)]
    *_, stacked = results(space, kind, (1, 2, 3), outcome_of(observations))
    np.testing.assert_array_equal(stacked, np.stack(observations))


FITS_AFTER_A_CAST = {
    "float64 in float32": (spaces.Box(-9, 9, (2,)), [np.array([1.5, 2.5]), np.array([3.5, 4.5])]),
    "ints in float32": (spaces.Box(-9, 9, (2,)), [np.array([1, 2]), np.array([3, 4])]),
    "lists": (spaces.Box(-9, 9, (2,)), [[1.0, 2.0], [3.0, 4.0]]),
    "Python ints": (spaces.Discrete(9), [1, 2]),
    "numpy ints": (spaces.Discrete(9), [np.int32(1), np.uint8(2)]),
    "0-d arrays": (spaces.Discrete(9), [np.array(1), np.array(2)]),
}


@every_kind
@pytest.mark.parametrize(
    ("space", "observations"), FITS_AFTER_A_CAST.values(), ids=FITS_AFTER_A_CAST
)
def test_what_numpy_would_stack_into_the_space_is_taken(kind, space, observations):
    expected = np.empty((2, *space.shape), space.dtype)
    np.stack(observations, out=expected)
    *_, stacked = results(space, kind, (1, 2), outcome_of(observations))
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


@every_kind
@pytest.mark.parametrize(("space", "observations"), MISFITS.values(), ids=MISFITS)
def test_observations_that_do_not_fit_are_refused(kind, space, observations):
    with pytest.raises((TypeError, ValueError), match="does not fit the observation space"):
        results(space, kind, (1, 2), outcome_of(observations))


def test_one_env_alone_gets_no_more_freedom():
    with pytest.raises((TypeError, ValueError), match="does not fit the observation space"):
        results(spaces.Discrete(3), "frames", (1,), outcome_of([np.zeros(1, int)]))


def test_the_error_names_the_place_what_was_expected_and_what_came():
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple((spaces.Box(-9, 9, (3,)),)))
    observations = [{"a": 1, "b": (np.zeros(2),)}] * 2
    text = r"observation\['b'\]\[0\] does not fit .*expected \(3,\) float32, got \(2,\) float64"
    with pytest.raises(ValueError, match=text):
        results(space, "frames", (0, 1), outcome_of(observations))


@every_kind
def test_what_is_no_array_travels_packed(kind):
    space = spaces.Dict(a=spaces.Text(3), b=spaces.Discrete(3))
    rows, _ = rows_for(space, kind)
    outcome = outcome_of([{"a": "x", "b": 1}, {"a": "y", "b": 2}], infos=[(1, {"k": 3})])
    reply, _ = rows.reply(1, (1, 2), outcome)
    assert unpack(reply.objects, allow_pickle=False) == [["x", "y"]]
    assert unpack_infos(reply.infos, allow_pickle=False).by_slot() == [(1, {"k": 3})]


def test_frames_are_fresh_each_time():
    # libzmq reads them after the next step has begun.
    rows, _ = rows_for(spaces.Discrete(9), "frames")
    _, first = rows.reply(1, (0, 1), outcome_of([1, 2]))
    before = bytes(first[-1])
    rows.reply(2, (0, 1), outcome_of([3, 4]))
    assert bytes(first[-1]) == before
