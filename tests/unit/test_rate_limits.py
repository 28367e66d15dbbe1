"""A host may join, pull and lose workers as often as hosts do, and not more."""

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.wire.connections import Strangers
from clusterenv.wire.messages import Built, Hello, Pull, RowsMade, WorkerLost
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
    times.say(PULL, 100)
    with pytest.raises(ProtocolError, match="pulled version 1 more than 100 times"):
        times.say(PULL)


def test_a_pull_of_every_version_is_not():
    times = Times()
    for _ in range(1_000):
        times.say(PULL, 2)
        times.newest += 1


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
        times.say(PULL, 100)
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
