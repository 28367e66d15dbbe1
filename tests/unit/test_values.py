"""Packed values come back as they were, types and bits included."""

import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clusterenv.plain.values import pack, unpack
from tests.unit.images import image_of

# Two names of the eight-byte integers that dtype.str calls i8 and u8.
_OTHER_NAMES = {np.longlong, np.ulonglong}
SCALAR_TYPES = sorted(
    # Others may have registered kinds of their own, as JAX does.
    {kind for kind in np.sctypeDict.values() if kind.__module__ == "numpy"}
    - {np.object_, np.void}
    - _OTHER_NAMES,
    key=lambda kind: kind.__name__,
)


def round_trip(value):
    return unpack(pack(value, allow_pickle=False), allow_pickle=False)


def assert_survives(value):
    assert image_of(round_trip(value)) == image_of(value)


dtypes = st.one_of(
    hnp.scalar_dtypes(), hnp.byte_string_dtypes(max_len=5), hnp.unicode_string_dtypes(max_len=5)
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
numpy_scalars = hnp.scalar_dtypes().flatmap(hnp.from_dtype)
hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    hnp.integer_dtypes().flatmap(hnp.from_dtype),
)
keys = st.recursive(
    hashables,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(tuple), st.frozensets(inner, max_size=2)
    ),
    max_leaves=3,
)
leaves = st.one_of(hashables, st.floats(), st.complex_numbers(), numpy_scalars, arrays)


def object_array(items, columns):
    array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array.reshape((-1, columns)) if columns and len(items) % columns == 0 else array


values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.builds(GraphInstance, arrays, st.none() | arrays, st.none() | arrays),
        st.builds(object_array, st.lists(inner, max_size=4), st.sampled_from([0, 2])),
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(values)
def test_any_plain_value_comes_back_exactly(value):
    assert_survives(value)


@pytest.mark.parametrize("kind", SCALAR_TYPES, ids=lambda kind: kind.__name__)
def test_a_numpy_scalar_keeps_its_type(kind):
    value = kind(1, "ns") if np.dtype(kind).kind in "mM" else kind(b"1" if kind is np.bytes_ else 1)
    assert type(round_trip(value)) is kind
    assert_survives(value)


@pytest.mark.parametrize("text", [np.str_(""), np.bytes_(b"")], ids=["str", "bytes"])
def test_an_empty_numpy_text_comes_back(text):
    assert_survives(text)


@pytest.mark.parametrize("text", [np.str_("a\0"), np.bytes_(b"a\0")], ids=["str", "bytes"])
def test_a_numpy_text_keeps_the_zeros_at_its_end(text):
    assert_survives(text)


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**4000, -(2**4000)])
def test_an_integer_of_any_size_comes_back(value):
    assert_survives(value)


@pytest.mark.parametrize(
    "value", [float("nan"), np.float16("nan"), complex("nan+1j"), np.datetime64("NaT", "s"), -0.0]
)
def test_what_does_not_equal_itself_comes_back_bit_by_bit(value):
    assert_survives([value, np.asarray(value)])


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (2, 3)])
@pytest.mark.parametrize("dtype", ["?", "<f4", ">f8", "<U3", "S2", "<M8[s]", "V3", "O"])
def test_an_array_keeps_shape_and_dtype(shape, dtype):
    assert_survives(np.zeros(shape, dtype))


def test_a_transposed_array_comes_back_in_its_own_order():
    assert_survives(np.arange(6).reshape(2, 3).T)


def test_an_array_that_came_back_is_the_receivers_own():
    array = round_trip(np.zeros(3))
    array[0] = 1.0
    assert array[0] == 1.0


def test_the_order_of_keys_is_kept():
    assert list(round_trip({"b": 1, "a": 2, 3: 4, (1, "x"): 5})) == ["b", "a", 3, (1, "x")]


def test_text_that_utf8_cannot_express_comes_back():
    # os.listdir gives such names to files whose bytes are no UTF-8.
    assert_survives({"file": "caf\udce9"})
