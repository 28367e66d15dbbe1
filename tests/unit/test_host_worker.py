"""A worker's life is a table; what it was asked, and how often it was replaced, is with it."""

from collections import deque
from types import SimpleNamespace

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.host.events import Voided
from clusterenv.host.worker import Asked, Worker, WorkerState
from clusterenv.memory.messages import (
    BuildEnvs,
    CloseEnvs,
    EnvsBuilt,
    EnvWarned,
    MapRows,
    RowsMapped,
    WorkerLeaving,
)
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.replies import Stepped
from clusterenv.protocol.requests import Call, Collect, Newest, Step
from clusterenv.protocol.worker_status import WorkerStatus

BUILD = BuildEnvs((0,), b"", "NextStep", True)
LAY_OUT = MapRows(b"", b"", 0, 1, 1, 0)
MESSAGES = [
    BUILD,
    EnvsBuilt(b""),
    LAY_OUT,
    RowsMapped(),
    WorkerLeaving("x"),
    EnvWarned("UserWarning", "x"),
    CloseEnvs(),
    TakePolicy(1, b"", b""),
    Stepped(1),
    Step(1, (0,)),
]
NEXT = {
    WorkerState.STARTED: {BuildEnvs: WorkerState.BUILDING},
    WorkerState.BUILDING: {BuildEnvs: WorkerState.BUILDING, EnvsBuilt: WorkerState.BUILT},
    WorkerState.BUILT: {BuildEnvs: WorkerState.BUILDING, MapRows: WorkerState.LAYING_OUT},
    WorkerState.LAYING_OUT: {BuildEnvs: WorkerState.BUILDING, RowsMapped: WorkerState.READY},
    WorkerState.READY: {BuildEnvs: WorkerState.BUILDING},
    WorkerState.LOST: {},
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


@pytest.mark.parametrize("state", WorkerState, ids=lambda state: state.name)
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
    for message in (BUILD, EnvsBuilt(b""), LAY_OUT, RowsMapped()):
        ready.append(worker.is_ready)
        worker.note(message)
    assert ready == [False] * 4
    assert worker.is_ready


def test_a_ready_worker_may_be_told_to_build_something_else():
    worker = paper_worker(state=WorkerState.READY)
    for message in (BUILD, EnvsBuilt(b""), LAY_OUT, RowsMapped()):
        worker.note(message)
    assert worker.is_ready


# What it is sent.


def test_a_ready_worker_is_sent_work_at_once():
    worker = paper_worker(state=WorkerState.READY)
    worker.send(Step(1, (0,)))
    assert worker.line.sent == [Step(1, (0,))]


@pytest.mark.parametrize("state", [one for one in WorkerState if one is not WorkerState.READY])
def test_what_is_sent_before_it_is_ready_is_held_back_in_order(state):
    worker = paper_worker(state=state)
    for number in (1, 2):
        worker.send(Step(number, (0,)))
    assert worker.line.sent == []
    worker.send_held_back(now=5.0)
    assert worker.line.sent == [Step(1, (0,)), Step(2, (0,))]
    assert not worker.held_back


def test_the_time_of_what_was_held_back_counts_from_when_it_is_sent():
    worker = paper_worker(state=WorkerState.BUILDING)
    worker.asked[1] = Asked(Step(1, (0,)), (0,), sent_at=2.0)
    worker.send_held_back(now=50.0)
    assert worker.asked[1].sent_at == 50.0


# What it will not answer.


def test_what_it_was_asked_is_void_once():
    worker = paper_worker(state=WorkerState.READY)
    step, call = Step(1, (0, 1)), Call(2, (0, 1, 2, 3), "render", b"")
    worker.asked = {7: Asked(step, (0, 1), 0.0), 8: Asked(call, (0, 1), 0.0)}
    assert worker.void() == (Voided(step, (0, 1)), Voided(call, (0, 1)))
    assert worker.void() == ()


def test_what_was_held_back_is_never_sent_once_it_is_void():
    worker = paper_worker(state=WorkerState.BUILDING)
    worker.send(Step(1, (0,)))
    worker.void()
    worker.send_held_back(now=0.0)
    assert worker.line.sent == []


def test_a_policy_that_was_held_back_has_to_be_sent_again():
    worker = paper_worker(state=WorkerState.BUILDING, policy_id=3)
    worker.send(TakePolicy(3, b"", b""))
    worker.void()
    assert worker.policy_id == 0


def test_a_policy_that_it_has_need_not_be_sent_again():
    worker = paper_worker(state=WorkerState.READY, policy_id=3)
    worker.asked[1] = Asked(Collect(1, (0,), 5, Newest(3, 1)), (0,), 0.0)
    worker.void()
    assert worker.policy_id == 3


# Good work.


def test_it_does_good_work_until_it_gets_what_it_does_not_answer():
    worker = paper_worker(state=WorkerState.LAYING_OUT)
    assert worker.worked_s(100.0) == 0.0
    worker.send_held_back(10.0)
    assert worker.worked_s(100.0) == 90.0
    worker.asked[1] = Asked(Step(1, (0,)), (0,), 70.0)
    worker.asked[2] = Asked(Step(2, (0,)), (0,), 80.0)
    assert worker.worked_s(100.0) == 60.0


def test_what_it_was_asked_before_it_was_ready_is_no_good_work():
    worker = paper_worker(state=WorkerState.LAYING_OUT)
    worker.asked[1] = Asked(Step(1, (0,)), (0,), 1.0)
    worker.send_held_back(10.0)
    assert worker.worked_s(100.0) == 0.0


def test_what_it_did_before_its_slots_were_dealt_anew_counts_and_building_does_not():
    worker = paper_worker(state=WorkerState.LAYING_OUT)
    worker.send_held_back(10.0)
    worker.stop_work(100.0)
    assert worker.worked_s(500.0) == 90.0
    worker.send_held_back(500.0)
    assert worker.worked_s(510.0) == 100.0


# What is said about it.


def test_its_name_says_where_it_is_and_the_how_manieth():
    assert paper_worker(3, incarnation=2).name == "worker-3.2"


@pytest.mark.parametrize(
    ("known", "state"),
    [
        ({"state": WorkerState.READY}, "ready"),
        ({"state": WorkerState.BUILDING}, "joining"),
        ({"state": WorkerState.LAYING_OUT}, "joining"),
        ({"state": WorkerState.READY, "leaving": "drained"}, "leaving"),
        ({"state": WorkerState.LOST, "leaving": "drained"}, "lost"),
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
    assert text == f"{expected}; it ran slots 4 to 5"


def test_its_obituary_names_all_its_slots_if_nobody_knows_better():
    text = paper_worker(slots=(4, 5)).obituary("exit code 1")
    assert text == "worker-2.0 (pid 4711) was lost: exit code 1; it ran slots 4 to 5"


def test_its_obituary_ends_with_what_it_printed_last():
    text = paper_worker(slots=(4,), log="Segmentation fault\n").obituary("killed by SIGSEGV")
    assert text.endswith("\nThe end of the log of worker-2.0:\nSegmentation fault")


def test_workers_share_no_lists():
    first, second = paper_worker(), paper_worker()
    assert first.restarts is not second.restarts
    first.held_back.append(CloseEnvs())
    first.asked[1] = Asked(Step(1, (0,)), (0,), 0.0)
    assert (second.held_back, second.asked) == (deque(), {})


def test_a_request_may_be_answered_slot_by_slot():
    worker = paper_worker()
    worker.asked[3] = asked = Asked(Step(3, (4, 5, 6)), (4, 5, 6), 0.0)
    assert asked.part((5,)) == (5,)
    worker.answered(3, (5,))
    assert worker.void()[0].slots == (4, 6)
    worker.asked[3] = asked
    assert asked.part(()) == (4, 6)
    with pytest.raises(ProtocolError, match="rows of slots that nobody asked it for"):
        asked.part((5,))
    worker.answered(3, (4, 6))
    assert not worker.asked
