"""Requests meet their replies, and a worker that does not answer is lost once."""

from types import SimpleNamespace

import pytest

from clusterenv.errors import RemoteError
from clusterenv.head.crew import Ended
from clusterenv.head.exchange import Exchange
from clusterenv.head.flights import Answer, Flight, Loss
from clusterenv.head.inbox import Inbox
from clusterenv.head.reception import Reception
from clusterenv.head.roster import Roster
from clusterenv.limits import Limits
from clusterenv.wire.messages import Call, Hello, LaidOut, Raised, Step, Stepped, Warned

PATIENT = Limits(
    startup_timeout_s=60.0,
    step_timeout_s=60.0,
    restart_timeout_s=60.0,
    lease_s=60.0,
    max_restarts_per_minute=3,
)
# Overdue at once: the exchange looks at the clock by itself.
IMPATIENT = SimpleNamespace(step_timeout_s=-60.0, restart_timeout_s=-60.0)


class PaperCrew:
    """Keeps what is sent instead of starting workers."""

    num_events = 0

    def __init__(self, limits):
        self.limits, self.inbox, self.reception = limits, Inbox(), Reception()
        self.sent = []

    def send(self, member, message, frames=()):
        self.sent.append((member.worker, message))

    def push(self, member, header):
        return False


@pytest.fixture
def make_exchange():
    crews = []

    def make(limits=PATIENT, num_workers=2):
        roster = Roster(2 * num_workers, num_workers, 3)
        for member in roster.members:
            member.joined = True
        crews.append(PaperCrew(limits))
        return Exchange(crews[-1], roster), crews[-1], roster

    yield make
    for crew in crews:
        crew.inbox.close()


def send_step(exchange, member):
    flight = Flight(member, Step(exchange.new_request(), member.slots), member.slots)
    exchange.send(flight)
    return flight


def test_a_request_goes_to_its_worker(make_exchange):
    exchange, crew, roster = make_exchange()
    flight = send_step(exchange, roster.members[1])
    assert crew.sent == [("worker-1.0", flight.request)]
    assert not exchange.is_idle


def test_a_reply_meets_its_request(make_exchange):
    exchange, crew, roster = make_exchange()
    flight = send_step(exchange, roster.members[1])
    crew.inbox.put("worker-1.0", Stepped(flight.request.request), [b"frame"])
    (answer,) = exchange.pump(0)
    assert answer == Answer(flight, Stepped(flight.request.request), [b"frame"])
    assert exchange.is_idle


def test_who_answers_what_another_was_asked_is_lost(make_exchange):
    exchange, crew, roster = make_exchange()
    flight = send_step(exchange, roster.members[1])
    crew.inbox.put("worker-0.0", Stepped(flight.request.request))
    (loss,) = exchange.pump(0)
    assert loss.member is roster.members[0]
    assert "which is not open" in loss.reason
    assert not exchange.is_idle


def test_a_late_reply_is_not_taken_for_a_newer_one(make_exchange):
    exchange, crew, roster = make_exchange()
    late = send_step(exchange, roster.members[0])
    exchange.abandon()
    send_step(exchange, roster.members[0])
    crew.inbox.put("worker-0.0", Stepped(late.request.request))
    assert list(exchange.pump(0)) == []
    assert not exchange.is_idle


def test_what_a_replaced_worker_still_says_is_ignored(make_exchange):
    exchange, crew, roster = make_exchange()
    flight = send_step(exchange, roster.members[0])
    roster.replace(roster.members[0])
    crew.inbox.put("worker-0.0", Stepped(flight.request.request))
    assert list(exchange.pump(0)) == []


def test_an_error_is_raised_when_it_is_asked_for(make_exchange):
    exchange, crew, roster = make_exchange()
    request = send_step(exchange, roster.members[0]).request.request
    crew.inbox.put("worker-0.0", Raised(request, 0, "nowhere", "Odd", b"", "hm", "Traceback"))
    assert list(exchange.pump(0)) == []
    with pytest.raises(RemoteError, match="Odd: hm"):
        exchange.raise_errors()
    exchange.raise_errors()


def test_a_warning_of_a_worker_is_issued_here(make_exchange):
    exchange, crew, _ = make_exchange()
    crew.inbox.put("worker-0.0", Warned("DeprecationWarning", "old env"))
    list(exchange.pump(0))
    with pytest.warns(DeprecationWarning, match=r"worker-0\.0: old env"):
        exchange.raise_errors()


def test_a_request_for_a_replacement_waits_until_it_has_joined(make_exchange):
    exchange, crew, roster = make_exchange()
    member = roster.members[0]
    roster.replace(member)
    call = Call(exchange.new_request(), "render", b"")
    exchange.send(Flight(member, call, member.slots))
    assert crew.sent == []
    crew.inbox.put("worker-0.1", LaidOut(deal=member.deal))
    list(exchange.pump(0))
    assert crew.sent == [("worker-0.1", call)]


# Losses.


def test_the_end_of_a_worker_is_a_loss_with_its_flights(make_exchange):
    exchange, crew, roster = make_exchange()
    flights = [send_step(exchange, roster.members[0]) for _ in range(2)]
    other = send_step(exchange, roster.members[1])
    crew.inbox.put("worker-0.0", Ended("exit code 1"))
    assert list(exchange.pump(0)) == [Loss(roster.members[0], "exit code 1", flights)]
    assert not exchange.is_idle
    crew.inbox.put("worker-1.0", Stepped(other.request.request))
    list(exchange.pump(0))
    assert exchange.is_idle


def test_a_worker_that_says_what_only_the_head_may_say_is_lost(make_exchange):
    exchange, crew, roster = make_exchange()
    crew.inbox.put("worker-0.0", Hello(1, {}, "host", 1))
    (loss,) = exchange.pump(0)
    assert loss.member is roster.members[0]
    assert "broke the protocol: a worker may not say Hello" in loss.reason


def test_a_worker_that_does_not_answer_in_time_is_lost(make_exchange):
    exchange, _, roster = make_exchange(IMPATIENT)
    flight = send_step(exchange, roster.members[0])
    (loss,) = exchange.pump(0)
    assert (loss.member, loss.flights) == (roster.members[0], [flight])
    assert "no answer within step_timeout_s=-60" in loss.reason


def test_a_replacement_that_does_not_join_in_time_is_lost(make_exchange):
    exchange, _, roster = make_exchange(IMPATIENT)
    member = roster.members[0]
    roster.replace(member)
    send_step(exchange, member)
    (loss,) = exchange.pump(0)
    assert "not ready within restart_timeout_s=-60" in loss.reason


def test_a_worker_with_many_overdue_requests_is_lost_once(make_exchange):
    exchange, _, roster = make_exchange(IMPATIENT, num_workers=1)
    flights = [send_step(exchange, roster.members[0]) for _ in range(3)]
    losses = []
    for loss in exchange.pump(0):
        losses.append(loss)
        # As the head does at once; the replacement has nothing to answer for.
        roster.replace(loss.member)
    assert [loss.flights for loss in losses] == [flights]
