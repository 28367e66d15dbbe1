"""Weights as they travel: what is decoded is what was published, bit by bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.policies.copy import Snapshot
from clusterenv.policies.encoding import check_encoding, decode, encode, round_to_bf16

SEEDS = st.integers(0, 10_000)


def weights(seed, drift=0.0):
    rng = np.random.default_rng(seed)
    noise = np.random.default_rng(seed + 1)
    matrix = rng.normal(0, 0.1, (40, 30)).astype(np.float32)
    return {
        "matrix": matrix + noise.normal(0, drift, matrix.shape).astype(np.float32),
        "steps": np.array([7 + int(drift > 0)], np.int64),
        "epsilon": np.array(0.1, np.float32),
        "double": rng.normal(size=3),
    }


def travel(encoding, snapshot, base):
    vector = None if base is None else base.vector
    said, data = encode(snapshot.vector, snapshot.layout, encoding, vector)
    return said, data, decode(said, data, snapshot.layout, vector)


@pytest.mark.parametrize("encoding", ["raw", "bf16", "delta"])
@pytest.mark.parametrize("has_base", [False, True])
@given(seed=SEEDS)
def test_what_is_decoded_is_the_published_vector(encoding, has_base, seed):
    base = Snapshot(weights(seed), encoding) if has_base else None
    snapshot = Snapshot(weights(seed, 1e-3), encoding)
    assert travel(encoding, snapshot, base)[2] == snapshot.vector


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_deltas_are_exact_for_any_numbers(numbers):
    there = np.array(numbers, np.float32)
    base = Snapshot({"w": there}, "delta")
    snapshot = Snapshot({"w": there[::-1].copy()}, "delta")
    assert travel("delta", snapshot, base)[2] == snapshot.vector


def test_rounding_is_that_of_torch():
    array = np.random.default_rng(0).normal(0, 10, 1000).astype(np.float32)
    snapshot = Snapshot({"w": array}, "bf16")
    rounded = np.frombuffer(snapshot.vector, np.float32)
    np.testing.assert_array_equal(rounded, torch.from_numpy(array).bfloat16().float().numpy())


def test_rounding_twice_is_rounding_once():
    snapshot = Snapshot(weights(0), "bf16")
    again = bytearray(snapshot.vector)
    round_to_bf16(again, snapshot.layout)
    assert again == snapshot.vector


def test_smaller_steps_make_smaller_deltas():
    base = Snapshot(weights(3), "delta")
    sizes = [len(travel("delta", Snapshot(weights(3, d), "delta"), base)[1]) for d in (1e-2, 1e-4)]
    full = len(travel("bf16", base, None)[1])
    assert sizes[1] < sizes[0] < full
    assert full < 0.6 * len(base.vector)


def test_what_does_not_get_smaller_is_sent_whole():
    base = Snapshot({"w": np.zeros(3, np.float32)}, "delta")
    snapshot = Snapshot({"w": np.full(3, 1.1, np.float32)}, "delta")
    assert travel("delta", snapshot, base)[0] == "bf16"


def damaged(data):
    return [data[:-5], bytes(data) + b"more", b"", b"\x00" * len(data)]


@pytest.mark.parametrize("encoding", ["bf16", "delta"])
def test_damaged_bytes_are_an_error_or_another_vector(encoding):
    base, snapshot = Snapshot(weights(1), encoding), Snapshot(weights(1, 1e-3), encoding)
    said, data, _ = travel(encoding, snapshot, base)
    for bad in damaged(data):
        try:
            assert decode(said, memoryview(bad), snapshot.layout, base.vector) != snapshot.vector
        except ProtocolError:
            pass


@pytest.mark.parametrize("encoding", ["bf16", "delta"])
def test_weights_that_are_cut_off_anywhere_are_refused(encoding):
    base, snapshot = Snapshot(weights(1), encoding), Snapshot(weights(1, 1e-3), encoding)
    said, data, _ = travel(encoding, snapshot, base)
    for length in range(0, len(data), 7):
        with pytest.raises(ProtocolError):
            decode(said, data[:length], snapshot.layout, base.vector)


def test_a_delta_needs_something_to_start_from():
    base, snapshot = Snapshot(weights(1), "delta"), Snapshot(weights(1, 1e-3), "delta")
    said, data, _ = travel("delta", snapshot, base)
    with pytest.raises(ProtocolError, match="whose base version is not here"):
        decode(said, data, snapshot.layout, None)


def test_an_unknown_encoding_is_refused():
    with pytest.raises(ValueError, match=r"int8.*raw, bf16, delta"):
        check_encoding("int8")
