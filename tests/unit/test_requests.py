"""A request is passed on to each worker with its share, and nothing else changed."""

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.memory import messages
from clusterenv.memory.messages import decode_from_host, decode_from_worker
from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.message import encode
from clusterenv.protocol.replies import Collected, Raised, Returned, Stepped, reply_to
from clusterenv.protocol.requests import (
    Act,
    Call,
    Collect,
    CountTime,
    Evaluate,
    Measured,
    Newest,
    Reset,
    SetAttr,
    Step,
    narrow,
)
from clusterenv.sharing import split

SLOTS = (4, 5, 6, 9, 10)
NEWEST = Newest(3, 17, Measured(15, 0.5, 0.1, 0.9))
SEEDS = [2**70, None, 3, 4, 5]


def packed(value):
    return pack(value, allow_pickle=False)


REQUESTS = {
    "reset": Reset(1, SLOTS, 42, packed(SEEDS), packed({"a": 1}), reports_loss=True),
    "reset without seeds": Reset(1, SLOTS, 42),
    "step": Step(1, SLOTS, dtype="<i8", num_parts=2),
    "step of objects": Step(1, SLOTS, packed_actions=tuple(packed(slot) for slot in SLOTS)),
    "call": Call(1, SLOTS, "render", packed(((), {}))),
    "set_attr": SetAttr(1, SLOTS, "speed", tuple(packed(slot) for slot in SLOTS)),
    "count_time": CountTime(1, SLOTS, True),
    "act": Act(1, SLOTS, NEWEST),
    "collect": Collect(1, SLOTS, 128, NEWEST, together=True),
    "evaluate": Evaluate(1, SLOTS, (1, 2, 3, 4, 5), 7, True, NEWEST),
}
every_request = pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
PER_SLOT = {
    "reset": ("seeds", lambda request: unpack(request.seeds, allow_pickle=False), SEEDS),
    "step of objects": (
        "packed_actions",
        lambda request: [unpack(one, allow_pickle=False) for one in request.packed_actions],
        list(SLOTS),
    ),
    "set_attr": (
        "values",
        lambda request: [unpack(one, allow_pickle=False) for one in request.values],
        list(SLOTS),
    ),
    "evaluate": ("episodes", lambda request: list(request.episodes), [1, 2, 3, 4, 5]),
}


@every_request
def test_a_worker_gets_its_number_and_its_slots(request_):
    narrowed = narrow(request_, 99, (6, 9), slice(2, 4))
    assert type(narrowed) is type(request_)
    assert (narrowed.request, narrowed.slots) == (99, (6, 9))


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_not_said_slot_by_slot_goes_to_every_worker(name):
    request = REQUESTS[name]
    narrowed = narrow(request, 99, (6, 9), slice(2, 4))
    changed = {"request", "slots", PER_SLOT[name][0] if name in PER_SLOT else ""}
    for field in set(request.__struct_fields__) - changed:
        assert getattr(narrowed, field) == getattr(request, field)


@pytest.mark.parametrize("name", PER_SLOT)
def test_what_is_said_slot_by_slot_goes_to_the_slots_worker(name):
    _, read, expected = PER_SLOT[name]
    assert read(narrow(REQUESTS[name], 99, (6, 9), slice(2, 4))) == expected[2:4]


@every_request
def test_the_request_itself_stays_as_it_was(request_):
    before = encode(request_)
    narrow(request_, 99, (6, 9), slice(2, 4))
    assert encode(request_) == before


@given(st.data())
def test_all_shares_together_are_the_whole(data):
    firsts = [0, *sorted(data.draw(st.sets(st.integers(1, 19), max_size=4))), 20]
    slots = sorted(data.draw(st.sets(st.integers(0, 19), min_size=1)))
    whole = Evaluate(1, tuple(slots), tuple(slot + 100 for slot in slots), 7, True, NEWEST)
    shares = [narrow(whole, 2, group, rows) for _, group, rows in split(slots, firsts)]
    assert [slot for share in shares for slot in share.slots] == slots
    assert all(
        episodes == slot + 100
        for share in shares
        for slot, episodes in zip(share.slots, share.episodes, strict=True)
    )


@every_request
def test_requests_can_be_narrowed_twice_from_head_to_host_to_worker(request_):
    at_host = narrow(request_, 1, SLOTS[1:], slice(1, 5))
    assert narrow(at_host, 2, SLOTS[2:4], slice(1, 3)) == narrow(
        request_, 2, SLOTS[2:4], slice(2, 4)
    )


# Replies.


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("reset", Stepped),
        ("step", Stepped),
        ("act", Stepped),
        ("call", Returned),
        ("set_attr", Returned),
        ("evaluate", Returned),
        ("collect", Collected),
    ],
)
def test_each_request_has_its_kind_of_reply(name, kind):
    assert reply_to(REQUESTS[name]) is kind


# Between host and worker.


def examples(kinds):
    """A message of each kind."""
    values = {int: 3, str: "text", bytes: b"raw", bool: True, float: 0.5}
    for kind in typing.get_args(kinds):
        hints = typing.get_type_hints(kind)
        yield kind(*(value_of(hints[name], values) for name in kind.__struct_fields__))


def value_of(hint, values):
    if hint in values:
        return values[hint]
    if hint is Newest:
        return NEWEST
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        if inner[-1] is Ellipsis:
            return (value_of(inner[0], values),) * 2
        return tuple(value_of(one, values) for one in inner)
    return None


FROM_HOST = list(examples(messages.FromHost))
FROM_WORKER = list(examples(messages.FromWorker))


@pytest.mark.parametrize("message", FROM_HOST, ids=lambda message: type(message).__name__)
def test_what_a_host_says_is_understood_by_workers(message):
    assert decode_from_host(encode(message)) == message


@pytest.mark.parametrize("message", FROM_WORKER, ids=lambda message: type(message).__name__)
def test_what_a_worker_says_is_understood_by_hosts(message):
    assert decode_from_worker(encode(message)) == message


def test_each_understands_only_what_the_other_may_say():
    both = {type(m).__name__ for m in FROM_HOST} & {type(m).__name__ for m in FROM_WORKER}
    assert both == {"InFrames"}
    for message in FROM_HOST:
        if type(message).__name__ not in both:
            with pytest.raises(ProtocolError, match="not a message of this protocol"):
                decode_from_worker(encode(message))
    for message in FROM_WORKER:
        if type(message).__name__ not in both:
            with pytest.raises(ProtocolError, match="not a message of this protocol"):
                decode_from_host(encode(message))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"\x80", b"text", b"\x91\xa5Close\x01", b"\x91" * 100_000, b"\xa2\xff\xff"],
    ids=["nothing", "no msgpack", "a dict", "text", "too much", "bottomless", "no UTF-8"],
)
def test_what_is_no_message_is_a_protocol_error(data):
    with pytest.raises(ProtocolError, match="not a message of this protocol"):
        decode_from_worker(data)


def test_an_error_on_the_wire_keeps_all_that_is_known_of_it():
    raised = Raised(3, None, "builtins", "ValueError", b"a", "text", "traceback", "action")
    assert decode_from_worker(encode(raised)) == raised
    assert msgspec.structs.asdict(raised)["slot"] is None
