"""Results of any leaves lie in one piece of memory, and never on each other."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.plain.row_layout import CACHE_LINE, RowLayout, aligned, row_bytes
from clusterenv.plain.spaces import Leaf, leaves_of

array_leaves = st.builds(
    Leaf,
    path=st.just(()),
    dtype=st.sampled_from(["?", "u1", "i2", "f4", "f8", "c16"]).map(np.dtype),
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
object_leaves = st.just(Leaf((), None, ()))
some_leaves = st.lists(array_leaves | object_leaves, max_size=4)


@given(st.integers(1, 9), some_leaves)
def test_no_array_overlaps_another_and_all_are_within_the_memory(num_rows, leaves):
    layout = RowLayout(leaves)
    size = layout.size(num_rows)
    memory = bytearray(size + 64)
    rows = layout.view(memoryview(memory)[:size], num_rows)
    for array in rows.arrays:
        before = memory.copy()
        array.reshape(-1).view(np.uint8)[...] ^= 0xFF
        changed = sum(one != other for one, other in zip(memory, before, strict=True))
        assert changed == array.nbytes
    # Every byte was written at most once, or it would have its old value again.
    assert memory.count(0xFF) == sum(array.nbytes for array in rows.arrays)
    assert memory[size:] == bytes(64)


@given(st.integers(1, 9), some_leaves)
def test_there_is_a_row_per_slot_of_the_leafs_own_shape_and_dtype(num_rows, leaves):
    layout = RowLayout(leaves)
    rows = layout.view(bytearray(layout.size(num_rows)), num_rows)
    assert (rows.rewards.shape, rows.rewards.dtype) == ((num_rows,), np.float64)
    for flags in (rows.terminated, rows.truncated):
        assert (flags.shape, flags.dtype) == ((num_rows,), np.bool_)
    for leaf, array in zip(leaves, rows.observations, strict=True):
        if leaf.is_array:
            assert (array.shape, array.dtype) == ((num_rows, *leaf.shape), leaf.dtype)
        else:
            assert array is None


@given(st.integers(1, 9), some_leaves)
def test_every_array_begins_in_a_cache_line_of_its_own(num_rows, leaves):
    layout = RowLayout(leaves)
    memory = np.zeros(layout.size(num_rows), np.uint8)
    start = memory.__array_interface__["data"][0]
    for array in layout.view(memory.data, num_rows).arrays:
        assert (array.__array_interface__["data"][0] - start) % CACHE_LINE == 0


@given(some_leaves)
def test_who_knows_the_leaves_finds_what_another_wrote(leaves):
    size = RowLayout(leaves).size(3)
    memory = bytearray(np.random.default_rng(1).bytes(size))
    one, other = (RowLayout(leaves).view(memory, 3) for _ in range(2))
    for mine, theirs in zip(one.arrays, other.arrays, strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_rows_that_were_received_can_be_read_only():
    layout = RowLayout(leaves_of(spaces.Discrete(3)))
    rows = layout.view(bytes(layout.size(2)), 2)
    with pytest.raises(ValueError, match="read-only"):
        rows.rewards[0] = 1.0


def test_memory_that_is_too_small_is_an_error():
    layout = RowLayout(leaves_of(spaces.Box(-1.0, 1.0, (100,))))
    with pytest.raises((TypeError, ValueError), match="buffer"):
        layout.view(bytearray(layout.size(2) - CACHE_LINE), 2)


@pytest.mark.parametrize(("size", "whole"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_sizes_are_rounded_up_to_whole_cache_lines(size, whole):
    assert aligned(size) == whole


def test_a_leaf_that_is_no_array_takes_no_bytes():
    assert row_bytes(leaves_of(spaces.Text(5))[0]) == 0
    assert row_bytes(leaves_of(spaces.Box(0, 1, (2, 3), np.float32))[0]) == 24
