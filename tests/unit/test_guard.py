"""A worker may join and pull as often as workers do, and not more."""

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.head.guard import Guard
from clusterenv.head.inbox import Inbox
from clusterenv.wire.messages import Built, Hello, Pull, Stepped
from clusterenv.wire.tcp_channel import Strangers

HELLO = Hello(3, {"python": "3.11"}, "host", 1, "boot 1 2")
PULL = Pull(1, 1, "threshold")


class Times:
    """A clock and a newest version that a test moves."""

    def __init__(self):
        self.now, self.newest = 0.0, 1
        self.guard = Guard(newest=lambda: self.newest, clock=lambda: self.now)

    def say(self, message, count):
        for _ in range(count):
            self.guard.check("worker-0.0", message)


def test_joins_without_end_are_refused():
    times = Times()
    times.say(HELLO, 50)
    times.say(Built(b""), 50)
    with pytest.raises(ProtocolError, match="joins"):
        times.say(HELLO, 1)
    times.guard.check("worker-1.0", HELLO)


def test_joins_now_and_then_are_not():
    times = Times()
    for _ in range(1_000):
        times.say(Built(b""), 1)
        times.now += 1.0


def test_pulls_of_one_version_without_end_are_refused():
    times = Times()
    times.say(PULL, 100)
    with pytest.raises(ProtocolError, match="pulls version 1"):
        times.say(PULL, 1)


def test_a_pull_of_every_version_is_not():
    times = Times()
    for _ in range(1_000):
        times.say(PULL, 2)
        times.newest += 1


LONG = "x" * 257
TALKATIVE = {
    "host": Hello(3, {}, LONG, 1),
    "a host of many lines": Hello(3, {}, "host\nCRITICAL all is lost", 1),
    "neighbourhood": Hello(3, {}, "host", 1, LONG),
    "version": Hello(3, {"python": LONG}, "host", 1),
    "name of a version": Hello(3, {LONG: "1"}, "host", 1),
    "versions": Hello(3, {str(number): "1" for number in range(33)}, "host", 1),
    "cause": Pull(1, 1, LONG),
}


@pytest.mark.parametrize("message", TALKATIVE.values(), ids=TALKATIVE)
def test_what_would_be_kept_or_logged_is_short_and_plain(message):
    with pytest.raises(ProtocolError):
        Times().say(message, 1)


def test_who_is_forgotten_starts_anew():
    times = Times()
    times.say(HELLO, 100)
    times.guard.forget("worker-0.0")
    times.say(HELLO, 100)


# What waits for the user's thread.


@pytest.fixture
def inbox(monkeypatch):
    monkeypatch.setattr("clusterenv.head.inbox._MOST_WAITING_BYTES", 10_000)
    inbox = Inbox()
    yield inbox
    inbox.close()


def test_a_worker_that_sends_more_than_is_looked_at_is_refused(inbox):
    inbox.put("a", Stepped(1), [b""], size=4_000)
    inbox.put("a", Stepped(2), [b""], size=4_000)
    with pytest.raises(ProtocolError, match="more than it is asked for"):
        inbox.put("a", Stepped(3), [b""], size=4_000)
    inbox.put("b", Stepped(1), [b""], size=4_000)


def test_what_was_looked_at_does_not_count(inbox):
    for request in range(100):
        inbox.put("a", Stepped(request), [b""], size=4_000)
        assert len(list(inbox.take())) == 1


def test_small_messages_count_too(inbox):
    with pytest.raises(ProtocolError):
        for request in range(100):
            inbox.put("a", Stepped(request), [], size=1)


# Strangers.


def test_the_oldest_stranger_goes_where_there_are_too_many():
    strangers = Strangers()
    assert [strangers.came(number, more=4) for number in range(260)] == [None] * 260
    assert strangers.came(260, more=4) == 0
    strangers.left(1)
    assert strangers.came(261, more=4) is None
    assert strangers.came(262, more=4) == 2
