"""Infos of a fragment: what a worker records, how it travels, and what nobody believes."""

import pickle
import random
import threading

import msgspec
import numpy as np
import pytest

from clusterenv.arrays import bytes_of
from clusterenv.errors import ProtocolError
from clusterenv.plain.batched_infos import BatchedInfos
from clusterenv.protocol.fragment_infos import (
    DEEPEST,
    MOST_COLUMNS,
    PackedColumn,
    pack_columns,
    read_columns,
)
from clusterenv.protocol.fragments import FragmentPart, join_parts
from clusterenv.protocol.requests import Collect, Newest
from clusterenv.step_infos import StepInfos
from clusterenv.worker.info_record import InfoRecord
from clusterenv.worker.rows import Outcome
from tests.unit.test_reply_checks import CHECKS, NUM_STEPS, SLOTS, arrays
from tests.unit.test_security_fuzz import damage

T, OWN = 3, (4, 5)


def travelled(record, num_steps=T, slots=OWN, trusted=False):
    """What the head makes of what a worker recorded."""
    columns = []
    for array in record.arrays(num_steps).values():
        columns += read_columns(bytes_of(array), num_steps, slots, allow_pickle=trusted)
    return StepInfos(num_steps, np.array(slots), columns)


def outcome(infos):
    return Outcome((), (), (), (), list(infos))


def record_of(*steps, trusted=False):
    record = InfoRecord(OWN, trusted)
    for step, infos in enumerate(steps):
        if infos:
            record.add(step, outcome(infos))
    return record


def test_nothing_said_is_nothing_sent():
    assert record_of((), (), ()).arrays(T) == {}
    assert record_of([(4, {"final_obs": 1, "final_info": {}})]).arrays(T) == {}


def test_numbers_that_every_row_has_travel_without_their_rows():
    record = record_of(*([(4, {"a": t}), (5, {"a": 10 * t})] for t in range(T)))
    (array,) = record.arrays(T).values()
    packed = msgspec.msgpack.decode(array.tobytes())
    assert packed[1][0][1] == b""
    assert travelled(record)["a"].tolist() == [[0, 0], [1, 10], [2, 20]]


def test_rows_without_a_number_are_masked():
    infos = travelled(record_of((), [(5, {"a": 1.5})], [(4, {"a": 2.5}), (5, {})]))
    assert infos["a"].tolist() == [[0, 0], [0, 1.5], [2.5, 0]]
    assert infos["_a"].tolist() == [[False, False], [False, True], [True, False]]
    assert list(infos) == ["a", "_a"]
    assert "b" not in infos
    assert "_b" not in infos


def test_numbers_of_several_kinds_become_the_wider_one():
    infos = travelled(record_of([(4, {"a": 1}), (5, {"a": 0.5})], [(4, {"a": True})]))
    assert infos["a"].dtype == np.float64
    assert infos["a"].tolist() == [[1.0, 0.5], [1.0, 0.0], [0.0, 0.0]]


def test_numbers_too_large_for_an_array_stay_as_they_are():
    infos = travelled(record_of([(4, {"a": 2**70}), (5, {"a": 1})]))
    assert infos["a"].tolist() == [[2**70, 1], [None, None], [None, None]]


def test_what_an_env_changes_later_was_kept_as_it_was():
    said = {"array": np.zeros(2), "list": [0], "dict": {"list": [0]}}
    record = InfoRecord(OWN, trusted=False)
    for step in range(T):
        said["array"] += 1
        said["list"][0] = said["dict"]["list"][0] = step
        record.add(step, outcome([(5, said)]))
    infos = travelled(record)
    assert infos["array"][:, 1].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert infos["list"][:, 1].tolist() == [[0], [1], [2]]
    assert infos["dict"]["list"][:, 1].tolist() == [[0], [1], [2]]


def test_odd_names_and_deep_dicts_do_no_harm():
    deep = {"end": 1}
    for _ in range(DEEPEST + 3):
        deep = {"in": deep}
    infos = travelled(record_of([(4, {0: 1, "\ud800": 2, "a/b": 3, "": 4, **deep})]))
    assert [infos[name][0, 0] for name in ("0", "\\ud800", "a/b", "")] == [1, 2, 3, 4]
    for _ in range(DEEPEST - 1):
        infos = infos["in"]
    assert isinstance(infos["in"][0, 0], dict)


def test_what_cannot_travel_is_left_out_with_one_warning():
    said = [(4, {"a": {"lock": threading.Lock()}, "b": 1})]
    with pytest.warns(UserWarning, match=r"info 'a\.lock' cannot travel.*infos=False") as caught:
        record = record_of(*[said] * T)
    assert len(caught) == 1
    assert list(travelled(record)) == ["b", "_b"]


class OnlyThere:
    """Can be pickled, and not be unpickled."""

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise ModuleNotFoundError("No module named 'simulator'")


def test_what_cannot_be_unpickled_is_left_out_and_nothing_else():
    said = [(4, {"a": {"engine": OnlyThere()}, "b": 1}), (5, {"a": {"engine": "none"}, "b": 2})]
    (packed,) = record_of(said, trusted=True).arrays(1).values()
    columns = {
        ".".join(one.path): one for one in read_columns(bytes_of(packed), 1, OWN, allow_pickle=True)
    }
    assert (columns["a.engine"].slots.tolist(), columns["a.engine"].values) == ([5], ["none"])
    assert "slot 4: " in columns["a.engine"].unread
    assert "No module named 'simulator'" in columns["a.engine"].unread
    assert (columns["b"].values.tolist(), columns["b"].unread) == ([1, 2], "")


@pytest.mark.parametrize(
    "said",
    [
        np.array(["ab", "c"]),
        np.zeros((2, 0)),
        np.array([1, 2], "m8[s]"),
        np.array(["a", None], object),
    ],
    ids=["text", "empty", "durations", "objects"],
)
def test_what_a_vector_env_says_in_arrays_that_are_no_numbers_travels_one_by_one(said):
    record, outcome = (
        InfoRecord((4, 5), trusted=True),
        Outcome(None, [0] * 2, [False] * 2, [False] * 2),
    )
    outcome.infos = BatchedInfos(np.array([4, 5]), {"task": said, "speed": np.array([1.0, 2.0])})
    record.add(0, outcome)
    (packed,) = record.arrays(1).values()
    columns = {
        c.path: c.values for c in read_columns(bytes_of(packed), 1, (4, 5), allow_pickle=True)
    }
    assert columns["speed",].tolist() == [1.0, 2.0]
    assert [np.asarray(one).tolist() for one in columns["task",]] == said.tolist()


def test_infos_can_be_shown_and_pickled():
    infos = travelled(record_of([(4, {"a": 1, "b": {"c": "text"}})]))
    text = "StepInfos({a: int64 (3, 2), b: {c: object (3, 2)}})"
    assert repr(infos) == text
    assert repr(pickle.loads(pickle.dumps(infos))) == text


def test_joined_parts_keep_what_each_worker_said():
    request = Collect(1, (4, 5, 6), T, Newest(1, 1))
    parts = []
    for slots, infos in (((4, 5), {"a": 1}), ((6,), {"b": 2})):
        record = InfoRecord(slots, trusted=False)
        record.add(1, outcome([(slots[0], infos)]))
        rewards = {"rewards": np.zeros((T, len(slots)))}
        parts.append(FragmentPart(request, slots, 1, rewards | record.arrays(T)))
    joined = join_parts(parts)
    columns = [
        (column.path, column.steps.tolist(), column.slots.tolist())
        for name, array in joined.arrays.items()
        if name.startswith("infos/")
        for column in read_columns(bytes_of(array), T, joined.slots, allow_pickle=False)
    ]
    assert columns == [(("a",), [1], [4]), (("b",), [1], [6])]


# Lies.

ROW = np.array([1], np.int32).tobytes()
FLOAT = np.ones(1).tobytes()
LIES = {
    "no name": PackedColumn((), ROW, "<f8", (), FLOAT),
    "a deep name": PackedColumn(("a",) * (DEEPEST + 1), ROW, "<f8", (), FLOAT),
    "a row too far": PackedColumn(("a",), np.array([T * 2], np.int32).tobytes(), "<f8", (), FLOAT),
    "a row before the first": PackedColumn(("a",), b"\xff" * 4, "<f8", (), FLOAT),
    "half a row": PackedColumn(("a",), b"\0\0", "<f8", (), FLOAT),
    "too few numbers": PackedColumn(("a",), b"", "<f8", (), FLOAT),
    "too many numbers": PackedColumn(("a",), ROW, "<f8", (), FLOAT * 2),
    "objects as numbers": PackedColumn(("a",), ROW, "|O8", (), FLOAT),
    "text as numbers": PackedColumn(("a",), ROW, "<U2", (), FLOAT),
    "no dtype": PackedColumn(("a",), ROW, "nonsense", (), FLOAT),
    "a negative side": PackedColumn(("a",), ROW, "<f8", (-1,), FLOAT),
    "no side": PackedColumn(("a",), ROW, "<f8", (0, 2**40), b""),
    "huge sides": PackedColumn(("a",), ROW, "<f8", (2**60, 2**60), FLOAT),
    "many sides": PackedColumn(("a",), ROW, "<f8", (1,) * 80, FLOAT),
    "too few objects": PackedColumn(("a",), ROW),
    "no packed object": PackedColumn(("a",), ROW, objects=(b"nonsense",)),
    "a pickle": PackedColumn(("a",), ROW, objects=(msgspec.msgpack.encode(["pickle", b"x"]),)),
}


@pytest.mark.parametrize("lie", LIES)
def test_infos_that_no_worker_packs_are_not_believed(lie):
    data = bytes_of(pack_columns(OWN, [LIES[lie]]))
    with pytest.raises(ProtocolError):
        read_columns(data, T, OWN, allow_pickle=False)


@pytest.mark.parametrize("slots", [(), (3,), (4, 5, 6)])
def test_infos_of_other_slots_are_not_believed(slots):
    data = bytes_of(pack_columns(slots, []))
    with pytest.raises(ProtocolError, match="slots that are not in the fragment"):
        read_columns(data, T, OWN, allow_pickle=False)


def test_more_infos_than_anybody_has_are_not_believed():
    columns = [PackedColumn(("a",), ROW, "<f8", (), FLOAT)] * (MOST_COLUMNS + 1)
    with pytest.raises(ProtocolError, match="are allowed"):
        read_columns(bytes_of(pack_columns(OWN, columns)), T, OWN, allow_pickle=False)


def test_a_fragment_is_believed_only_with_infos_that_can_be_read():
    record = InfoRecord(SLOTS, trusted=False)
    record.add(0, outcome([(SLOTS[0], {"a": 1, "text": "b"})]))
    said = record.arrays(NUM_STEPS)
    CHECKS.check_part(fragment(said))
    with pytest.raises(ProtocolError, match="not asked for"):
        CHECKS.check_part(fragment(said, wanted=False))
    with pytest.raises(ProtocolError, match="another layout"):
        CHECKS.check_part(fragment({"infos/0": np.zeros(5, np.uint8)}))


def fragment(infos, wanted=True):
    request = Collect(1, SLOTS, NUM_STEPS, Newest(2, 3), infos=wanted)
    return FragmentPart(request, SLOTS, 3, arrays() | infos)


def test_whatever_can_be_read_can_be_looked_at():
    """Damaged bytes are refused on arrival, or give arrays: nothing raises where users look."""
    chance = random.Random(0)
    record = record_of(
        [(4, {"a": 1, "b": {"c": np.ones(2)}}), (5, {"a": 0.5, "b": "text"})],
        [(5, {"d": [1, None], "b": {"c": np.ones(3)}})],
    )
    (array,) = record.arrays(T).values()
    num_read = 0
    for _ in range(3000):
        data = damage(array.tobytes(), chance)
        try:
            columns = read_columns(data, T, OWN, allow_pickle=False)
        except ProtocolError:
            continue
        num_read += 1
        infos = StepInfos(T, np.array(OWN), columns)
        assert repr(infos)
        assert all(infos[name] is not None for name in infos)
    assert num_read > 10
