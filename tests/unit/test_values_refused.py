"""What may not be packed or unpacked is refused, with one kind of error."""

import datetime
from copy import deepcopy

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError, UntrustedValueError
from clusterenv.plain.values import dtype_of_plain_data, pack, unpack

detonations = []


def detonate():
    detonations.append("bang")


class Bomb:
    """Unpickling it runs code."""

    def __reduce__(self):
        return detonate, ()


class Text(str):
    """A subclass of a plain type is no plain type."""


NOT_PLAIN = {
    "an object": Bomb(),
    "an object in a list": [1, Bomb()],
    "an object as key": {(1, frozenset({Bomb})): 2},
    "an object in an object array": np.array([None, Bomb()], dtype=object),
    "a function": detonate,
    "a class": Bomb,
    "a subclass of str": Text("x"),
    "a structured array": np.zeros(2, dtype=[("x", "f4")]),
    "a structured scalar": np.zeros(1, dtype=[("x", "f4")])[0],
    "a masked array": np.ma.masked_array([1, 2], [True, False]),
}


@pytest.mark.parametrize("value", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_no_plain_data_is_not_packed_without_pickle(value):
    with pytest.raises(UntrustedValueError):
        pack(value, allow_pickle=False)


@pytest.mark.parametrize("value", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_no_plain_data_is_packed_where_pickle_is_allowed(value):
    assert b"pickle" in pack(value, allow_pickle=True)


def test_the_refusal_names_the_type_and_what_to_do():
    with pytest.raises(UntrustedValueError) as caught:
        pack({"deep": [Bomb()]}, allow_pickle=False)
    assert f"of type {__name__}.Bomb is not plain data" in str(caught.value)
    assert "pass trust_workers=True if you trust" in str(caught.value)


@pytest.mark.parametrize("value", list(NOT_PLAIN.values())[:4], ids=list(NOT_PLAIN)[:4])
def test_a_pickle_that_is_not_allowed_is_never_opened(value):
    detonations.clear()
    with pytest.raises(ProtocolError, match=r"'pickle'.*not allowed here"):
        unpack(pack(value, allow_pickle=True), allow_pickle=False)
    assert detonations == []


def test_a_pickle_is_opened_where_it_is_allowed():
    detonations.clear()
    unpack(pack(Bomb(), allow_pickle=True), allow_pickle=True)
    assert detonations == ["bang"]


def unpack_or_refuse(data):
    try:
        unpack(data, allow_pickle=False)
    except ProtocolError as error:
        return error
    return None


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_protocol_errors(data):
    unpack_or_refuse(data)


tags = st.sampled_from(
    ["dict", "list", "set", "graph", "scalar", "array", "objects", "int", "complex", "pickle", "?"]
)
forgeries = st.recursive(
    st.one_of(
        tags,
        st.none(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.binary(max_size=16),
        st.sampled_from(["<f4", "|O", "<U0", "V0", "garbage", "f4,(", "<M8[zz]", "(2,)f4"]),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


@given(st.lists(forgeries, max_size=4).flatmap(lambda rest: tags.map(lambda tag: [tag, *rest])))
def test_forged_values_raise_nothing_but_protocol_errors(forgery):
    unpack_or_refuse(msgspec.msgpack.encode(forgery))


def test_bottomless_nesting_is_refused():
    assert isinstance(unpack_or_refuse(b"\x92\xa4list\x91" * 100_000), ProtocolError)


NEVER_PACKED = {
    "a map": {"a": 1},
    "a map in a list": ["list", [{"a": 1}]],
    "a timestamp": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "an extension": msgspec.msgpack.Ext(5, b"x"),
}


@pytest.mark.parametrize("value", NEVER_PACKED.values(), ids=NEVER_PACKED)
def test_msgpack_that_pack_never_makes_is_refused(value):
    assert isinstance(unpack_or_refuse(msgspec.msgpack.encode(value)), ProtocolError)


LIES = {
    "too few bytes": ["array", "<f8", [2], b"\0" * 8],
    "too many bytes": ["array", "<f8", [1], b"\0" * 16],
    "a huge shape": ["array", "<f8", [2**60], b"\0" * 8],
    "a huge shape without elements": ["array", "<f8", [0, 2**62, 2**62], b""],
    "a scalar without bytes": ["scalar", "<f8", b""],
    "a shape of objects": ["objects", [2**40], [None]],
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_array_that_is_not_what_it_says_is_refused(lie):
    assert isinstance(unpack_or_refuse(msgspec.msgpack.encode(lie)), ProtocolError)


@pytest.mark.parametrize("dtype", ["O", "|O", "f4,O", "(2,)O"])
def test_a_dtype_that_holds_objects_is_refused(dtype):
    with pytest.raises(ProtocolError, match="holds objects"):
        dtype_of_plain_data(dtype)


@pytest.mark.parametrize("dtype", ["garbage", "", "f4,(", "é", "<M8[zz]"])
def test_a_dtype_that_numpy_does_not_know_is_a_protocol_error(dtype):
    with pytest.raises(ProtocolError):
        dtype_of_plain_data(dtype)


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_what_is_nested_too_deep_to_be_copied_is_neither_sent_nor_taken_without_trust():
    deepcopy(unpack(pack(nested(64), allow_pickle=False), allow_pickle=False))
    with pytest.raises(UntrustedValueError, match="more than 64 levels"):
        pack(nested(65), allow_pickle=False)
    with pytest.raises(ProtocolError, match="more than 64 levels"):
        unpack(pack(nested(65), allow_pickle=True), allow_pickle=False)
    assert unpack(pack(nested(65), allow_pickle=True), allow_pickle=True) == nested(65)


def test_truth_values_are_0_or_1():
    odd = np.array([0, 1, 2], np.uint8).view(bool)
    with pytest.raises(ProtocolError, match="truth values"):
        unpack(pack(odd, allow_pickle=False), allow_pickle=False)
