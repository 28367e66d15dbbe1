"""Spaces travel as plain values, and their leaves know where they belong."""

from collections import OrderedDict

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.plain.spaces import (
    batch_large,
    join_leaves,
    leaves_of,
    space_from_plain,
    space_to_plain,
)
from clusterenv.plain.values import pack, unpack
from tests.environments.spaces import ALL_SPACES, CardSpace, UnitBox
from tests.equality import assert_same
from tests.unit.images import image_of

# Known to Gymnasium, but not in every test's list.
MORE_SPACES = {
    "box-bool": spaces.Box(0, 1, (2,), np.bool_),
    "box-unbounded-int": spaces.Box(-np.inf, np.inf, (2,), np.int32),
    "box-uint64": spaces.Box(0, 2**64 - 1, (1,), np.uint64),
    "discrete-int8": spaces.Discrete(5, start=-3, dtype=np.int8),
    "multidiscrete-uint8": spaces.MultiDiscrete([3, 2], dtype=np.uint8),
    "text-from-a-set": spaces.Text(4, charset=frozenset("zyxé")),
    "text-in-its-own-order": spaces.Text(4, charset="zxy"),
    "dict-of-one": spaces.Dict(a=spaces.Discrete(3)),
    "dict-empty": spaces.Dict({}),
    "dict-of-mixed-keys": spaces.Dict({1: spaces.Discrete(2), "a": spaces.Discrete(3)}),
    "tuple-empty": spaces.Tuple(()),
    "sequence-of-dict": spaces.Sequence(spaces.Dict(a=spaces.Discrete(3)), stack=True),
    "oneof-of-graph": spaces.OneOf([spaces.Graph(spaces.Discrete(2), None)]),
}
NEEDS_PICKLE = {"custom", "box-subclass", "dict-of-everything"}
EVERY_SPACE = {**ALL_SPACES, **MORE_SPACES}
every_space = pytest.mark.parametrize("name", EVERY_SPACE)


def travelled(space, name=""):
    trusted = name in NEEDS_PICKLE
    packed = pack(space_to_plain(space), allow_pickle=trusted)
    return space_from_plain(unpack(packed, allow_pickle=trusted), trusted=True)


@every_space
def test_a_space_equals_what_came_of_it(name):
    space = EVERY_SPACE[name]
    twin = travelled(space, name)
    assert type(twin) is type(space)
    assert twin == space


@every_space
def test_dtype_and_shape_are_kept(name):
    space = EVERY_SPACE[name]
    twin = travelled(space, name)
    assert (twin.dtype, twin.shape) == (space.dtype, space.shape)
    for leaf, same_leaf in zip(leaves_of(twin), leaves_of(space), strict=True):
        assert leaf == same_leaf


@every_space
def test_samples_after_the_same_seed_are_equal(name):
    space = EVERY_SPACE[name]
    twin = travelled(space, name)
    space.seed(7)
    twin.seed(7)
    for _ in range(5):
        assert_same(twin.sample(), space.sample())


@every_space
def test_the_random_state_travels_along(name):
    space = EVERY_SPACE[name]
    space.seed(3)
    space.sample()
    twin = travelled(space, name)
    for _ in range(5):
        assert_same(twin.sample(), space.sample())


@pytest.mark.parametrize("name", sorted(EVERY_SPACE.keys() - NEEDS_PICKLE))
def test_a_space_looks_the_same_when_printed(name):
    space = EVERY_SPACE[name]
    assert repr(travelled(space)) == repr(space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0.0, 1.0, (2,), ">f4"),
        spaces.MultiDiscrete([3, 2], dtype=">i4"),
        spaces.Discrete(3, dtype=">i4"),
    ],
    ids=lambda space: type(space).__name__,
)
def test_the_byte_order_is_kept(space):
    assert travelled(space).dtype == space.dtype


def test_a_space_that_was_never_seeded_stays_so():
    space = spaces.Discrete(3)
    twin = travelled(space)
    assert twin._np_random is None
    assert space._np_random is None


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_any_of_numpys_generators_travels_along(kind):
    bits = getattr(np.random, kind)(5)
    space = spaces.Box(0.0, 1.0, (3,), seed=np.random.Generator(bits))
    assert_same(travelled(space).sample(), space.sample())


def test_what_is_unbounded_stays_unbounded():
    twin = travelled(MORE_SPACES["box-unbounded-int"])
    assert not twin.is_bounded("below")
    assert not twin.is_bounded("above")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Discrete(3)}),
        spaces.Dict(OrderedDict(b=spaces.Discrete(2), a=spaces.Discrete(3))),
        spaces.Dict([("c", spaces.Discrete(2)), ("a", spaces.Discrete(3))]),
    ],
    ids=["sorted", "ordered", "sequence"],
)
def test_the_keys_of_a_dict_keep_their_order(space):
    assert list(travelled(space).spaces) == list(space.spaces)


@pytest.mark.parametrize("space", [CardSpace(("clubs",)), UnitBox(2)], ids=["custom", "subclass"])
def test_a_space_that_gymnasium_does_not_know_passes_as_itself(space):
    assert space_to_plain(space) is space
    assert space_from_plain(space) is space


@pytest.mark.parametrize(
    "plain", [None, [], ["space"], ["space", "Box", 3, None], ["space", "os.system", {}, None]]
)
def test_what_describes_no_space_is_refused(plain):
    with pytest.raises(ValueError, match="does not describe a space"):
        space_from_plain(plain)


# Large boxes.


def described(shape):
    """A Box in the few words that travel."""
    kind, name, parts, state = space_to_plain(spaces.Box(0, 255, (2,), np.uint8))
    return [kind, name, {**parts, "shape": shape}, state]


def test_bounds_that_are_all_the_same_are_told_once():
    small = pack(space_to_plain(spaces.Box(0, 255, (2,), np.uint8)), allow_pickle=False)
    large = pack(space_to_plain(spaces.Box(0, 255, (999, 999), np.uint8)), allow_pickle=False)
    assert len(large) < len(small) + 20


@pytest.mark.parametrize("other", [1.0, -0.0, np.inf])
def test_bounds_that_differ_in_a_single_bit_are_told_all(other):
    low = np.zeros((3, 4))
    low[1, 2] = other
    twin = travelled(spaces.Box(low, np.full((3, 4), np.inf), dtype=np.float64))
    assert twin.low.tobytes() == low.tobytes()


def test_a_large_box_equals_what_came_of_it_and_can_be_batched_and_sampled():
    space = spaces.Box(-1.0, np.inf, (34, 1024, 256))
    twin = travelled(space)
    assert twin.low.strides == (0, 0, 0)
    assert twin == space
    assert repr(twin) == repr(space)
    batched = batch_large(twin, 2)
    assert batched == batch_space(space, 2)
    assert twin.seed(3) == space.seed(3)
    assert np.array_equal(twin.sample(), space.sample())
    assert twin.contains(space.sample())


def test_a_small_box_is_batched_as_gymnasium_does():
    assert batch_large(spaces.Box(0, 1, (3,)), 2) is None
    assert batch_large(spaces.Discrete(3), 2) is None


@pytest.mark.parametrize(
    "shape",
    [[1 << 40], [1 << 20, 1 << 20], [-1], [2.0], ["2"], [True], [1] * 65, "2", None, [1 << 70]],
)
def test_a_shape_that_nobody_would_have_is_refused(shape):
    with pytest.raises(ValueError, match=r"is no shape|the most is"):
        space_from_plain(described(shape))


# Leaves.


array_spaces = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(0, 1, shape, dtype),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.sampled_from([np.float32, np.int64, np.uint8]),
    ),
    st.builds(spaces.Discrete, st.integers(1, 9)),
    st.builds(spaces.MultiBinary, st.integers(1, 4)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
)
object_spaces = st.sampled_from(
    [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), CardSpace(("clubs",))]
)
trees = st.recursive(
    array_spaces | object_spaces,
    lambda inner: (
        st.lists(inner, max_size=3).map(spaces.Tuple)
        | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3).map(spaces.Dict)
    ),
    max_leaves=6,
)


@given(trees)
def test_joining_the_leaves_of_a_value_gives_the_value(space):
    value = space.sample()
    parts = [leaf.of(value) for leaf in leaves_of(space)]
    assert image_of(join_leaves(space, parts)) == image_of(value)


@given(trees)
def test_array_leaves_are_laid_out_as_gymnasium_does(space):
    batched = create_empty_array(space, 4)
    for leaf in leaves_of(space):
        if leaf.is_array:
            column = leaf.of(batched)
            assert (column.shape, column.dtype) == ((4, *leaf.shape), leaf.dtype)
        else:
            assert not isinstance(leaf.of(batched), np.ndarray)


def test_leaves_come_in_the_order_of_the_keys():
    space = spaces.Dict(b=spaces.Tuple((spaces.Discrete(2), spaces.Text(3))), a=spaces.Discrete(3))
    assert [leaf.path for leaf in leaves_of(space)] == [("b", 0), ("b", 1), ("a",)]


def test_a_leaf_that_is_no_array_has_no_dtype():
    (leaf,) = leaves_of(spaces.Graph(spaces.Discrete(2), None))
    assert (leaf.is_array, leaf.dtype, leaf.shape) == (False, None, ())
