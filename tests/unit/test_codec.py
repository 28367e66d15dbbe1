"""Messages and arrays are read only if they are what they say."""

import contextlib
import typing

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clusterenv.errors import ProtocolError
from clusterenv.wire.codec import decode, encode, frame_of, header_of, read_array, read_arrays
from clusterenv.wire.messages import AnyMessage, ArrayHeader, Close, Stepped
from tests.unit.images import image_of

MESSAGE_TYPES = typing.get_args(AnyMessage)
any_message = pytest.mark.parametrize("kind", MESSAGE_TYPES, ids=lambda kind: kind.__name__)


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
def test_every_message_comes_back_as_it_was(kind, data):
    message = data.draw(message_of(kind))
    back = decode(encode(message))
    assert type(back) is kind
    assert back == message


def test_every_kind_of_message_has_its_own_name_on_the_wire():
    tags = [kind.__struct_config__.tag for kind in MESSAGE_TYPES]
    assert len(set(tags)) == len(MESSAGE_TYPES)


# Headers that lie.


def decode_or_refuse(header):
    try:
        return decode(header)
    except ProtocolError as error:
        return error


@given(st.binary(max_size=100))
def test_random_headers_raise_nothing_but_protocol_errors(header):
    decode_or_refuse(header)


@given(
    st.one_of([message_of(kind) for kind in MESSAGE_TYPES]),
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
    "a map": msgspec.msgpack.encode({"type": "Close"}),
    "a field of another type": msgspec.msgpack.encode(["Stepped", "one"]),
    "too few fields": msgspec.msgpack.encode(["Stepped"]),
    "half a message": encode(Stepped(1, objects=b"x" * 9))[:-3],
    "more after the message": encode(Close()) + b"\0",
    "text that is no UTF-8": b"\x92\xa7Refused\xa2\xff\xff",
    "a tag that is no UTF-8": b"\x91\xa2\xff\xff",
    "bottomless nesting in a field nobody reads": b"\x92\xa5Close" + b"\x91" * 100_000,
}


@pytest.mark.parametrize("header", FORGED.values(), ids=FORGED)
def test_a_forged_header_is_a_protocol_error(header):
    with pytest.raises(ProtocolError, match="not a message of this protocol"):
        decode(header)


# Arrays.


arrays = hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=4))


@given(arrays)
def test_an_array_comes_back_from_its_header_and_frame(array):
    back = read_array(header_of(array), bytes(frame_of(array)))
    assert image_of(back) == image_of(array)


@given(arrays)
def test_a_frame_is_as_long_as_its_array(array):
    assert len(frame_of(array)) == array.nbytes


@given(arrays.filter(lambda array: array.size))
def test_the_frame_of_a_contiguous_array_is_the_array_itself(array):
    assert np.shares_memory(np.asarray(frame_of(array)), array)


def test_the_frame_of_a_transposed_array_is_in_its_own_order():
    array = np.arange(6).reshape(2, 3).T
    assert bytes(frame_of(array)) == array.tobytes()


def test_reading_an_array_copies_nothing():
    frame = bytes(24)
    assert np.shares_memory(read_array(ArrayHeader("<f8", (3,)), frame), np.frombuffer(frame))


@pytest.mark.parametrize("frame", [bytes(8), memoryview(bytearray(8))], ids=["bytes", "writable"])
def test_an_array_that_was_read_cannot_be_written_to(frame):
    # libzmq's frames are writable.
    assert not read_array(ArrayHeader("<f8", (1,)), frame).flags.writeable


LIES = {
    "too few bytes": (ArrayHeader("<f8", (2,)), bytes(8)),
    "too many bytes": (ArrayHeader("<f8", (1,)), bytes(16)),
    "a negative size": (ArrayHeader("<f8", (-1,)), b""),
    "two negative sizes": (ArrayHeader("|u1", (-2, -3)), bytes(6)),
    "a huge shape": (ArrayHeader("<f8", (2**40,)), bytes(8)),
    "a huge shape that overflows to fit": (ArrayHeader("|u1", (2**32, 2**32)), b""),
    "a huge shape without elements": (ArrayHeader("<f8", (0, 2**62, 2**62)), b""),
    "a size beyond numpy's": (ArrayHeader("<f8", (0, 2**64 - 1)), b""),
    "too many dimensions": (ArrayHeader("|u1", (1,) * 70), bytes(1)),
    "objects": (ArrayHeader("|O", (1,)), bytes(8)),
    "hidden objects": (ArrayHeader("f4,O", (1,)), bytes(12)),
    "an unknown dtype": (ArrayHeader("garbage", (1,)), bytes(8)),
    "no dtype": (ArrayHeader("", (1,)), bytes(8)),
    "a broken dtype": (ArrayHeader("f4,(", (1,)), bytes(4)),
}


@pytest.mark.parametrize(("header", "frame"), LIES.values(), ids=LIES)
def test_an_array_that_is_not_what_its_header_says_is_refused(header, frame):
    with pytest.raises(ProtocolError):
        read_array(header, frame)


def test_the_refusal_says_what_was_announced_and_what_came():
    with pytest.raises(ProtocolError, match=r"frame of 8 bytes .* shape \(2,\) of <f8.* takes 16"):
        read_array(ArrayHeader("<f8", (2,)), bytes(8))


@given(message_of(ArrayHeader), st.binary(max_size=16))
def test_random_array_headers_raise_nothing_but_protocol_errors(header, frame):
    with contextlib.suppress(ProtocolError):
        read_array(header, frame)


def test_as_many_frames_as_headers_must_come():
    with pytest.raises(ProtocolError, match="1 arrays were announced, 2 frames came"):
        read_arrays([ArrayHeader("<f8", (1,))], [bytes(8), bytes(8)])
