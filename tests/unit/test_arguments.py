"""What the user passes is checked before anything is sent."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from clusterenv.arguments import (
    actions_by_row,
    seed_by_slot,
    slots_of,
    slots_to_reset,
    values_by_slot,
)
from clusterenv.plain.spaces import leaves_of
from tests.equality import assert_same

# Seeds.


@pytest.mark.parametrize("seed", [7, np.int64(7)])
def test_slot_i_gets_seed_plus_i(seed):
    assert_same(seed_by_slot(seed, 3), [7, 8, 9])


def test_no_seed_is_no_seed_for_any_slot():
    assert seed_by_slot(None, 3) == [None] * 3


@pytest.mark.parametrize("seeds", [[5, None, 3], (5, None, 3), np.array([5, None, 3], object)])
def test_a_list_of_seeds_goes_slot_by_slot(seeds):
    assert_same(seed_by_slot(seeds, 3), [5, None, 3])


@pytest.mark.parametrize("seed", [1.5, "7", {}, [1, 2.5, 3], np.array([1.0, 2.0, 3.0])])
def test_what_is_no_seed_is_refused_with_what_is_one(seed):
    with pytest.raises(TypeError, match=r"seed must be None, a whole number .* num_envs=3 slots"):
        seed_by_slot(seed, 3)


def test_a_list_of_seeds_of_another_length_is_refused():
    with pytest.raises(ValueError, match="must match num_envs=3 but got length=2"):
        seed_by_slot([1, 2], 3)


# Masks.


def test_without_a_mask_all_slots_are_reset():
    assert slots_to_reset({"x": 1}, 3) == ([0, 1, 2], {"x": 1})
    assert slots_to_reset(None, 3) == ([0, 1, 2], None)


def test_a_mask_picks_the_slots_and_leaves_the_options():
    mask = np.array([True, False, True])
    assert_same(slots_to_reset({"x": 1, "reset_mask": mask}, 3), ([0, 2], {"x": 1}))


@pytest.mark.parametrize(
    ("mask", "kind", "text"),
    [
        ([True, False, True], TypeError, "must be a numpy array, got <class 'list'>"),
        (np.array([True]), ValueError, r"must have shape `\(3,\)`, got \(1,\)"),
        (np.array([1, 0, 1]), TypeError, "must have `dtype=np.bool_`, got int64"),
        (np.zeros(3, bool), ValueError, "at least one True"),
    ],
    ids=["a list", "another shape", "another dtype", "no True"],
)
def test_a_mask_that_is_none_is_refused_with_gymnasiums_words(mask, kind, text):
    with pytest.raises(kind, match=text):
        slots_to_reset({"reset_mask": mask}, 3)


# Actions.


def by_row(actions, space, count=2):
    leaves = leaves_of(space)
    leaf = leaves[0] if leaves[0].is_array and not leaves[0].path else None
    return actions_by_row(actions, count, leaf, space, batch_space(space, count))


FITTING = {
    "a list for a Discrete": ([1, 0], spaces.Discrete(2)),
    "int32 for a Discrete": (np.array([1, 0], np.int32), spaces.Discrete(2)),
    "bools for a Discrete": (np.array([True, False]), spaces.Discrete(2)),
    "float64 for a Box of float32": (np.zeros((2, 3)), spaces.Box(-1, 1, (3,))),
    "ints for a Box of float32": (np.zeros((2, 3), int), spaces.Box(-1, 1, (3,))),
    "ints for a Box of uint8": ([[1, 2], [3, 255]], spaces.Box(0, 255, (2,), np.uint8)),
    "ints for a Discrete of uint8": (np.array([1, 0]), spaces.Discrete(2, dtype=np.uint8)),
    "bools for a MultiBinary": (np.ones((2, 3), bool), spaces.MultiBinary(3)),
}


@pytest.mark.parametrize(("actions", "space"), FITTING.values(), ids=FITTING)
def test_actions_keep_the_dtype_that_the_user_gave_them(actions, space):
    assert_same(by_row(actions, space), np.asarray(actions))


@pytest.mark.parametrize(
    ("actions", "space", "kind", "text"),
    [
        ([1, 0, 1], spaces.Discrete(2), ValueError, r"shape \(3,\), expected \(2,\).* 2 envs"),
        (1, spaces.Discrete(2), TypeError, r"got 1 instead of actions of shape \(2,\): one of Dis"),
        (np.zeros((2, 4)), spaces.Box(-1, 1, (3,)), ValueError, r"\(2, 4\), expected \(2, 3\)"),
        ([0.5, 1.5], spaces.Discrete(2), TypeError, "float64, which does not fit Discrete"),
        (["a", "b"], spaces.Discrete(2), TypeError, "does not fit Discrete"),
        ([None, None], spaces.Discrete(2), TypeError, "object, which does not fit Discrete"),
    ],
    ids=["too many", "no batch", "another shape", "floats", "text", "objects"],
)
def test_actions_that_do_not_fit_are_refused(actions, space, kind, text):
    with pytest.raises(kind, match=text):
        by_row(actions, space)


def test_actions_of_a_nested_space_become_a_list_of_actions():
    space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,)))
    batch = {"a": np.array([1, 2]), "b": np.array([[0.0, 0.5], [1.0, -1.0]], np.float32)}
    first, second = by_row(batch, space)
    assert_same(first, {"a": np.int64(1), "b": np.array([0.0, 0.5], np.float32)})
    assert_same(second, {"a": np.int64(2), "b": np.array([1.0, -1.0], np.float32)})


def test_too_many_actions_of_a_nested_space_are_refused():
    space = spaces.Tuple((spaces.Discrete(3),))
    with pytest.raises(ValueError, match="got 3 actions for 2 envs"):
        by_row((np.array([1, 2, 0]),), space)


# Attributes.


@pytest.mark.parametrize("values", [[1, 2], (1, 2)])
def test_a_list_gives_each_slot_its_value(values):
    assert list(values_by_slot(values, 2)) == [1, 2]


@pytest.mark.parametrize("value", [5, "ab", None, {"a": 1}])
def test_anything_else_is_the_same_for_all_slots(value):
    assert values_by_slot(value, 2) == [value, value]


def test_a_list_of_values_of_another_length_is_refused():
    with pytest.raises(ValueError, match="Got `3` values for 2 environments"):
        values_by_slot([1, 2, 3], 2)


# Slots.


@pytest.mark.parametrize("env_id", [np.array([2, 0]), [2, 0], (2, np.int32(0))])
def test_slots_keep_the_order_in_which_they_are_named(env_id):
    assert_same(slots_of(env_id), [2, 0])


def test_one_slot_needs_no_list():
    assert slots_of(1) == [1]


@pytest.mark.parametrize("env_id", [[0.5, 1.0], [True, False]], ids=["floats", "a mask"])
def test_what_is_no_slot_number_is_refused(env_id):
    with pytest.raises((TypeError, ValueError)):
        slots_of(env_id)
