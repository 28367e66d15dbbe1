"""Messages and arrays are read only if they are what they say."""

import contextlib
import typing

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clusterenv.arrays import bytes_of
from clusterenv.errors import ProtocolError
from clusterenv.protocol.message import encode
from clusterenv.wire.arrays import read_array
from clusterenv.wire.messages import (
    FromHead,
    FromHost,
    Leaving,
    Ready,
    ValuesMade,
    decode_from_head,
    decode_from_host,
)
from tests.unit.images import image_of

FROM_HOST, FROM_HEAD = typing.get_args(FromHost), typing.get_args(FromHead)
any_message = pytest.mark.parametrize(
    ("kind", "decode"),
    [(kind, decode_from_host) for kind in FROM_HOST]
    + [(kind, decode_from_head) for kind in FROM_HEAD],
    ids=lambda value: getattr(value, "__name__", ""),
)


def strategy_for(field):
    """Values of a field, from msgspec's own description of its type."""
    match field:
        case msgspec.inspect.IntType():
            return st.integers(-(2**63), 2**64 - 1)
        case msgspec.inspect.FloatType():
            return st.floats(allow_nan=False)
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.StrType():
            return st.text(max_size=9)
        case msgspec.inspect.BytesType():
            return st.binary(max_size=9)
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(strategy_for(item), max_size=4).map(tuple)
        case msgspec.inspect.TupleType(item_types=items):
            return st.tuples(*map(strategy_for, items))
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(strategy_for(key), strategy_for(value), max_size=3)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([strategy_for(one) for one in types])
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, *[strategy_for(field.type) for field in fields])
    raise AssertionError(f"{field} is no type of a message yet: add it here")


def message_of(kind):
    return strategy_for(msgspec.inspect.type_info(kind))


@any_message
@settings(max_examples=25)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind, decode, data):
    message = data.draw(message_of(kind))
    back = decode(encode(message))
    assert type(back) is kind
    assert back == message


def test_every_kind_of_message_has_its_own_name_on_the_wire():
    kinds = {*FROM_HOST, *FROM_HEAD}
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)


def test_nobody_may_say_what_the_other_says():
    assert not set(FROM_HOST) & set(FROM_HEAD)


# Headers that lie.


def decode_or_refuse(header):
    try:
        return decode_from_host(header)
    except ProtocolError as error:
        return error


@given(st.binary(max_size=100))
def test_random_headers_raise_nothing_but_protocol_errors(header):
    decode_or_refuse(header)


@given(
    st.one_of([message_of(kind) for kind in FROM_HOST]),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_damaged_headers_raise_nothing_but_protocol_errors(message, damages):
    header = bytearray(encode(message))
    for place, byte in damages:
        header[place % len(header)] = byte
    decode_or_refuse(bytes(header))


FORGED = {
    "nothing": b"",
    "no tag": b"\x90",
    "an unknown tag": msgspec.msgpack.encode(["Format", 1]),
    "a map": msgspec.msgpack.encode({"type": "Ready"}),
    "a field of another type": msgspec.msgpack.encode(["Ready", "one"]),
    "too few fields": msgspec.msgpack.encode(["Ready"]),
    "half a message": encode(ValuesMade(1, 2, (3,), b"x" * 9))[:-3],
    "more after the message": encode(Ready(1)) + b"\0",
    "text that is no UTF-8": b"\x92\xa7Leaving\xa2\xff\xff",
    "a tag that is no UTF-8": b"\x91\xa2\xff\xff",
    "bottomless nesting in a field nobody reads": b"\x93\xa5Ready\x01" + b"\x91" * 100_000,
    "what the head says": msgspec.msgpack.encode(["Close", 1.0]),
}


@pytest.mark.parametrize("header", FORGED.values(), ids=FORGED)
def test_a_forged_header_is_a_protocol_error(header):
    with pytest.raises(ProtocolError, match="not a message of this protocol"):
        decode_from_host(header)


def test_an_error_about_a_message_is_short():
    header = encode(Leaving("x"))[:-1] + b"\xc1" * 100_000
    assert len(str(decode_or_refuse(header))) < 1_000


# Arrays.


arrays = hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=4))


@given(arrays)
def test_an_array_comes_back_from_its_header_and_frame(array):
    back = read_array(array.dtype.str, array.shape, bytes(bytes_of(array)))
    assert image_of(back) == image_of(array)


@given(arrays)
def test_a_frame_is_as_long_as_its_array(array):
    assert len(bytes_of(array)) == array.nbytes


@given(arrays.filter(lambda array: array.size))
def test_the_frame_of_a_contiguous_array_is_the_array_itself(array):
    assert np.shares_memory(np.asarray(bytes_of(array)), array)


def test_the_frame_of_a_transposed_array_is_in_its_own_order():
    array = np.arange(6).reshape(2, 3).T
    assert bytes(bytes_of(array)) == array.tobytes()


def test_reading_an_array_copies_nothing():
    frame = bytes(24)
    assert np.shares_memory(read_array("<f8", (3,), frame), np.frombuffer(frame))


@pytest.mark.parametrize("frame", [bytes(8), memoryview(bytearray(8))], ids=["bytes", "writable"])
def test_an_array_that_was_read_cannot_be_written_to(frame):
    # libzmq's frames are writable.
    assert not read_array("<f8", (1,), frame).flags.writeable


LIES = {
    "too few bytes": ("<f8", (2,), bytes(8)),
    "too many bytes": ("<f8", (1,), bytes(16)),
    "a negative size": ("<f8", (-1,), b""),
    "two negative sizes": ("|u1", (-2, -3), bytes(6)),
    "a huge shape": ("<f8", (2**40,), bytes(8)),
    "a huge shape that overflows to fit": ("|u1", (2**32, 2**32), b""),
    "a huge shape without elements": ("<f8", (0, 2**62, 2**62), b""),
    "a size beyond numpy's": ("<f8", (0, 2**64 - 1), b""),
    "too many dimensions": ("|u1", (1,) * 70, bytes(1)),
    "objects": ("|O", (1,), bytes(8)),
    "hidden objects": ("f4,O", (1,), bytes(12)),
    "an unknown dtype": ("garbage", (1,), bytes(8)),
    "no dtype": ("", (1,), bytes(8)),
    "a broken dtype": ("f4,(", (1,), bytes(4)),
}


@pytest.mark.parametrize(("dtype", "shape", "frame"), LIES.values(), ids=LIES)
def test_an_array_that_is_not_what_its_header_says_is_refused(dtype, shape, frame):
    with pytest.raises(ProtocolError):
        read_array(dtype, shape, frame)


def test_the_refusal_says_what_was_announced_and_what_came():
    with pytest.raises(ProtocolError, match=r"frame of 8 bytes .* shape \(2,\) of <f8.* takes 16"):
        read_array("<f8", (2,), bytes(8))


shapes = st.lists(st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 4), max_size=4).map(tuple)
dtypes = st.text(max_size=9) | st.sampled_from(["<f8", "|u1", "|V3", "<M8[s]", "|O", "<U2"])


@given(dtypes, shapes, st.binary(max_size=16))
def test_random_array_headers_raise_nothing_but_protocol_errors(dtype, shape, frame):
    with contextlib.suppress(ProtocolError):
        read_array(dtype, shape, frame)
