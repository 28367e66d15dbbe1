"""A hundred thousand random and damaged messages: each is understood or refused."""

import os
import random
import resource
import time
import tracemalloc

import msgspec
import numpy as np
import pytest

from clusterenv.errors import ProtocolError
from clusterenv.plain.spaces import space_from_plain
from clusterenv.plain.values import pack, unpack
from clusterenv.policies.copy import Snapshot
from clusterenv.policies.encoding import decode as decode_weights
from clusterenv.policies.encoding import encode as encode_weights
from clusterenv.protocol.message import encode
from clusterenv.protocol.replies import Raised
from clusterenv.wire.arrays import read_array
from clusterenv.wire.chunks import CHUNK_BYTES, join, split
from clusterenv.wire.messages import (
    Built,
    CannotStart,
    Extra,
    FragmentMade,
    Hello,
    Leaving,
    Pull,
    Pulled,
    Ready,
    RequestFailed,
    RowsMade,
    StaffReport,
    ValuesMade,
    Warned,
    WorkerLost,
    WorkerReport,
)
from clusterenv.wire.messages import decode_from_host as decode
from clusterenv.wire.rate_limits import RateLimits
from tests.unit.test_head_socket import Head

INFO = {"a": 1.5, "b": np.arange(3), "c": ("x", {2: None}), "d": 2**70, "e": b"raw"}
PACKED = pack([(0, INFO), (1, INFO)], allow_pickle=False)
ARRAYS = (("<f8", (2,)), ("|b1", (2,)))
FRAMES = [bytes(16), bytes(2)]
RAISED = Raised(3, 0, "builtins", "ValueError", PACKED, "text", "traceback", "action")
SAID = [
    Hello(3, {"python": "3.11", "numpy": "2.0"}, "machine", 1, 4, "pod"),
    Built(1, ((2, PACKED),)),
    Ready(1),
    CannotStart("text", RAISED, "where"),
    StaffReport((WorkerReport("worker-0.0", 7, "ready", 0, 2, 0),)),
    Leaving("soon"),
    RowsMade(1, (0, 1), (Extra((0, 1), PACKED, PACKED, PACKED),)),
    ValuesMade(1, 2, (0, 1), PACKED),
    FragmentMade(1, 4, (0, 1), 1, ("rewards", "x"), ARRAYS),
    RequestFailed(1, 3, (0,), RAISED, "where"),
    Warned("worker-0.0", "UserWarning", "text"),
    WorkerLost(1, (0, 1), "reason", "obituary", ((1, (0, 1)),), "error"),
    Pull(1, 2, "threshold", 0.5),
    Pulled(3, 0.1),
]
HEADERS = [encode(message) for message in SAID]


def damage(data, chance):
    """Some bytes changed, removed, doubled, or copied from somewhere else."""
    damaged = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        place = chance.randrange(len(damaged) + 1)
        match chance.randrange(4):
            case 0:
                damaged[place : place + 1] = chance.randbytes(1)
            case 1:
                del damaged[place : place + chance.randrange(1, 9)]
            case 2:
                damaged[place:place] = damaged[place - 9 : place]
            case 3:
                # The large sizes of msgpack.
                damaged[place : place + 5] = (
                    chance.choice(b"\xc6\xdb\xdd\xdf").to_bytes() + b"\xff" * 4
                )
    return bytes(damaged)


def take(header, limits):
    """What the head does with a message before it believes anything."""
    message = decode(header)
    limits.check("host-0.0", message)
    for value in msgspec.structs.astuple(message):
        if isinstance(value, bytes):
            unpack(value, allow_pickle=False)
    if isinstance(message, FragmentMade):
        for (dtype, shape), frame in zip(message.arrays, FRAMES, strict=False):
            read_array(dtype, shape, frame)


def frames_for(count, seed):
    chance = random.Random(seed)
    for number in range(count):
        yield (
            chance.randbytes(chance.randrange(80))
            if number % 5 == 0
            else damage(chance.choice(HEADERS), chance)
        )


def test_a_hundred_thousand_random_and_damaged_headers_are_understood_or_refused():
    refused, limits = 0, RateLimits(newest=lambda: 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, header in enumerate(frames_for(100_000, seed=1)):
        if number % 50 == 0:
            limits = RateLimits(newest=lambda: 1)
        try:
            take(header, limits)
        except ProtocolError:
            refused += 1
    assert 50_000 < refused < 100_000
    # In kilobytes, and the most that it ever was.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_what_a_damaged_header_says_is_taken_in_by_a_real_socket():
    head = Head()
    chance = random.Random(2)
    try:
        for number in range(40):
            host = head.connect(head.invite(f"host-{number}.0"))
            for header in frames_for(50, seed=number):
                host.socket.send_multipart([header, *FRAMES[: chance.randrange(3)]])
        errors = 0
        deadline = time.monotonic() + 30
        while errors < 40 and time.monotonic() < deadline:
            time.sleep(0.05)
            arrivals = head.driver.take_arrivals()
            errors += sum(isinstance(m, ProtocolError) for _, m, _ in arrivals)
        # One each: who has broken the protocol is not heard any more.
        assert errors == 40
        honest = head.connect(head.invite("host-99.0"))
        honest.send(Leaving("1"))
        assert head.heard(1) == [("host-99.0", Leaving("1"))]
    finally:
        head.close()


MILLION = 1_000_000
BOMBS = {
    "an array of four thousand million": b"\xdd" + b"\xff" * 4,
    "a map of four thousand million": b"\xdf" + b"\xff" * 4,
    "four gigabytes": b"\xc6" + b"\xff" * 4,
    "nesting": b"\x92\xa4list\x91" * 50_000,
    "an array without elements": msgspec.msgpack.encode(["array", "<f8", [2**40, 0, 2**40], b""]),
    "objects without elements": msgspec.msgpack.encode(["objects", [2**62, 0, 2**62], []]),
    "a huge item": msgspec.msgpack.encode(["array", "<U999999999", [1], b"x"]),
    "a huge scalar": msgspec.msgpack.encode(["scalar", "|V999999999", b"x"]),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_few_bytes_do_not_become_many(bomb):
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            unpack(bomb, allow_pickle=False)
        with pytest.raises(ProtocolError):
            decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(2**62,) * MILLION, (2**63, 2**63), (1,) * 65])
def test_a_shape_is_refused_before_it_is_multiplied(shape):
    began = time.perf_counter()
    with pytest.raises(ProtocolError) as caught:
        read_array("<f8", shape, b"")
    assert time.perf_counter() - began < 1.0
    assert len(str(caught.value)) < 1_000


def test_a_long_number_is_read_at_once():
    began = time.perf_counter()
    unpack(msgspec.msgpack.encode(["int", "f" * 4_000_000]), allow_pickle=False)
    assert time.perf_counter() - began < 2.0


def test_what_is_wrong_is_told_in_few_words():
    with pytest.raises(ProtocolError) as caught:
        unpack(msgspec.msgpack.encode(["str", b"\xff" * MILLION]), allow_pickle=False)
    assert len(str(caught.value)) < 1_000


def test_no_error_about_a_peer_is_longer_than_a_paragraph():
    assert len(str(ProtocolError("x" * 400 * MILLION))) < 2_000
    assert len(str(ProtocolError.of(ProtocolError("x" * MILLION)))) < 2_000


def test_a_space_that_is_larger_than_its_description_is_refused():
    with pytest.raises(ValueError, match="bits"):
        space_from_plain(["space", "MultiBinary", {"n": [2**20, 2**20]}, None])


def test_a_compressed_delta_does_not_become_larger_than_the_weights():
    base, big = (
        Snapshot({"w": np.zeros(size, np.float32)}, "delta") for size in (1_000, 5 * MILLION)
    )
    said, bomb = encode_weights(big.vector, big.layout, "delta", big.vector)
    assert said == "delta"
    assert len(bomb) < MILLION / 10
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="the wrong length"):
            decode_weights(said, bomb, base.layout, base.vector)
        assert tracemalloc.get_traced_memory()[1] < 3 * MILLION
    finally:
        tracemalloc.stop()


# Chunks.


@pytest.mark.parametrize(
    "size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]
)
def test_frames_come_back_from_their_chunks(size):
    frames = [os.urandom(size), b"", os.urandom(5)]
    chunks = list(split(frames))
    assert max(map(len, chunks)) <= CHUNK_BYTES
    assert join(chunks, 1 << 30) == frames


def test_what_is_larger_than_allowed_is_refused():
    with pytest.raises(ProtocolError, match="the most is 9"):
        join([bytes(5), bytes(5)], 9)


def test_a_message_that_ends_within_a_frame_is_refused():
    with pytest.raises(ProtocolError, match="middle"):
        join([b"x", bytes(CHUNK_BYTES)], 1 << 30)
