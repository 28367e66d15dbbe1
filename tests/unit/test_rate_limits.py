"""A host may join, pull and lose workers as often as hosts do, and not more."""

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.wire.connections import Admission, Strangers
from clusterenv.wire.messages import (
    Built,
    Hello,
    Leaving,
    Pull,
    Ready,
    RowsMade,
    StaffReport,
    Warned,
    WorkerLost,
)
from clusterenv.wire.rate_limits import RateLimits

HELLO = Hello(3, {"python": "3.11"}, "machine", 1, 2, "pod")
PULL = Pull(1, 1, "threshold")
LOST = WorkerLost(1, (0,), "exit code 1", "it was lost")


class Times:
    """A clock and a newest version that a test moves."""

    def __init__(self):
        self.now, self.newest = 0.0, 1
        self.limits = RateLimits(newest=lambda: self.newest, clock=lambda: self.now)

    def say(self, message, count=1):
        for _ in range(count):
            self.limits.check("host-0.0", message)


def test_joins_without_end_are_refused():
    times = Times()
    times.say(HELLO, 50)
    times.say(Built(1, ()), 50)
    with pytest.raises(ProtocolError, match="more than 100 messages about joining"):
        times.say(HELLO)
    times.limits.check("host-1.0", HELLO)


def test_joins_now_and_then_are_not():
    times = Times()
    for _ in range(1_000):
        times.say(Built(1, ()))
        times.now += 1.0


def test_losses_without_end_are_refused():
    times = Times()
    times.say(LOST, 1_000)
    with pytest.raises(ProtocolError, match="more than 1000 losses of workers"):
        times.say(LOST)


def test_losses_of_many_workers_are_not():
    times = Times()
    for _ in range(100):
        times.say(LOST, 256)
        times.now += 26.0


def test_pulls_of_one_version_without_end_are_refused():
    times = Times()
    times.say(PULL, 20)
    with pytest.raises(ProtocolError, match="pulled version 1 more than 20 times"):
        times.say(PULL)


def test_a_pull_of_every_version_is_not():
    times = Times()
    for _ in range(1_000):
        times.say(PULL, 2)
        times.newest += 1


FLOODS = {
    "reports of its workers": (StaffReport(()), 1_000),
    "warnings": (Warned("worker-0.0", "UserWarning", "x"), 5_000),
}


@pytest.mark.parametrize("what", FLOODS)
def test_what_nobody_asked_for_is_refused_where_it_has_no_end(what):
    message, most = FLOODS[what]
    times = Times()
    times.say(message, most)
    with pytest.raises(ProtocolError, match=f"more than {most} {what} at once"):
        times.say(message)
    times.now += 1.0
    times.say(message, most // 100)


@pytest.mark.parametrize("message", [Ready(1), Leaving("soon"), StaffReport(())])
def test_reports_of_any_kind_are_counted_together(message):
    times = Times()
    times.say(Ready(1), 999)
    times.say(message)
    with pytest.raises(ProtocolError):
        times.say(message)


def test_answers_that_are_too_late_are_few():
    times = Times()
    for _ in range(10_000):
        times.limits.late("host-0.0")
    with pytest.raises(ProtocolError, match="too late"):
        times.limits.late("host-0.0")
    times.limits.late("host-1.0")


def test_answers_are_not_counted():
    Times().say(RowsMade(1, None), 10_000)


LONG = "x" * 257
TALKATIVE = {
    "machine": Hello(3, {}, LONG, 1, 1),
    "a machine of many lines": Hello(3, {}, "machine\nCRITICAL all is lost", 1, 1),
    "place": Hello(3, {}, "machine", 1, 1, LONG),
    "version": Hello(3, {"python": LONG}, "machine", 1, 1),
    "name of a version": Hello(3, {LONG: "1"}, "machine", 1, 1),
    "versions": Hello(3, {str(number): "1" for number in range(33)}, "machine", 1, 1),
    "no workers": Hello(3, {}, "machine", 1, 0),
    "fewer than no workers": Hello(3, {}, "machine", 1, -1),
    "more workers than any machine": Hello(3, {}, "machine", 1, 10_001),
    "cause": Pull(1, 1, LONG),
}


@pytest.mark.parametrize("message", TALKATIVE.values(), ids=TALKATIVE)
def test_what_would_be_kept_or_logged_is_short_and_plain(message):
    with pytest.raises(ProtocolError) as caught:
        Times().say(message)
    assert len(str(caught.value)) < 200


def test_who_is_forgotten_starts_anew():
    times = Times()
    for _ in range(2):
        times.say(HELLO, 100)
        times.say(PULL, 20)
        times.say(LOST, 1_000)
        times.limits.forget("host-0.0")


# Strangers.


def test_the_oldest_stranger_goes_where_there_are_too_many():
    strangers = Strangers()
    assert [strangers.came(number, more=4) for number in range(260)] == [None] * 260
    assert strangers.came(260, more=4) == 0
    strangers.left(1)
    assert strangers.came(261, more=4) is None
    assert strangers.came(262, more=4) == 2


# Connections with one key.


def test_one_connection_speaks_with_the_key_of_a_host():
    admission = Admission()
    assert admission.admits_host(0)
    assert not admission.admits_host(1)


def test_so_many_may_come_with_one_ticket_and_not_more():
    now = [0.0]
    admission = Admission(lambda: now[0])
    admitted = [admission.admits_applicant(0, more=3) for _ in range(100)]
    assert admitted == [True] * 70 + [False] * 30
    now[0] += 1.0
    assert [admission.admits_applicant(0, more=3) for _ in range(3)] == [True, True, False]
    now[0] += 1_000.0
    assert admission.admits_applicant(69, more=3)
    assert not admission.admits_applicant(70, more=3)


def test_whoever_was_refused_is_remembered_but_not_for_ever():
    admission = Admission()
    admission.refuse(b"first")
    assert admission.is_refused(b"first")
    assert not admission.is_refused(b"other")
    for number in range(10_000):
        admission.refuse(number.to_bytes(5))
    assert not admission.is_refused(b"first")
