"""What the head knows of one host: its life is a table, and what it says of itself is checked."""

import math
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.head import remote_host
from clusterenv.head.remote_host import HostState, RemoteHost
from clusterenv.protocol.requests import Call, Newest, Step
from clusterenv.wire.messages import Abandon, Announce, Hello, StaffReport, WorkerReport

WHOLE_LIFE = [
    HostState.HERE,
    HostState.BUILDING,
    HostState.BUILT,
    HostState.LAYING_OUT,
    HostState.READY,
]


class PaperDriver:
    """Keeps what is sent."""

    def __init__(self):
        self.sent = []
        self.is_driven = 0

    def __enter__(self):
        self.is_driven += 1
        return self

    def __exit__(self, *_):
        self.is_driven -= 1

    def expect(self, num_rows):
        pass

    def send(self, host, message, frames=()):
        assert self.is_driven
        self.sent.append((host, message))
        return True


def a_host(state=HostState.READY, workers=2):
    host = RemoteHost(3, PaperDriver(), 0.0)
    host.slots = range(4, 8)
    for one in WHOLE_LIFE[: WHOLE_LIFE.index(state) + 1] if state in WHOLE_LIFE else []:
        host.become(one)
    host.hello = Hello(1, {}, "node7", 4711, workers)
    return host


def sent_by(host):
    return [message for _, message in host._driver.sent]


# Its life.


def test_a_life_goes_from_state_to_state():
    host = RemoteHost(0, PaperDriver(), 0.0)
    for state in [*WHOLE_LIFE, HostState.BUILDING, HostState.BUILT, HostState.LOST]:
        host.become(state)
        assert host.state is state


@pytest.mark.parametrize("state", [HostState.ORDERED, *WHOLE_LIFE])
def test_a_host_can_be_lost_at_any_time(state):
    host = a_host(state)
    host.become(HostState.LOST)
    for other in HostState:
        with pytest.raises(ProtocolError):
            host.become(other)


MAY_FOLLOW = {*pairwise([HostState.ORDERED, *WHOLE_LIFE])}
# Slots may be dealt anew at any time once it is there.
MAY_FOLLOW |= {(state, HostState.BUILDING) for state in WHOLE_LIFE}


def test_who_is_too_late_may_get_slots_again():
    for state in (HostState.BUILDING, HostState.BUILT, HostState.LAYING_OUT):
        host = a_host(state)
        for following in (HostState.LATE, HostState.SPARE, HostState.BUILDING):
            host.become(following)


@pytest.mark.parametrize("state", [HostState.LATE, HostState.SPARE])
@pytest.mark.parametrize("following", [HostState.HERE, HostState.BUILT, HostState.READY])
def test_who_is_too_late_can_do_nothing_else(state, following):
    host = a_host(HostState.BUILDING)
    host.become(HostState.LATE)
    if state is HostState.SPARE:
        host.become(state)
    with pytest.raises(ProtocolError):
        host.become(following)


@pytest.mark.parametrize("state", [HostState.ORDERED, *WHOLE_LIFE])
@pytest.mark.parametrize("following", WHOLE_LIFE)
def test_no_state_is_left_out_or_said_twice(state, following):
    host = a_host(state)
    if (state, following) in MAY_FOLLOW:
        host.become(following)
    else:
        with pytest.raises(ProtocolError, match=f"from {state.name} to {following.name}"):
            host.become(following)


# Asking.


def test_a_host_that_is_ready_is_asked_at_once():
    host = a_host()
    host.ask(call := Call(1, (4,), "render", b""))
    assert sent_by(host) == [call]
    assert not host.is_idle


def test_what_a_host_is_asked_before_it_is_ready_waits():
    host = a_host(HostState.LAYING_OUT)
    host.ask(call := Call(1, (4,), "render", b""))
    assert sent_by(host) == []
    host.become(HostState.READY)
    with host._driver:
        host.send_held_back()
    assert sent_by(host) == [call]


def test_what_was_abandoned_is_of_an_earlier_epoch():
    host = a_host()
    host.ask(step := Step(1, (4, 5)))
    assert host.abandon() == set()
    assert sent_by(host) == [step, Abandon(1)]
    assert host.is_idle
    assert not host.is_current(0)
    assert host.is_current(1)


def test_where_nothing_was_asked_no_epoch_ends():
    host = a_host()
    assert host.abandon() == set()
    assert (host.epoch, sent_by(host)) == (0, [])


def test_a_host_that_is_not_ready_yet_gets_ready_although_its_work_was_abandoned():
    host = a_host(HostState.LAYING_OUT)
    host.ask(Step(1, (4, 5)))
    assert host.abandon() == {4, 5}
    # What it says about being ready is still wanted.
    assert host.is_current(0)
    host.become(HostState.READY)
    with host._driver:
        host.send_held_back()
    assert sent_by(host) == []


def test_an_epoch_that_has_not_begun_is_a_lie():
    with pytest.raises(ProtocolError, match="which has not begun"):
        a_host().is_current(1)


def test_news_are_for_hosts_that_are_ready():
    for state, expected in [(HostState.BUILT, []), (HostState.READY, [Announce(Newest(1, 2))])]:
        host = a_host(state)
        host.announce(Newest(1, 2))
        assert sent_by(host) == expected


def test_what_it_did_before_its_slots_were_dealt_anew_counts_and_building_does_not(monkeypatch):
    clock = SimpleNamespace(now=10.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(remote_host, "time", clock)
    host = a_host()
    with host._driver:
        host.send_held_back()
        clock.now = 100.0
        host.become(HostState.BUILDING)
        assert host.worked_s(500.0) == 90.0
        for state in (HostState.BUILT, HostState.LAYING_OUT, HostState.READY):
            host.become(state)
        clock.now = 500.0
        host.send_held_back()
    assert host.worked_s(510.0) == 100.0


# What it says of itself.


def test_the_next_host_in_its_place_has_its_slots_and_its_budget():
    host = a_host()
    following = host.successor(5.0)
    assert (following.name, following.slots) == ("host-3.1", range(4, 8))
    assert following.restarts is host.restarts


def worker(first=4, count=2, name="worker-0.0", state="ready"):
    return WorkerReport(name, 1, state, first, count, 0)


def test_its_workers_are_as_it_says():
    host = a_host()
    host.note_staff(StaffReport((worker(), worker(6, name="worker-1.0"))))
    assert [(one.name, one.slots) for one in host.workers] == [
        ("worker-0.0", range(4, 6)),
        ("worker-1.0", range(6, 8)),
    ]


def test_it_knows_since_when_all_its_workers_are_ready():
    host, begun = a_host(), time.monotonic()
    host.note_staff(StaffReport((worker(), worker(6, state="starting"))))
    assert host.staffed_at == math.inf
    host.note_staff(StaffReport((worker(), worker(6))))
    first = host.staffed_at
    assert begun <= first <= time.monotonic()
    host.note_staff(StaffReport((worker(), worker(6))))
    assert host.staffed_at == first


def test_it_has_no_more_workers_than_it_came_with():
    with pytest.raises(ProtocolError, match="3 workers; it has 2"):
        a_host().note_staff(StaffReport((worker(),) * 3))


@pytest.mark.parametrize(
    ("first", "count", "own"),
    [(0, 2**62, [4, 5, 6, 7]), (6, 99, [6, 7]), (-5, 3, []), (2**60, 1, []), (5, -3, [])],
)
def test_slots_of_its_workers_are_its_own(first, count, own):
    host = a_host()
    host.note_staff(StaffReport((worker(first, count),)))
    assert list(host.workers[0].slots) == own


def test_texts_that_it_says_are_short():
    host = a_host()
    host.note_staff(StaffReport((worker(name="n" * 9_999, state="s" * 9_999),)))
    host.note_leaving("x" * 9_999)
    assert max(len(host.workers[0].name), len(host.workers[0].state), len(host.leaving)) <= 300


def test_a_host_that_leaves_for_no_reason_leaves():
    host = a_host()
    host.note_leaving("")
    assert host.leaving


DESCRIPTIONS = {
    "none": (),
    "of too few envs": ((2, b""),),
    "of too many envs": ((2, b""), (3, b"")),
    "of a worker without envs": ((4, b""), (0, b"")),
    "of fewer than none": ((5, b""), (-1, b"")),
}


@pytest.mark.parametrize("descriptions", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_it_must_describe_as_many_envs_as_it_has(descriptions):
    with pytest.raises(ProtocolError):
        a_host().note_descriptions(descriptions)


def test_it_loads_only_what_it_was_sent():
    host = a_host()
    with pytest.raises(ProtocolError):
        host.note_pulled(0.1)
    host.note_pull()
    host.note_pulled(0.1)
    with pytest.raises(ProtocolError):
        host.note_pulled(0.1)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_loading_takes_some_time(seconds):
    host = a_host()
    host.note_pull()
    with pytest.raises(ProtocolError):
        host.note_pulled(seconds)
