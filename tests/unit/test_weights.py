"""Weights as one flat vector that nobody writes to again, and the copy that takes it as a whole."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from clusterenv.errors import ProtocolError
from clusterenv.policies.copy import (
    PolicyCopy,
    Received,
    Snapshot,
    encode_layout,
    layout_of,
    split_vector,
)
from clusterenv.policies.encoding import encode

DTYPES = st.sampled_from(["f2", "f4", "f8", "i1", "i8", "u1", "?", "c8"])
FINITE = {"allow_nan": False, "allow_infinity": False}
ARRAYS = arrays.arrays(
    DTYPES, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=FINITE
)
WEIGHTS = st.dictionaries(st.text(max_size=8), ARRAYS, max_size=5)


class Recorder:
    """A policy that only remembers what it was given."""

    def __init__(self):
        self.loaded = []

    def load(self, weights):
        self.loaded.append(weights)


def copy_of(weights):
    return PolicyCopy(Recorder(), encode_layout(layout_of(weights)))


def assert_equal(actual, expected):
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype, name
        assert np.array_equal(actual[name], array), name


@given(WEIGHTS)
def test_a_copy_gets_exactly_what_was_published(weights):
    snapshot, copy = Snapshot(weights), copy_of(weights)
    copy.take(7, memoryview(bytes(snapshot.vector)))
    assert copy.version == 7
    assert_equal(copy.policy.loaded[0], weights)


@given(WEIGHTS)
def test_a_snapshot_does_not_change_with_the_arrays_that_it_was_taken_from(weights):
    snapshot = Snapshot(weights)
    before = bytes(snapshot.vector)
    for array in weights.values():
        array[...] = 1
    assert snapshot.vector == before


def test_strange_orders_of_memory_are_straightened():
    matrix = np.arange(12.0).reshape(3, 4)
    weights = {"t": matrix.T, "stepped": matrix[::2, ::3], "fortran": np.asfortranarray(matrix)}
    assert_equal(split_vector(layout_of(weights), Snapshot(weights).vector), weights)


def test_equal_weights_have_equal_vectors_and_others_do_not():
    weights = {"a": np.arange(3.0), "b": np.arange(2)}
    again = {name: array.copy() for name, array in weights.items()}
    assert Snapshot(weights).vector == Snapshot(again).vector
    again["a"][2] = np.nextafter(again["a"][2], 9.0)
    assert Snapshot(weights).vector != Snapshot(again).vector


def test_the_layout_names_each_array_in_order():
    weights = {"b": np.zeros((2, 1), np.float32), "a": np.array(3)}
    assert layout_of(weights) == (("b", "<f4", (2, 1)), ("a", "<i8", ()))


def test_the_checksum_is_that_of_the_vector():
    snapshot = Snapshot({"a": np.arange(9.0)})
    assert snapshot.checksum == zlib.crc32(np.arange(9.0).tobytes())


@pytest.mark.parametrize("size", [0, 16, 71, 73, 80])
def test_a_vector_of_another_length_than_the_layout_takes_is_refused(size):
    vector = bytes(size)
    copy = copy_of({"a": np.arange(9.0)})
    with pytest.raises((ProtocolError, ValueError)):
        copy.take(1, vector)
    assert copy.version == 0
    assert copy.policy.loaded == []


def test_a_copy_may_write_to_what_it_was_given():
    weights = {"a": np.arange(3.0)}
    snapshot, copy = Snapshot(weights), copy_of(weights)
    copy.take(1, snapshot.vector)
    copy.policy.loaded[0]["a"][...] = 9.0
    assert snapshot.checksum == zlib.crc32(np.arange(3.0).tobytes())


def test_a_version_counts_only_after_the_policy_has_taken_it():
    class Picky(Recorder):
        def load(self, weights):
            raise KeyError("a")

    weights = {"a": np.arange(3.0)}
    snapshot = Snapshot(weights)
    copy = PolicyCopy(Picky(), encode_layout(snapshot.layout))
    with pytest.raises(KeyError):
        copy.take(5, snapshot.vector)
    assert copy.version == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_weights_that_are_no_numbers_are_refused_by_name(bad, dtype, place):
    array = np.ones(1000, dtype)
    array[place] = bad
    with pytest.raises(ValueError, match="'layer' hold NaN or infinity"):
        Snapshot({"fine": np.ones(3), "layer": array})


def test_complex_weights_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="'layer' hold NaN or infinity"):
        Snapshot({"layer": np.array([1.0, complex(0.0, np.nan)], np.complex64)})


def test_infinities_of_both_signs_are_refused():
    with pytest.raises(ValueError, match="hold NaN or infinity"):
        Snapshot({"layer": np.array([np.inf, -np.inf, 1.0])})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_large_but_finite_weights_are_fine(dtype):
    largest = np.finfo(dtype).max
    weights = {"layer": np.array([largest, largest, -largest, largest], dtype)}
    assert_equal(split_vector(layout_of(weights), Snapshot(weights).vector), weights)


def test_objects_are_refused():
    with pytest.raises(ProtocolError, match="holds objects"):
        Snapshot({"layer": np.array([None])})


# Weights that came through a socket.


VERSIONS = [{"a": np.full(50, version, np.float32), "b": np.arange(3)} for version in range(6)]
LAYOUT = layout_of(VERSIONS[0])


def snapshot_of(version, encoding="raw"):
    return Snapshot(VERSIONS[version], encoding)


def received(keeper, version, encoding="raw", base=None, damage=lambda data: data):
    """As a host decodes what a head has encoded."""
    snapshot = snapshot_of(version, encoding)
    start = None if base is None else snapshot_of(base, encoding).vector
    used, data = encode(snapshot.vector, LAYOUT, encoding, start)
    starts_from = base if base is not None and used == "delta" else 0
    layout = encode_layout(LAYOUT)
    return keeper.decode(layout, version, used, starts_from, snapshot.checksum, damage(data))


@pytest.mark.parametrize("encoding", ["raw", "bf16", "delta"])
def test_what_was_received_is_what_was_published(encoding):
    keeper = Received()
    for version in range(1, 6):
        vector = received(keeper, version, encoding)
        assert vector == snapshot_of(version, encoding).vector


def test_differences_start_from_what_was_received_before():
    keeper = Received()
    received(keeper, 1, "delta")
    for version in range(2, 6):
        vector = received(keeper, version, "delta", base=version - 1)
        assert vector == snapshot_of(version, "delta").vector


def test_a_difference_from_what_was_never_received_is_refused():
    keeper = Received()
    received(keeper, 1, "delta")
    with pytest.raises(ProtocolError, match="a weight delta whose base version is not here"):
        received(keeper, 3, "delta", base=2)


@given(st.integers(0, 199), st.integers(1, 255))
def test_a_damaged_byte_is_noticed_and_what_was_there_before_is_kept(place, change):
    keeper = Received()
    received(keeper, 1, "delta")

    def damage(data):
        damaged = bytearray(data)
        damaged[place % len(damaged)] ^= change
        return bytes(damaged)

    with pytest.raises(ProtocolError, match=r"the weights of version 2 are damaged \(checksum"):
        received(keeper, 2, damage=damage)
    assert received(keeper, 2, "delta", base=1) == snapshot_of(2, "delta").vector


def test_what_a_policy_does_to_its_weights_does_not_change_what_was_received():
    keeper, copy = Received(), PolicyCopy(Recorder(), encode_layout(LAYOUT))
    copy.take(1, received(keeper, 1, "delta"))
    copy.policy.loaded[0]["a"][...] = 9.0
    assert received(keeper, 2, "delta", base=1) == snapshot_of(2, "delta").vector
