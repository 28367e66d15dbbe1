"""Infos arrive as they were made, and are merged as Gymnasium does, whatever way they travel."""

import msgspec
import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.head.infos import Infos
from clusterenv.plain.infos import InfosByName, pack_infos, unpack_infos
from clusterenv.plain.values import pack
from tests.equality import assert_same

NUM_ENVS = 6
WORKERS = [(0, 1, 2), (3, 4, 5)]


class Oracle(VectorEnv):
    """Gymnasium's own way to merge infos."""

    def __init__(self, num_envs):
        self.num_envs = num_envs

    def merge(self, infos):
        merged = {}
        for row, info in infos:
            merged = self._add_info(merged, info, row)
        return merged


class Listed(VectorEnv):
    """A way of one's own."""

    def _add_info(self, vector_infos, env_info, env_num):
        return {**vector_infos, env_num: env_info}


numbers = {
    "int": st.integers(-9, 9),
    "float": st.floats(0, 9),
    "bool": st.booleans(),
    "float32": st.floats(0, 9, width=32).map(np.float32),
}
# One kind of value per key, as envs do; which key a slot has is left to chance.
mixed = st.fixed_dictionaries(
    {},
    optional={
        **numbers,
        "number": st.integers(-9, 9) | st.floats(0, 9),
        "large": st.integers(-(2**70), 2**70),
        "bit": st.booleans().map(np.bool_),
        "text": st.text(max_size=3),
        "nested": st.fixed_dictionaries({}, optional={"x": st.floats(0, 1), "y": st.none()}),
        "array": st.just(np.arange(3)),
        "final_obs": st.integers(0, 1),
    },
)
infos_by_slot = st.dictionaries(
    st.integers(0, NUM_ENVS - 1), mixed | st.fixed_dictionaries(numbers)
) | st.dictionaries(st.integers(0, NUM_ENVS - 1), st.fixed_dictionaries(numbers), min_size=3)


def travelled(infos):
    """What two workers say of their slots, as the head has it."""
    arrived = Infos(NUM_ENVS)
    for slots in WORKERS:
        own = [(slot, infos[slot]) for slot in slots if infos.get(slot)]
        if own:
            data = pack_infos(own, allow_pickle=False)
            arrived.put(unpack_infos(data, allow_pickle=False), slots)
    return arrived


def merged_by_gymnasium(infos, num_envs):
    """The merged infos, or the kind of error that they are."""
    try:
        return Oracle(num_envs).merge(infos)
    except Exception as error:
        return type(error)


def assert_merges(take, expected):
    if isinstance(expected, type):
        with pytest.raises(expected):
            take()
    else:
        assert_same(take(), expected)


@given(infos_by_slot)
def test_infos_are_merged_in_slot_order_as_gymnasium_does(infos):
    expected = merged_by_gymnasium(sorted(infos.items()), NUM_ENVS)
    assert_merges(lambda: travelled(infos).take(Oracle(NUM_ENVS)._add_info), expected)


@given(infos_by_slot)
def test_infos_of_some_slots_are_merged_in_their_order_as_gymnasium_does(infos):
    slots = [1, 3, 4]
    wanted = [(row, infos[slot]) for row, slot in enumerate(slots) if slot in infos]
    expected = merged_by_gymnasium(wanted, len(slots))
    assert_merges(lambda: travelled(infos).take_of(slots), expected)


@given(infos_by_slot)
def test_whoever_merges_another_way_gets_them_as_the_envs_made_them(infos):
    said = {slot: info for slot, info in sorted(infos.items()) if info}
    assert_same(travelled(infos).take(Listed()._add_info), said)


@given(infos_by_slot, st.randoms())
def test_the_order_of_arrival_does_not_matter(infos, random):
    arrived, pairs = Infos(NUM_ENVS), list(infos.items())
    random.shuffle(pairs)
    for slot, info in pairs:
        arrived.put([(slot, info)], [slot])
    expected = merged_by_gymnasium(sorted(infos.items()), NUM_ENVS)
    assert_merges(lambda: arrived.take(Oracle(NUM_ENVS)._add_info), expected)


def alike(slots):
    return [(slot, {"lives": 3, "x": 0.5 * slot}) for slot in slots]


def test_infos_that_are_alike_travel_by_name():
    data = pack_infos(alike(range(32)), allow_pickle=False)
    assert isinstance(unpack_infos(data, allow_pickle=False), InfosByName)


@pytest.mark.parametrize(
    "other",
    [{"lives": 3}, {"lives": 3.0, "x": 0.0}, {"lives": 3, "x": "no"}, {"lives": 3, "_x": 0.0}],
)
def test_infos_that_are_not_alike_travel_by_slot(other):
    infos = [*alike([0, 1]), (2, other)]
    arrived = unpack_infos(pack_infos(infos, allow_pickle=False), allow_pickle=False)
    assert_same(arrived, infos)


@pytest.mark.parametrize("name", ["\ud800", "größe"])
def test_infos_have_any_names(name):
    infos = [(slot, {name: slot}) for slot in range(3)]
    arrived = unpack_infos(pack_infos(infos, allow_pickle=False), allow_pickle=False)
    assert_same(arrived, infos)


def test_the_infos_of_one_slot_are_merged_in_the_order_they_were_made():
    infos = Infos(2)
    infos.put([(1, {"x": 1}), (0, {"x": 5}), (1, {"x": 2})], [0, 1])
    assert infos.take(Oracle(2)._add_info)["x"].tolist() == [5, 2]


def test_infos_are_taken_once():
    infos = travelled(dict(alike(range(6))))
    infos.take(Oracle(NUM_ENVS)._add_info)
    assert infos.take(Oracle(NUM_ENVS)._add_info) == {}


@pytest.mark.parametrize("taken", [[1], [0, 1, 2], [2, 3]])
def test_taking_the_infos_of_some_slots_leaves_those_of_the_others(taken):
    infos = travelled(dict(alike(range(6))))
    infos.take_of(taken)
    left = infos.take(Oracle(NUM_ENVS)._add_info)
    assert left["_x"].tolist() == [slot not in taken for slot in range(6)]


@pytest.mark.parametrize(
    "said",
    [5, [5], [(1, 2, 3)], [(1, "no dict")], [("one", {})], (np.array([1]), {"x": np.ones(1)}, ())],
)
def test_infos_of_another_layout_are_a_protocol_error(said):
    with pytest.raises(ProtocolError, match="of another layout"):
        unpack_infos(b"s" + pack(said, allow_pickle=False), allow_pickle=False)


SLOTS, COLUMN = np.array([1, 2]).tobytes(), np.array([0.5, 0.5]).tobytes()


def test_infos_by_name_are_bytes_by_name():
    said = msgspec.msgpack.encode((SLOTS, {"x": ("<f8", COLUMN)}, ("x",)))
    infos = unpack_infos(b"n" + said, allow_pickle=False)
    assert infos.by_slot() == [(1, {"x": 0.5}), (2, {"x": 0.5})]


@pytest.mark.parametrize(
    "said",
    [
        5,
        [],
        (SLOTS, {"x": ("<f8", COLUMN)}),
        (SLOTS, {}, ()),
        (b"", {"x": ("<f8", b"")}, ()),
        (SLOTS[:9], {"x": ("<f8", COLUMN)}, ()),
        (SLOTS, {"x": ("<f8", COLUMN[:8])}, ()),
        (SLOTS, {"x": ("<f8", COLUMN[:9])}, ()),
        (SLOTS, {"x": ("<S8", COLUMN)}, ()),
        (SLOTS, {"x": ("|O8", COLUMN)}, ()),
        (SLOTS, {"x": ("no dtype", COLUMN)}, ()),
        (SLOTS, {5: ("<f8", COLUMN)}, ()),
        ([1, 2], {"x": ("<f8", COLUMN)}, ()),
        (SLOTS, {"x": ("<f8", COLUMN)}, (5,)),
    ],
)
def test_infos_by_name_of_another_layout_are_a_protocol_error(said):
    with pytest.raises(ProtocolError, match=r"of another layout|no dtype"):
        unpack_infos(b"n" + msgspec.msgpack.encode(said), allow_pickle=False)


@pytest.mark.parametrize("data", [b"x", b"n", b"s", b"n\xc1", b"\x00"])
def test_bytes_that_are_no_infos_are_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        unpack_infos(data, allow_pickle=False)


@pytest.mark.parametrize("slots", [[9], [-1], [0, 1, 2]])
def test_infos_of_other_slots_are_a_protocol_error(slots):
    by_name = InfosByName(np.array(slots), {"x": np.zeros(len(slots))}, ())
    for said in (by_name, by_name.by_slot()):
        with pytest.raises(ProtocolError, match="other slots"):
            Infos(4).put(said, [0, 1])


# Where hosts are not trusted.

ODD_INFOS = {
    "shapes that differ": [{"x": np.zeros(3)}, {"x": np.zeros(4)}],
    "an array and a dict": [{"x": np.zeros(3)}, {"x": {"y": 1}}],
    "a dict and a number": [{"x": {"y": 1}}, {"x": 1}],
    "a number that is too large": [{"x": 1}, {"x": 2**70}],
    "a mask that is none": [{"_x": 5, "x": 1}, {"x": 2}],
    "a mask of another shape": [{"x": 1}, {"_x": np.zeros(99)}, {"x": 2}],
    "names that are no text": [{None: 1}, {(): 2}, {3: np.zeros(2)}],
    "times and numbers": [{"x": np.zeros(2)}, {"x": np.zeros(2, "<M8[s]")}],
    "text and numbers": [{"x": 1.0}, {"x": "one"}],
}


@pytest.mark.parametrize("odd", ODD_INFOS.values(), ids=ODD_INFOS)
def test_infos_that_do_not_fit_together_are_objects_where_hosts_are_not_trusted(odd):
    infos = Infos(NUM_ENVS, trusted=False)
    said = [(slot, {**info, "honest": slot}) for slot, info in enumerate(odd)]
    for slot, info in said:
        infos.put([(slot, info)], [slot])
    merged = infos.take(Oracle(NUM_ENVS)._add_info)
    # What the others say comes as ever.
    assert merged["honest"].tolist() == [*range(len(odd)), *[0] * (NUM_ENVS - len(odd))]
    assert merged["honest"].dtype == np.int64
    assert merged["_honest"].sum() == len(odd)


def test_what_does_not_fit_is_there_by_slot():
    infos = Infos(NUM_ENVS, trusted=False)
    infos.put([(1, {"x": np.zeros(3)}), (4, {"x": np.ones(4)})], [1, 4])
    merged = infos.take_of([1, 2, 4])
    assert merged["_x"].tolist() == [True, False, True]
    assert [None if one is None else one.tolist() for one in merged["x"]] == [
        [0] * 3,
        None,
        [1] * 4,
    ]
