"""Observations are coded where that pays, and come out bit for bit; nonsense is a clean error."""

import random
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.wire.compression import BEST, NOTHING, ZLIB, ZSTD, common_to, compress, decompress
from clusterenv.wire.observation_codec import Coding, ObservationCodec, read_coded
from clusterenv.wire.stacks import NO_STACK, find_stack, most_bytes, read_stacks, write_stacks

KINDS = [ZLIB, pytest.param(ZSTD, marks=pytest.mark.skipif(BEST != ZSTD, reason="no zstandard"))]
DTYPES = ["u1", "i2", "f4", "f8", "?", "u8"]


def frames(chance, count, shape, dtype):
    """Random frames, NaN and negative zero among them."""
    data = chance.integers(0, 256, (count, *shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    if dtype == "?":
        data &= 1
    return data.view(dtype)[..., 0]


def stacked(chance, steps, slots, size, shape, dtype, axis, resets):
    """Rows of envs that stack their last frames; at resets the stack is another."""
    rows = np.empty((steps, slots, size, *shape), dtype)
    for slot in range(slots):
        stack = frames(chance, size, shape, dtype)
        for step in range(steps):
            if (step, slot) in resets:
                stack = frames(chance, size, shape, dtype)
            elif step:
                stack = np.concatenate([stack[1:], frames(chance, 1, shape, dtype)])
            rows[step, slot] = stack
    return np.ascontiguousarray(np.moveaxis(rows, 2, axis))


@st.composite
def fragments(draw):
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps, slots = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    size, shape = draw(st.integers(1, 5)), draw(st.sampled_from([(3, 2), (4,), (2, 3, 2)]))
    axis = draw(st.sampled_from([2, 2 + len(shape)]))
    every = [(step, slot) for step in range(steps) for slot in range(slots)]
    resets = draw(st.sets(st.sampled_from(every)))
    dtype = draw(st.sampled_from(DTYPES))
    return stacked(chance, steps, slots, size, shape, dtype, axis, resets)


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and bytes(one) == bytes(other)


@settings(max_examples=1000, deadline=None)
@given(fragments())
def test_rows_of_stacks_come_out_bit_for_bit(rows):
    axis = find_stack(rows)
    if axis != NO_STACK:
        data = write_stacks(rows, axis)
        assert len(data) <= most_bytes(rows.shape, rows.itemsize)
        assert same_bits(read_stacks(data, rows.shape, rows.dtype, axis), rows)


@pytest.mark.parametrize("axis", [2, 4])
def test_each_frame_of_a_stack_is_written_once(axis):
    chance = np.random.default_rng(1)
    rows = stacked(chance, 65, 3, 4, (12, 12), "u1", axis, {(20, 1)})
    assert find_stack(rows) == axis
    # The first stack of each slot and the one after the reset are whole: 4 frames.
    frames_written = 3 * (4 + 64) + 3
    assert len(write_stacks(rows, axis)) == 24 + frames_written * 144


def test_rows_that_share_nothing_are_no_stack():
    chance = np.random.default_rng(1)
    assert find_stack(frames(chance, 40, (4, 6, 6), "u1").reshape(10, 4, 4, 6, 6)) == NO_STACK
    assert find_stack(np.zeros((5, 2, 17))) == NO_STACK
    assert find_stack(np.zeros((1, 2, 4, 6, 6))) == NO_STACK
    assert find_stack(np.zeros((0, 2, 4, 6, 6))) == NO_STACK


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_coded_is_read_back(kind, dtype):
    chance = np.random.default_rng(1)
    rows = stacked(chance, 9, 2, 4, (40, 40), "u1", 2, set()).astype(dtype)
    finals = np.zeros((3, 4, 40, 40), dtype)
    codec = ObservationCodec(kind, clock=lambda: 0.0)
    for name, array in {"observations/0": rows, "finals/0": finals}.items():
        coding, frame = codec.write(name, array)
        assert coding is not None
        assert coding.compression == kind
        assert len(frame) < array.nbytes / 2
        assert same_bits(read_coded(coding, array.shape, array.dtype, frame), array)


class SlowClock:
    """An hour passes whenever somebody looks."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 3600.0
        return self.now


IMAGES = np.zeros((5, 2, 4, 40, 40), np.uint8)


def test_what_costs_more_time_than_it_saves_is_given_up_for_a_while():
    codec = ObservationCodec(ZLIB, SlowClock())
    assert codec.write("observations/0", IMAGES)[0] is None
    codec._clock = lambda: 0.0
    tries = [codec.write("observations/0", IMAGES)[0] is not None for _ in range(300)]
    assert tries == [False] * 256 + [True] * 44


def test_what_does_not_get_smaller_travels_as_it_is():
    noise = frames(np.random.default_rng(1), 10, (50, 50), "u1").reshape(5, 2, 50, 50)
    coding, frame = ObservationCodec(ZLIB).write("observations/0", noise)
    assert coding is None
    assert bytes(frame) == noise.tobytes()


@pytest.mark.parametrize(
    ("name", "array"),
    {
        "small rows": ("observations/0", np.zeros((129, 64, 8), np.float32)),
        "no rows": ("finals/0", np.zeros((0, 4, 84, 84), np.uint8)),
        "no observations": ("rewards", np.zeros((128, 4096))),
        "values of ends": ("finals/values", np.zeros((8, 4096), np.float32)),
    }.values(),
)
def test_what_is_small_is_not_even_tried(name, array):
    looked = []
    codec = ObservationCodec(ZLIB, clock=lambda: looked.append(1) or 0.0)
    assert codec.write(name, array)[0] is None
    assert not looked


def test_both_sides_have_to_read_it():
    assert common_to(ZSTD, ZSTD) == ZSTD
    assert common_to(ZLIB, ZSTD) == common_to(ZSTD, ZLIB) == ZLIB
    assert common_to(NOTHING, ZSTD) == NOTHING


def test_nothing_is_coded_for_a_head_that_does_not_want_it():
    codec = ObservationCodec(NOTHING, clock=lambda: 0.0)
    assert codec.write("observations/0", IMAGES)[0] is None


# What a peer may send.


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_decompressed_to_more_than_is_expected(kind):
    bomb = compress(bytes(1 << 24), kind)
    with pytest.raises(ProtocolError, match="or less"):
        decompress(bomb, kind, 1 << 20)
    assert len(decompress(bomb, kind, 1 << 24)) == 1 << 24


def test_what_this_side_does_not_read_is_refused():
    with pytest.raises(ProtocolError, match="'lzma'"):
        decompress(b"", "lzma", 10)


def test_bytes_behind_the_end_are_refused():
    with pytest.raises(ProtocolError):
        decompress(zlib.compress(b"x") + b"more", ZLIB, 10)


def mutated(data, chance):
    data = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        match chance.randrange(3):
            case 0 if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case 1:
                del data[chance.randrange(len(data) + 1) :]
            case 2:
                data += chance.randbytes(chance.randrange(9))
    return bytes(data)


NUM_MUTATIONS = 20_000


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_frames_give_clean_errors_or_rows_of_the_right_shape(kind):
    chance = random.Random(1)
    rows = stacked(np.random.default_rng(1), 6, 2, 3, (4, 4), "u1", 2, {(3, 1)})
    plain = write_stacks(rows, 2)
    for number in range(NUM_MUTATIONS):
        frame = mutated(compress(plain, kind), chance)
        if number % 2:
            frame = compress(mutated(plain, chance), kind)
        axis = chance.choice([2, 2, 2, -1, 0, 1, 3, 4, 5, 2**40])
        try:
            read = read_coded(Coding("observations/0", kind, axis), rows.shape, rows.dtype, frame)
        except ProtocolError:
            continue
        assert read.shape == rows.shape
