"""Observations are coded where that pays, and come out bit for bit; nonsense is a clean error."""

from collections import Counter
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.message import encode
from clusterenv.protocol.requests import Collect, Newest
from clusterenv.wire.arrays import read_array
from clusterenv.wire.compression import BEST, NOTHING, ZLIB, ZSTD, common_to, compress, decompress
from clusterenv.wire.gathering import fragment_made
from clusterenv.wire.messages import decode_from_host
from clusterenv.wire.observation_codec import Coding, ObservationCodec, read_coded
from clusterenv.wire.stacks import NO_STACK, find_stack, write_stacks

KINDS = [ZLIB, pytest.param(ZSTD, marks=pytest.mark.skipif(BEST != ZSTD, reason="no zstandard"))]
DTYPES = ["u1", "i1", "i2", "u8", "f2", "f4", "f8", "?"]


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


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and bytes(one) == bytes(other)


# Whole fragments, as hosts send them and the head reads them.

LEAVES = st.one_of(
    # Shape of a frame, how many are stacked, and whether they lie along the last axis.
    st.tuples(
        st.sampled_from([(7, 5), (3, 2), (4,), (1, 1), (2, 3, 2)]), st.integers(1, 5), st.booleans()
    ),
    # No stack.
    st.tuples(
        st.sampled_from([(), (5,), (0,), (3, 0, 2), (7, 1, 5), (2, 2)]), st.just(0), st.just(False)
    ),
)


def episodes(chance, steps, slots, ends, leaf, dtype):
    """The rows of a leaf, initial observations among them, and the last ones of its episodes."""
    shape, size, is_last = leaf
    whole = (size, *shape) if size else shape
    rows, finals = np.empty((steps + 1, slots, *whole), dtype), []
    for slot in range(slots):
        stack = frames(chance, max(size, 1), shape, dtype)
        for step in range(steps + 1):
            rows[step, slot] = stack if size else stack[0]
            stack = np.concatenate([stack[1:], frames(chance, 1, shape, dtype)])
            if (step, slot) in ends:
                finals.append(stack if size else stack[0])
                stack = frames(chance, max(size, 1), shape, dtype)
    finals = np.array(finals, dtype).reshape(len(finals), *whole)
    if is_last:
        rows, finals = np.moveaxis(rows, 2, -1), np.moveaxis(finals, 1, -1)
    return rows, finals


@st.composite
def fragments(draw):
    """A fragment of one observation or of a dictionary of several."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps, slots = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    every = [(step, slot) for step in range(steps) for slot in range(slots)]
    ends = draw(st.sets(st.sampled_from(every)))
    arrays = {"rewards": chance.normal(size=(steps, slots))}
    leaves = draw(st.lists(st.tuples(LEAVES, st.sampled_from(DTYPES)), min_size=1, max_size=3))
    for number, (leaf, dtype) in enumerate(leaves):
        rows, finals = episodes(chance, steps, slots, ends, leaf, dtype)
        arrays |= {f"observations/{number}": rows, f"finals/{number}": finals}
    return FragmentPart(Collect(1, (), steps, Newest(1, 1)), tuple(range(slots)), 1, arrays)


def sent(part, codec):
    """What the head reads of a fragment, and how it was coded."""
    message, buffers = fragment_made(1, [part], codec)
    message = decode_from_host(encode(message))
    codings, arrays = {coding.name: coding for coding in message.codings}, {}
    headers = zip(message.names, message.arrays, buffers, strict=True)
    for name, (dtype, shape), frame in headers:
        if name in codings:
            arrays[name] = read_coded(codings[name], shape, np.dtype(dtype), frame)
        else:
            arrays[name] = read_array(dtype, shape, frame)
    return arrays, codings


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_fragments_come_out_bit_for_bit(kind, monkeypatch):
    # Small ones are coded too, even where that costs bytes, so that many can be tried.
    monkeypatch.setattr("clusterenv.wire.observation_codec._SMALLEST_ROW_BYTES", 1)
    monkeypatch.setattr("clusterenv.wire.observation_codec._WORTH_BYTES_PER_S", -1e9)
    monkeypatch.setattr("clusterenv.wire.observation_codec._LARGEST_SHARE", float("inf"))
    seen = Counter()

    @settings(max_examples=1000, deadline=None)
    @given(fragments())
    def check(part):
        ticks = count()
        arrays, codings = sent(part, ObservationCodec(kind, clock=lambda: next(ticks)))
        assert arrays.keys() == part.arrays.keys()
        for name, array in part.arrays.items():
            assert same_bits(arrays[name], array), name
        seen["fragments"] += 1
        seen["dictionaries"] += len(part.arrays) > 3
        for name, coding in codings.items():
            place = {NO_STACK: "plain", 2: "first"}.get(coding.axis, "last")
            seen[name.partition("/")[0], place, part.arrays[name].dtype.kind] += 1

    check()
    assert seen["fragments"] >= 1000
    assert seen["dictionaries"] > 100
    for dtype_kind in "uif":
        assert seen["observations", "first", dtype_kind] > 20
        assert seen["observations", "last", dtype_kind] > 20
    for dtype_kind in "uifb":
        assert seen["observations", "plain", dtype_kind] > 20
        assert seen["finals", "plain", dtype_kind] > 20


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


@pytest.mark.parametrize("kind", KINDS)
def test_floats_that_get_a_little_smaller_travel_as_they_are(kind):
    # As of a robot: most numbers are of any kind, and some forces are zero.
    floats = np.random.default_rng(1).normal(size=(5, 2, 376))
    floats[..., 282:] = 0.0
    codec = ObservationCodec(kind, clock=lambda: 0.0)
    coding, frame = codec.write("observations/0", floats)
    assert coding is None
    assert bytes(frame) == floats.tobytes()
    # Nor is it tried again and again.
    assert codec._not_before["observations/0"] == 256


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


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_behind_the_end_are_refused(kind):
    with pytest.raises(ProtocolError):
        decompress(compress(b"x", kind) + b"more", kind, 10)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cut_off_is_refused(kind):
    with pytest.raises(ProtocolError):
        decompress(compress(b"x" * 100, kind)[:-2], kind, 100)


@pytest.mark.parametrize("shape", [(), (3,), (3, 2), (3, 2, 4), (0, 2, 4, 4)])
def test_rows_that_cannot_be_stacks_are_not_read_as_such(shape):
    frame = compress(bytes(100), ZLIB)
    with pytest.raises(ProtocolError, match="no stack along axis 2"):
        read_coded(Coding("finals/0", ZLIB, 2), shape, np.dtype("u1"), frame)
