"""A worker's life is a table; what it was asked, and how often it was replaced, is with it."""

import itertools
from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusterenv.errors import ProtocolError
from clusterenv.host.events import Voided
from clusterenv.host.worker import RESTART_WINDOW_S, Asked, State, Worker
from clusterenv.memory.messages import (
    Build,
    Built,
    Close,
    LaidOut,
    LayOut,
    Leaving,
    Warned,
)
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.replies import Stepped
from clusterenv.protocol.requests import Call, Collect, Newest, Step
from clusterenv.protocol.worker_status import WorkerStatus

BUILD = Build((0,), b"", "NextStep", True)
LAY_OUT = LayOut(b"", b"", 0, 1, 1, 0)
MESSAGES = [
    BUILD,
    Built(b""),
    LAY_OUT,
    LaidOut(),
    Leaving("x"),
    Warned("UserWarning", "x"),
    Close(),
    TakePolicy(1, b"", b""),
    Stepped(1),
    Step(1, (0,)),
]
NEXT = {
    State.STARTED: {Build: State.BUILDING},
    State.BUILDING: {Build: State.BUILDING, Built: State.BUILT},
    State.BUILT: {Build: State.BUILDING, LayOut: State.LAYING_OUT},
    State.LAYING_OUT: {Build: State.BUILDING, LaidOut: State.READY},
    State.READY: {Build: State.BUILDING},
    State.LOST: {},
}


class PaperLine:
    """Keeps what is sent."""

    def __init__(self, current_slot=-1):
        self.sent = []
        self.mailbox = SimpleNamespace(current_slot=current_slot, NO_SLOT=-1)

    def send(self, message):
        self.sent.append(message)


def paper_worker(index=2, log="", current_slot=-1, **known):
    running = SimpleNamespace(pid=4711, log_tail=lambda: log)
    return Worker(index, PaperLine(current_slot), running, 0.0, **known)


# The table of its life.


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_in_every_state_is_either_next_or_an_error(state, message):
    worker = paper_worker(state=state)
    after = NEXT[state].get(type(message))
    if after is not None:
        worker.note(message)
        assert worker.state is after
        return
    text = f"{type(message).__name__} while it is {state.name}"
    with pytest.raises(ProtocolError, match=text):
        worker.note(message)
    assert worker.state is state


def test_it_is_ready_once_all_was_said_and_only_then():
    worker, ready = paper_worker(), []
    for message in (BUILD, Built(b""), LAY_OUT, LaidOut()):
        ready.append(worker.is_ready)
        worker.note(message)
    assert ready == [False] * 4
    assert worker.is_ready


def test_a_ready_worker_may_be_told_to_build_something_else():
    worker = paper_worker(state=State.READY)
    for message in (BUILD, Built(b""), LAY_OUT, LaidOut()):
        worker.note(message)
    assert worker.is_ready


# What it is sent.


def test_a_ready_worker_is_sent_work_at_once():
    worker = paper_worker(state=State.READY)
    worker.send(Step(1, (0,)))
    assert worker.line.sent == [Step(1, (0,))]


@pytest.mark.parametrize("state", [one for one in State if one is not State.READY])
def test_what_is_sent_before_it_is_ready_is_held_back_in_order(state):
    worker = paper_worker(state=state)
    for number in (1, 2):
        worker.send(Step(number, (0,)))
    assert worker.line.sent == []
    worker.send_held_back(now=5.0)
    assert worker.line.sent == [Step(1, (0,)), Step(2, (0,))]
    assert not worker.held_back


def test_the_time_of_what_was_held_back_counts_from_when_it_is_sent():
    worker = paper_worker(state=State.BUILDING)
    worker.asked[1] = Asked(Step(1, (0,)), (0,), sent_at=2.0)
    worker.send_held_back(now=50.0)
    assert worker.asked[1].sent_at == 50.0


# What it will not answer.


def test_what_it_was_asked_is_void_once():
    worker = paper_worker(state=State.READY)
    step, call = Step(1, (0, 1)), Call(2, (0, 1, 2, 3), "render", b"")
    worker.asked = {7: Asked(step, (0, 1), 0.0), 8: Asked(call, (0, 1), 0.0)}
    assert worker.void() == (Voided(step, (0, 1)), Voided(call, (0, 1)))
    assert worker.void() == ()


def test_what_was_held_back_is_never_sent_once_it_is_void():
    worker = paper_worker(state=State.BUILDING)
    worker.send(Step(1, (0,)))
    worker.void()
    worker.send_held_back(now=0.0)
    assert worker.line.sent == []


def test_a_policy_that_was_held_back_has_to_be_sent_again():
    worker = paper_worker(state=State.BUILDING, policy_id=3)
    worker.send(TakePolicy(3, b"", b""))
    worker.void()
    assert worker.policy_id == 0


def test_a_policy_that_it_has_need_not_be_sent_again():
    worker = paper_worker(state=State.READY, policy_id=3)
    worker.asked[1] = Asked(Collect(1, (0,), 5, Newest(3, 1)), (0,), 0.0)
    worker.void()
    assert worker.policy_id == 3


# The restart budget.


def test_the_budget_allows_as_many_restarts_per_minute_as_it_says():
    worker = paper_worker()
    granted = [worker.may_restart(3, now) for now in (0.0, 1.0, 2.0, 3.0)]
    assert granted == [True] * 3 + [False]


def test_a_budget_of_zero_allows_no_restart():
    assert not paper_worker().may_restart(0, 0.0)


def test_restarts_are_forgotten_after_a_minute():
    worker = paper_worker()
    assert worker.may_restart(1, 0.0)
    assert not worker.may_restart(1, RESTART_WINDOW_S)
    assert worker.may_restart(1, RESTART_WINDOW_S + 0.1)


def test_a_refused_restart_costs_nothing():
    worker = paper_worker()
    worker.may_restart(1, 0.0)
    for second in range(1, 60):
        assert not worker.may_restart(1, float(second))
    assert worker.may_restart(1, 61.0)


def test_each_worker_has_a_budget_of_its_own():
    first, second = paper_worker(0), paper_worker(1)
    assert first.may_restart(1, 0.0)
    assert second.may_restart(1, 0.0)


@given(st.integers(0, 5), st.lists(st.floats(0, 30), max_size=40))
# A minute to the last bit: rounded, the difference of the two times is more.
@example(1, [1.1913015388223704, 1.1913015388223704, 30.0, 29.0, 30.0, 30.0])
def test_no_minute_sees_more_restarts_than_the_budget(budget, pauses):
    worker = paper_worker()
    granted = [now for now in itertools.accumulate(pauses) if worker.may_restart(budget, now)]
    for start in granted:
        assert sum(start <= now <= start + RESTART_WINDOW_S for now in granted) <= budget


def test_a_successor_goes_on_with_the_budget():
    worker = paper_worker()
    worker.may_restart(2, 0.0)
    successor = paper_worker(restarts=worker.restarts)
    assert successor.may_restart(2, 1.0)
    assert not successor.may_restart(2, 2.0)


# What is said about it.


def test_its_name_says_where_it_is_and_the_how_manieth():
    assert paper_worker(3, incarnation=2).name == "worker-3.2"


@pytest.mark.parametrize(
    ("known", "state"),
    [
        ({"state": State.READY}, "ready"),
        ({"state": State.BUILDING}, "joining"),
        ({"state": State.LAYING_OUT}, "joining"),
        ({"state": State.READY, "leaving": "drained"}, "leaving"),
        ({"state": State.LOST, "leaving": "drained"}, "lost"),
    ],
)
def test_its_status_says_how_it_is(known, state):
    worker = paper_worker(slots=(4, 5, 6), incarnation=1, **known)
    expected = WorkerStatus("worker-2.1", 4711, state, range(4, 7), 1, "host-1.0")
    assert worker.status("host-1.0") == expected


def test_a_worker_without_slots_has_a_status_too():
    assert paper_worker().status("host-1.0").slots == range(0)


def test_its_obituary_names_the_slot_whose_env_was_running():
    text = paper_worker(slots=(4, 5), current_slot=5).obituary("exit code 1")
    expected = "worker-2.0 (pid 4711) was lost: exit code 1 while the env of slot 5 was running"
    assert text == expected


def test_its_obituary_names_all_its_slots_if_nobody_knows_better():
    text = paper_worker(slots=(4, 5)).obituary("exit code 1")
    assert text == "worker-2.0 (pid 4711) was lost: exit code 1; it ran slots 4, 5"


def test_its_obituary_ends_with_what_it_printed_last():
    text = paper_worker(slots=(4,), log="Segmentation fault\n").obituary("killed by SIGSEGV")
    assert text.endswith("\nThe end of the log of worker-2.0:\nSegmentation fault")


def test_workers_share_no_lists():
    first, second = paper_worker(), paper_worker()
    first.restarts.append(1.0)
    first.held_back.append(Close())
    first.asked[1] = Asked(Step(1, (0,)), (0,), 0.0)
    assert (second.restarts, second.held_back, second.asked) == (deque(), deque(), {})
