"""Requests meet their answers slot by slot; a bad answer changes nothing."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.head.pending import Pending
from clusterenv.host.events import Voided
from clusterenv.protocol.requests import Call, Collect, Evaluate, Newest, Reset, Step

NEWEST = Newest(1, 1)


def step(number, *slots):
    return Step(number, slots)


def collect(number, *slots):
    return Collect(number, slots, 5, NEWEST)


def pending_with(*requests):
    pending = Pending()
    for request in requests:
        pending.add(request)
    return pending


def left(pending):
    """What is still to be answered, as {number: slots}."""
    return {one.request.request: sorted(one.slots) for one in pending.all}


def test_a_request_is_open_until_all_of_its_slots_are_answered_for():
    pending = pending_with(request := step(1, 0, 1, 2))
    for slots in [(1,), (0, 2)]:
        assert not pending.is_empty
        answered = pending.rows(slots)
        assert answered == [(request, slots)]
        pending.done(answered)
    assert pending.is_empty


def test_rows_may_answer_several_requests():
    first, second = step(1, 0, 2), Reset(2, (1, 3), 0)
    pending = pending_with(first, second)
    answered = pending.rows((0, 1, 2, 3))
    assert answered == [(first, [0, 2]), (second, [1, 3])]
    pending.done(answered)
    assert pending.is_empty


def test_of_two_requests_for_a_slot_the_older_one_is_answered_first():
    pending = pending_with(Reset(1, (0,), 0), Reset(2, (0,), 0))
    for number in (1, 2):
        ((request, slots),) = answered = pending.rows((0,))
        assert (request.request, slots) == (number, (0,))
        pending.done(answered)
    assert pending.is_empty


def test_rows_that_are_only_looked_at_answer_nothing():
    pending = pending_with(step(1, 0, 1))
    pending.rows((0, 1))
    assert left(pending) == {1: [0, 1]}


@pytest.mark.parametrize("slots", [(2,), (0, 2), tuple(range(2, 100_000))])
def test_rows_that_nobody_asked_for_are_refused_in_few_words(slots):
    pending = pending_with(step(1, 0, 1), collect(2, 2, 3), Call(3, (2,), "x", b""))
    with pytest.raises(ProtocolError, match="which nobody asked for") as caught:
        pending.rows(slots)
    assert len(str(caught.value)) < 200
    assert left(pending) == {1: [0, 1], 2: [2, 3], 3: [2]}


BAD_ANSWERS = {
    "of another request": (9, (0,), ()),
    "of another's slots": (1, (0, 5), ()),
    "of no slots": (1, (), ()),
    "of another kind": (1, (0,), (Call, Evaluate)),
}


@pytest.mark.parametrize(("number", "slots", "kinds"), BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_answer_that_nobody_asked_for_is_refused_and_changes_nothing(number, slots, kinds):
    pending = pending_with(step(1, 0, 1))
    with pytest.raises(ProtocolError):
        pending.answered(number, slots, *kinds)
    assert left(pending) == {1: [0, 1]}


def test_an_answer_comes_once():
    pending = pending_with(request := step(1, 0, 1))
    assert pending.answered(1, (0,)) is request
    with pytest.raises(ProtocolError):
        pending.answered(1, (0,))
    assert left(pending) == {1: [1]}


def test_a_fragment_answers_nothing_but_a_request_to_collect():
    pending = pending_with(step(1, 0), request := collect(2, 1))
    assert pending.collect_of(2) is request
    for number in (1, 3):
        with pytest.raises(ProtocolError, match="not a pending Collect"):
            pending.collect_of(number)


def test_what_will_not_be_answered_is_not_waited_for():
    pending = pending_with(first := step(1, 0, 1), second := collect(2, 1, 2))
    voided = pending.voided([(1, (1,)), (2, (1,))])
    assert voided == (Voided(first, (1,)), Voided(second, (1,)))
    assert left(pending) == {1: [0], 2: [2]}


BAD_VOIDS = {
    "of another request": [(1, (0,)), (9, (0,))],
    "of another's slots": [(1, (0,)), (2, (0,))],
    "twice": [(1, (0,)), (1, (0,))],
    "of no slots": [(1, (0,)), (2, ())],
}


@pytest.mark.parametrize("parts", BAD_VOIDS.values(), ids=BAD_VOIDS)
def test_what_cannot_be_void_changes_nothing(parts):
    pending = pending_with(step(1, 0, 1), collect(2, 1, 2))
    with pytest.raises(ProtocolError):
        pending.voided(parts)
    assert left(pending) == {1: [0, 1], 2: [1, 2]}


def test_a_bad_answer_is_none():
    pending = pending_with(request := step(1, 0, 1))
    pending.done(pending.rows((0, 1)))
    pending.reopen(request, (0, 1))
    assert left(pending) == {1: [0, 1]}
    assert not pending.is_overdue(60.0, 0.0)


def test_nothing_is_left_when_nothing_will_be_answered_any_more():
    pending = pending_with(first := step(1, 3, 0), second := collect(2, 1))
    assert pending.void() == (Voided(first, (0, 3)), Voided(second, (1,)))
    assert pending.is_empty
    assert not pending.is_overdue(-60.0, 0.0)


def test_who_does_not_answer_in_time_is_overdue():
    pending = pending_with(step(1, 0))
    assert not pending.is_overdue(60.0, 10.0)
    assert pending.is_overdue(-60.0, 10.0)


def test_what_was_asked_while_a_worker_was_replaced_may_take_longer():
    pending = pending_with(step(1, 0))
    later, earlier = time.monotonic() + 60, time.monotonic() - 60
    assert not pending.is_overdue(-60.0, 10.0, staffed_at=later, more_s=100.0)
    assert pending.is_overdue(-60.0, 10.0, staffed_at=earlier, more_s=100.0)


def test_a_fragment_may_take_as_long_as_all_of_its_steps():
    pending = pending_with(collect(1, 0))
    assert not pending.is_overdue(-1.0, 5.5)
    assert pending.is_overdue(-1.0, 4.5)


def test_an_evaluation_may_take_any_time():
    assert not pending_with(Evaluate(1, (0,), (1,), 0, True, NEWEST)).is_overdue(-60.0, 0.0)


slot_sets = st.sets(st.integers(0, 9), min_size=1)


@given(st.lists(slot_sets, max_size=6), st.lists(st.tuples(st.integers(1, 7), slot_sets)))
def test_no_slot_is_lost_or_answered_twice(asked, answers):
    pending = pending_with(*(step(n, *sorted(slots)) for n, slots in enumerate(asked, 1)))
    expected = {number: set(slots) for number, slots in enumerate(asked, 1)}
    for number, slots in answers:
        try:
            pending.answered(number, sorted(slots))
        except ProtocolError:
            assert not slots <= expected.get(number, set())
        else:
            assert slots <= expected[number]
            expected[number] -= slots
    assert left(pending) == {n: sorted(slots) for n, slots in expected.items() if slots}
