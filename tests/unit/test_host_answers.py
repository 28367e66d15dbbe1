"""What a host behind a socket says is turned into events, or ends that host and nobody else."""

import contextlib
import random

import msgspec
import numpy as np
import pytest
from gymnasium.spaces import Box

from clusterenv.arrays import bytes_of
from clusterenv.errors import ProtocolError
from clusterenv.head.host_answers import RowSink, events_in, shortened
from clusterenv.head.remote_host import RemoteHost
from clusterenv.host.events import Failed, Lost, Rows, Values, Voided, WorkerWarned
from clusterenv.plain.row_layout import RowLayout
from clusterenv.plain.spaces import leaves_of
from clusterenv.plain.values import pack
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.message import encode
from clusterenv.protocol.replies import Raised
from clusterenv.protocol.requests import Act, Call, Collect, Newest, Reset, Step
from clusterenv.wire.messages import (
    Extra,
    FragmentMade,
    RequestFailed,
    RowsMade,
    ValuesMade,
    Warned,
    WorkerLost,
    decode_from_host,
)
from clusterenv.wire.observation_codec import Coding
from clusterenv.wire.reply_checks import ReplyChecks
from tests.unit.test_remote_host import WHOLE_LIFE, PaperDriver
from tests.unit.test_security_fuzz import damage

SPACE = Box(-1.0, 1.0, (2,), np.float64)
LAYOUT = RowLayout(leaves_of(SPACE))
NUM_ENVS = 6
OWN = range(2, 5)
NEWEST = Newest(1, 2)
RAISED = Raised(0, 2, "builtins", "ValueError", pack(("x",), allow_pickle=False), "x", "")


class Published:
    version = 2

    def policy_of(self, version):
        return 1 if version < 3 else 2

    policy_id_of = policy_of


CHECKS = ReplyChecks(SPACE, SPACE, Published())


class Head:
    """A host with slots 2, 3 and 4 of six, and what the head makes of what it says."""

    def __init__(self, *requests):
        self.host = RemoteHost(1, PaperDriver(), 0.0)
        self.host.slots, self.host.epoch = OWN, 5
        for state in WHOLE_LIFE:
            self.host.become(state)
        self.sink = RowSink(LAYOUT, NUM_ENVS)
        for request in requests:
            self.host.ask(request)

    def hear(self, message, frames=()):
        return list(events_in(self.host, message, list(frames), self.sink, CHECKS))

    def refuses(self, message, frames=()):
        before = self.left()
        # Whatever it is, it ends the host.
        with pytest.raises(Exception) as caught:
            self.hear(message, frames)
        assert self.left() == before
        return str(caught.value)

    def left(self):
        return {one.request.request: set(one.slots) for one in self.host.pending.all}


def rows(*values):
    """A frame with one row per value."""
    memory = bytearray(LAYOUT.size(len(values)))
    view = LAYOUT.view(memory, len(values))
    view.rewards[:] = values
    view.observations[0][:] = np.array(values)[:, None]
    return [bytes(memory)]


def fragment(count, num_steps=3):
    """The arrays of a fragment of so many slots in which no episode ended."""
    return {
        "observations/0": np.zeros((num_steps + 1, count, 2)),
        "actions/0": np.zeros((num_steps, count, 2)),
        "rewards": np.zeros((num_steps, count)),
        "terminated": np.zeros((num_steps, count), bool),
        "truncated": np.zeros((num_steps, count), bool),
        "finals/0": np.zeros((0, 2)),
        "finals/steps": np.zeros(0, np.int64),
        "finals/slots": np.zeros(0, np.int64),
        "finals/returns": np.zeros(0),
        "finals/lengths": np.zeros(0, np.int64),
    }


def fragment_made(request, slots, version=1, **changes):
    arrays = fragment(len(slots))
    kinds = tuple((array.dtype.str, array.shape) for array in arrays.values())
    message = FragmentMade(5, request, slots, version, tuple(arrays), kinds)
    return msgspec.structs.replace(message, **changes), list(map(bytes_of, arrays.values()))


# Rows.


def test_rows_of_all_slots_answer_a_step():
    head = Head(step := Step(1, tuple(OWN)))
    assert head.hear(RowsMade(5, None), rows(1, 2, 3)) == [Rows(step, OWN)]
    assert head.sink.results.rewards.tolist() == [0, 0, 1, 2, 3, 0]
    assert head.host.is_idle


def test_rows_of_some_slots_are_placed_by_slot():
    head = Head(step := Step(1, tuple(OWN)))
    assert head.hear(RowsMade(5, (2, 4)), rows(1, 2)) == [Rows(step, (2, 4))]
    assert head.sink.results.observations[0][:, 0].tolist() == [0, 0, 1, 0, 2, 0]
    assert head.left() == {1: {3}}


def test_what_is_said_besides_goes_with_the_request_that_it_is_about():
    head = Head(step := Step(1, (2, 3)), reset := Reset(2, (4,), 0))
    extras = (Extra((2,), infos=b"i"), Extra((4,), objects=b"o"))
    assert head.hear(RowsMade(5, None, extras), rows(1, 2, 3)) == [
        Rows(step, (2,), infos=b"i"),
        Rows(step, [3]),
        Rows(reset, (4,), objects=b"o"),
    ]


def test_rows_of_an_earlier_epoch_are_ignored():
    head = Head(Step(1, tuple(OWN)))
    assert head.hear(RowsMade(4, None), rows(1, 2, 3)) == []
    assert head.left() == {1: {2, 3, 4}}
    assert not head.sink.results.rewards.any()


ROW_LIES = {
    "of an epoch to come": (RowsMade(6, None), rows(1, 2, 3)),
    "of another's slots": (RowsMade(5, (0, 1, 2)), rows(1, 2, 3)),
    "of nobody's slots": (RowsMade(5, (2, 3, 99)), rows(1, 2, 3)),
    "of a slot twice": (RowsMade(5, (2, 2, 4)), rows(1, 2, 3)),
    "of slots in another order": (RowsMade(5, (4, 3, 2)), rows(1, 2, 3)),
    "of no slots": (RowsMade(5, ()), [b""]),
    "too few": (RowsMade(5, None), [rows(1, 2, 3)[0][:-64]]),
    "too many": (RowsMade(5, (2, 3)), rows(*range(99))),
    "no frame": (RowsMade(5, None), []),
    "two frames": (RowsMade(5, None), rows(1, 2, 3) * 2),
    "extras of another's slots": (RowsMade(5, None, (Extra((0,)),)), rows(1, 2, 3)),
    "extras without rows": (RowsMade(5, (2, 3), (Extra((4,)),)), rows(1, 2)),
    "extras of no slots": (RowsMade(5, None, (Extra(()),)), rows(1, 2, 3)),
    "extras of a slot twice": (RowsMade(5, None, (Extra((2, 3)), Extra((3,)))), rows(1, 2, 3)),
    "extras of two requests": (RowsMade(5, None, (Extra((2, 4)),)), rows(1, 2, 3)),
}


@pytest.mark.parametrize(("message", "frames"), ROW_LIES.values(), ids=ROW_LIES)
def test_rows_that_are_none_answer_nothing_and_are_not_kept(message, frames):
    head = Head(Step(1, (2, 3)), Reset(2, (4,), 0))
    head.refuses(message, frames)
    assert not head.sink.results.rewards.any()


def test_a_policys_step_says_what_the_policy_did():
    head = Head(Act(1, tuple(OWN), NEWEST))
    assert "what it did" in head.refuses(RowsMade(5, None), rows(1, 2, 3))
    extras = (Extra((2, 3), acted=b"a"),)
    assert "what it did" in head.refuses(RowsMade(5, None, extras), rows(1, 2, 3))


def test_flags_are_true_or_false_whatever_their_bytes_are():
    head = Head(Step(1, tuple(OWN)))
    frame = bytearray(rows(1, 2, 3)[0])
    LAYOUT.view(frame, 3).terminated.view(np.uint8)[:] = [0, 2, 255]
    head.hear(RowsMade(5, None), [bytes(frame)])
    assert head.sink.results.terminated.view(np.uint8)[2:5].tolist() == [0, 1, 1]


# Fragments.


def test_a_fragment_answers_a_request_to_collect():
    head = Head(collect := Collect(1, tuple(OWN), 3, NEWEST))
    (part,) = head.hear(*fragment_made(1, (2, 3)))
    assert isinstance(part, FragmentPart)
    assert (part.request, part.slots, part.version) == (collect, (2, 3), 1)
    assert head.left() == {1: {4}}


def streamed(number, slots, **changes):
    return Collect(number, slots, **{"num_steps": 3, "newest": NEWEST, **changes})


def test_a_fragment_may_answer_several_requests():
    head = Head(streamed(1, (2, 4)), streamed(2, (3,)), streamed(3, (2,)))
    (part,) = head.hear(*fragment_made(1, (2, 3, 4), others=((2, (3,)),)))
    assert part.slots == (2, 3, 4)
    assert head.left() == {3: {2}}


JOINED_LIES = {
    "of another request": ((9, (3,)),),
    "of slots that it does not have": ((2, (4,)),),
    "of slots that nobody asked for": ((2, (2,)),),
    "of a slot twice": ((2, (3,)), (3, (3,))),
    "of all its slots": ((2, (2, 3)),),
    "of no slots": ((2, ()),),
    "of a longer fragment": ((4, (3,)),),
    "of what is wanted together": ((5, (3,)),),
    "of a later policy": ((6, (3,)),),
}


@pytest.mark.parametrize("others", JOINED_LIES.values(), ids=JOINED_LIES)
def test_a_fragment_answers_all_of_its_requests_or_none(others):
    head = Head(
        streamed(1, (2, 3)),
        streamed(2, (3,)),
        streamed(3, (3,)),
        streamed(4, (3,), num_steps=4),
        streamed(5, (3,), together=True),
        streamed(6, (3,), newest=Newest(7, 3)),
    )
    head.refuses(*fragment_made(1, (2, 3), others=others))


def test_nothing_is_decoded_for_slots_that_nobody_asked_for(monkeypatch):
    def decode(*_):
        raise AssertionError("it was decoded")

    monkeypatch.setattr("clusterenv.head.host_answers.read_coded", decode)
    head = Head(streamed(1, (2,)))
    coded = (Coding("observations/0", "zlib"),)
    assert "nobody asked for" in head.refuses(*fragment_made(1, (2, 3), codings=coded))


FRAGMENT_LIES = {
    "of another request": fragment_made(9, (2, 3)),
    "of a step": fragment_made(2, (2, 3)),
    "of another's slots": fragment_made(1, (0, 1)),
    "of a slot twice": fragment_made(1, (2, 2)),
    "of slots in another order": fragment_made(1, (3, 2)),
    "of no slots": fragment_made(1, ()),
    "of no version": fragment_made(1, (2, 3), version=0),
    "of a version to come": fragment_made(1, (2, 3), version=3),
    "without names": fragment_made(1, (2, 3), names=()),
    "with a name twice": fragment_made(1, (2, 3), names=("rewards",) * 10),
    "without headers": fragment_made(1, (2, 3), arrays=()),
    "without frames": (fragment_made(1, (2, 3))[0], []),
    "of an epoch to come": fragment_made(1, (2, 3), epoch=6),
}


@pytest.mark.parametrize(("message", "frames"), FRAGMENT_LIES.values(), ids=FRAGMENT_LIES)
def test_a_fragment_that_nobody_asked_for_answers_nothing(message, frames):
    Head(Collect(1, tuple(OWN), 3, NEWEST), Step(2, (2, 3))).refuses(message, frames)


# Values, errors, losses, warnings.


def test_values_answer_a_call():
    head = Head(call := Call(1, tuple(OWN), "x", b""))
    assert head.hear(ValuesMade(5, 1, (2, 3), b"v")) == [Values(call, (2, 3), b"v")]
    assert head.left() == {1: {4}}


VALUE_LIES = {
    "of a step": ValuesMade(5, 2, (2, 3), b""),
    "of a fragment": ValuesMade(5, 3, (2, 3), b""),
    "of a policy's step": ValuesMade(5, 4, (2, 3), b""),
    "of another request": ValuesMade(5, 9, (2, 3), b""),
    "of another's slots": ValuesMade(5, 1, (0, 1), b""),
    "of slots in another order": ValuesMade(5, 1, (3, 2), b""),
    "of a slot twice": ValuesMade(5, 1, (2, 2), b""),
    "of no slots": ValuesMade(5, 1, (), b""),
}


@pytest.mark.parametrize("message", VALUE_LIES.values(), ids=VALUE_LIES)
def test_values_that_nobody_asked_for_answer_nothing(message):
    slots = tuple(OWN)
    Head(
        Call(1, slots, "x", b""),
        Step(2, slots),
        Collect(3, slots, 3, NEWEST),
        Act(4, slots, NEWEST),
    ).refuses(message)


def test_an_error_answers_any_request():
    head = Head(step := Step(1, tuple(OWN)))
    (failed,) = head.hear(RequestFailed(5, 1, (2, 3, 4), RAISED, "worker-0.0 (pid 7)"))
    assert failed == Failed(step, (2, 3, 4), RAISED, "worker-0.0 (pid 7) of host-1.0")
    assert head.host.is_idle


@pytest.mark.parametrize("slots", [(0,), (), (3, 2), (2, 2)])
def test_an_error_of_slots_that_nobody_asked_for_answers_nothing(slots):
    Head(Step(1, tuple(OWN))).refuses(RequestFailed(5, 1, slots, RAISED, "x"))


def test_texts_of_an_error_are_cut():
    long = "x" * 1_000_000
    short = shortened(Raised(0, 2, long, long, long.encode(), long, long, long))
    texts = [value for value in msgspec.structs.astuple(short) if isinstance(value, str | bytes)]
    assert max(map(len, texts)) == 20_000


def test_a_loss_says_what_will_not_be_answered():
    head = Head(step := Step(1, tuple(OWN)), call := Call(2, (2,), "x", b""))
    (lost,) = head.hear(WorkerLost(5, (2, 3), "killed", "it was", ((1, (2, 3)), (2, (2,)))))
    voided = (Voided(step, (2, 3)), Voided(call, (2,)))
    assert lost == Lost((2, 3), "killed", "host-1.0: it was", voided)
    assert head.left() == {1: {4}}


def test_a_fragment_fails_with_a_lost_neighbour_of_slots_that_are_still_there():
    head = Head(collect := Collect(1, tuple(OWN), 3, NEWEST))
    (lost,) = head.hear(WorkerLost(5, (2,), "x", "x", ((1, (2, 3)),), in_vain=True))
    assert lost.slots == (2,)
    assert lost.voided == (Voided(collect, (2, 3)),)
    assert head.left() == {1: {4}}
    Head(collect).refuses(WorkerLost(5, (2,), "x", "x", ((1, (2, 3)),)))
    Head(collect).refuses(WorkerLost(5, (), "x", "x", ((1, (2, 3)),), in_vain=True))


LOSSES = {
    "of no slots": WorkerLost(5, (), "x", "x"),
    "of slots of a step that are there": WorkerLost(
        5, (2,), "x", "x", ((1, (2, 3)),), in_vain=True
    ),
    "of another's slots": WorkerLost(5, (0, 2), "x", "x"),
    "of another's request": WorkerLost(5, (2,), "x", "x", ((1, (2,)), (9, (2,)))),
    "of slots of a request that are there": WorkerLost(5, (2,), "x", "x", ((1, (2, 3)),)),
    "of a request twice": WorkerLost(5, (2,), "x", "x", ((1, (2,)), (1, (2,)))),
    "of no slots of a request": WorkerLost(5, (2,), "x", "x", ((1, (2,)), (1, ()))),
    "in an epoch to come": WorkerLost(6, (2,), "x", "x"),
}


@pytest.mark.parametrize("message", LOSSES.values(), ids=LOSSES)
def test_a_loss_of_what_is_not_its_own_loses_nothing(message):
    Head(Step(1, tuple(OWN))).refuses(message)


def test_a_reset_that_is_on_its_way_finds_the_replacement_of_a_lost_worker():
    head = Head(Reset(1, (2, 4), 0))
    (lost,) = head.hear(WorkerLost(5, (2, 3), "killed", "it was"))
    assert lost.slots == (3,)
    head = Head(Reset(1, (2, 4), 0))
    (lost,) = head.hear(WorkerLost(5, (2, 3), "killed", "it was", ((1, (2,)),)))
    assert lost.slots == (2, 3)


def test_texts_of_a_loss_are_cut():
    long = "x" * 1_000_000
    (lost,) = Head().hear(WorkerLost(5, (2,), long, long, (), long))
    assert max(map(len, (lost.reason, lost.obituary, lost.error))) < 21_000


def test_a_warning_names_worker_and_host_in_few_words():
    (warned,) = Head().hear(Warned("w" * 9_999, "UserWarning", "x" * 1_000_000))
    assert isinstance(warned, WorkerWarned)
    assert warned.worker == f"host-1.0, {'w' * 50}"
    assert len(warned.text) == 20_000


# Everything at once.

ASKED = [
    Step(1, (2, 3)),
    Reset(2, (4,), 0),
    Call(3, (2, 3, 4), "x", b""),
    Collect(4, (2, 3, 4), 3, NEWEST),
]
HONEST = [
    (RowsMade(5, None, (Extra((2, 3), infos=b"i"),)), rows(1, 2, 3)),
    (RowsMade(5, (2, 4)), rows(1, 2)),
    (ValuesMade(5, 3, (2, 3), b"v"), []),
    (RequestFailed(5, 3, (4,), RAISED, "x"), []),
    (WorkerLost(5, (2, 3), "x", "x", ((1, (2, 3)), (3, (2, 3)), (4, (2, 3)))), []),
    fragment_made(4, (2, 3)),
    fragment_made(4, (4,)),
]


def answered_in(event):
    """What an event answers, as (number, slot)."""
    match event:
        case Lost(voided=voided):
            return [(one.request.request, slot) for one in voided for slot in one.slots]
        case Rows() | Values() | Failed() | FragmentPart():
            return [(event.request.request, slot) for slot in event.slots]
    return []


def test_whatever_comes_each_slot_is_answered_for_once_or_lost_with_the_host():
    chance = random.Random(1)
    asked = sorted((request.request, slot) for request in ASKED for slot in request.slots)
    num_errors = num_events = 0
    for _ in range(3_000):
        head, answered = Head(*ASKED), []
        for _ in range(8):
            message, frames = chance.choice(HONEST)
            if chance.random() < 0.5:
                message = None
                with contextlib.suppress(ProtocolError):
                    message = decode_from_host(damage(encode(chance.choice(HONEST)[0]), chance))
            if chance.random() < 0.1:
                frames = frames[: chance.randrange(len(frames) + 1)]
            try:
                for event in events_in(head.host, message, frames, head.sink, CHECKS):
                    answered += answered_in(event)
                    num_events += 1
            except Exception:
                num_errors += 1
                break
        lost = [(one.request.request, slot) for one in head.host.void() for slot in one.slots]
        assert sorted([*answered, *lost]) == asked
        assert not head.sink.results.rewards[[0, 1, 5]].any()
    assert min(num_errors, num_events) > 1_000
