"""Requests meet their replies, and a worker that does not answer is lost once."""

import msgspec
import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete

from clusterenv.host.events import (
    Failed,
    Lost,
    PullWanted,
    Rows,
    Values,
    Voided,
    WorkerWarned,
)
from clusterenv.host.weights import PulledWeights
from clusterenv.memory.messages import EnvsBuilt, EnvWarned, RowsMapped, WorkerLeaving
from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.replies import Collected, Raised, Returned, Stepped
from clusterenv.protocol.requests import Call, Collect, Newest, Reset, SetAttr, Step
from tests.unit.paper_workers import IMPATIENT, PATIENT, Stage

SLOTS = (4, 5, 6, 7)


@pytest.fixture
def make_stage():
    stages = []

    def make(*args, **kwargs):
        stages.append(Stage(*args, **kwargs))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


@pytest.fixture
def stage(make_stage):
    return make_stage().open()


def call(number=1, slots=SLOTS):
    return Call(number, slots, "render", b"")


def raised(request, text="hm"):
    return Raised(request, 5, "nowhere", "Odd", b"", text, "Traceback …")


def number_of(worker):
    """Of the one request that a worker was sent."""
    (message,) = worker.hear()
    return message.request


# Requests and replies.


def test_a_request_goes_to_the_workers_of_its_slots_with_their_share(stage):
    seeds = pack([1, 2, 3], allow_pickle=False)
    stage.host.ask(Reset(9, (5, 6, 7), 42, seeds))
    (first,), (second,) = stage.heard()
    assert (first.slots, second.slots) == ((5,), (6, 7))
    assert unpack(first.seeds, allow_pickle=False) == [1]
    assert unpack(second.seeds, allow_pickle=False) == [2, 3]
    assert not stage.host.is_idle


def test_a_worker_whose_slots_are_not_asked_for_hears_nothing(stage):
    stage.host.ask(call(slots=(6, 7)))
    first, second = stage.heard()
    assert first == []
    assert len(second) == 1


def test_a_reply_meets_its_request_as_it_was_asked(stage):
    request = Reset(9, SLOTS, 42)
    stage.host.ask(request)
    worker = stage.worker(1)
    worker.say(Stepped(number_of(worker), b"objects", b"infos", b"acted"))
    assert stage.events() == [Rows(request, (6, 7), b"objects", b"infos", b"acted")]
    assert not stage.host.is_idle
    worker = stage.worker(0)
    worker.say(Stepped(number_of(worker)))
    assert stage.events() == [Rows(request, (4, 5))]
    assert stage.host.is_idle


def test_values_that_a_call_returned_come_with_their_slots(stage):
    stage.host.ask(call(slots=(4,)))
    stage.worker(0).say(Returned(number_of(stage.worker(0)), b"values"))
    assert stage.events() == [Values(call(slots=(4,)), (4,), b"values")]


def test_requests_under_way_are_told_apart(stage):
    requests = [call(number, (4, 5)) for number in (1, 2, 3)]
    for request in requests:
        stage.host.ask(request)
    numbers = [message.request for message in stage.worker(0).hear()]
    for number in reversed(numbers):
        stage.worker(0).say(Returned(number, b""))
    assert [event.request for event in stage.events()] == requests[::-1]
    assert stage.host.is_idle


def test_a_reply_to_nothing_is_not_taken_for_anything(stage):
    stage.host.ask(call(slots=(6, 7)))
    number = number_of(stage.worker(1))
    stage.worker(0).say(Returned(number, b""))
    assert stage.events() == []
    assert not stage.host.is_idle


def test_a_late_reply_is_not_taken_for_a_newer_one(stage):
    stage.host.ask(call(1, (4, 5)))
    late = number_of(stage.worker(0))
    stage.host.abandon()
    stage.host.ask(call(2, (4, 5)))
    stage.worker(0).say(Returned(late, b""))
    assert stage.events() == []
    assert not stage.host.is_idle
    stage.worker(0).say(Returned(number_of(stage.worker(0)), b""))
    assert [event.request for event in stage.events()] == [call(2, (4, 5))]


def test_the_frames_of_a_late_reply_are_released(stage):
    reply = Collected(99, 1, ("a",), (("|u1", (3,)),))
    stage.worker(0).say(reply, [b"abc"])
    assert stage.events() == []
    assert stage.worker(0).line.mailbox.released_by_host[0] == 1


def test_another_kind_of_reply_is_no_answer(stage):
    stage.host.ask(call(slots=(4, 5)))
    stage.worker(0).say(Stepped(number_of(stage.worker(0))))
    events = stage.events()
    # Nobody may think that the call has returned.
    assert not stage.host.is_idle or any(isinstance(event, Lost) for event in events)


def test_a_worker_is_never_asked_for_the_slots_of_another(stage):
    values = tuple(pack(slot, allow_pickle=False) for slot in SLOTS)
    stage.host.ask(SetAttr(1, SLOTS, "speed", values))
    for worker, (message,) in zip((0, 1), stage.heard(), strict=True):
        assert message.slots == stage.worker(worker).slots
        assert [unpack(one, allow_pickle=False) for one in message.values] == list(message.slots)


# What is said besides.


def test_what_users_code_raises_is_reported_with_its_slots_and_worker(stage):
    stage.host.ask(call())
    error = raised(number_of(stage.worker(0)))
    stage.worker(0).say(error)
    assert stage.events() == [Failed(call(), (4, 5), error, "worker-0.0 (pid 4711)")]
    assert not stage.host.is_idle
    stage.worker(1).say(Returned(number_of(stage.worker(1)), b""))
    stage.events()
    assert stage.host.is_idle


def test_a_warning_is_reported_with_its_worker(stage):
    stage.worker(1).say(EnvWarned("DeprecationWarning", "old env"))
    assert stage.events() == [WorkerWarned("worker-1.0", "DeprecationWarning", "old env")]


def test_a_request_for_who_is_not_ready_yet_waits_for_that(make_stage):
    stage = make_stage().lay_out()
    stage.host.ask(call(slots=(4, 5)))
    assert stage.worker(0).hear() == []
    assert not stage.host.is_ready
    stage.worker(0).say_laid_out()
    assert stage.events() == []
    (message,) = stage.worker(0).hear()
    assert message.slots == (4, 5)


# Losses.


def test_the_end_of_a_worker_is_a_loss_with_all_it_was_asked(stage):
    stage.host.ask(call(1))
    stage.host.ask(call(2, (5,)))
    stage.worker(0).end = "exit code 1"
    (lost,) = stage.events()
    assert (lost.slots, lost.reason, lost.error) == ((4, 5), "exit code 1", "")
    assert lost.voided == (Voided(call(1), (4, 5)), Voided(call(2, (5,)), (5,)))
    assert "worker-0.0 (pid 4711) was lost: exit code 1" in lost.obituary
    assert not stage.host.is_idle
    stage.worker(1).say(Returned(number_of(stage.worker(1)), b""))
    stage.events()
    assert stage.host.is_idle


def test_a_lost_worker_is_replaced_and_the_other_goes_on(stage):
    first, second = stage.worker(0), stage.worker(1)
    first.end = "exit code 1"
    stage.events()
    assert first.is_killed
    assert not second.is_killed
    assert stage.worker(0).name == "worker-0.1"
    stage.worker(0).hear()
    assert stage.worker(0).build.slots == (4, 5)
    assert stage.events() == []


def test_a_replacement_gets_what_was_asked_of_it_once_it_is_ready(stage):
    stage.worker(0).end = "exit code 1"
    stage.events()
    stage.host.ask(call(5))
    assert stage.worker(0).hear() == []
    assert stage.get_ready(0) == []
    (message,) = stage.worker(0).hear()
    assert message.slots == (4, 5)
    stage.worker(0).say(Returned(message.request, b""))
    assert stage.events() == [Values(call(5), (4, 5), b"")]


@pytest.mark.parametrize("is_ready", [False, True])
def test_envs_that_start_over_are_not_stepped_before_they_were_reset(stage, is_ready):
    # Whoever asks may not have heard of the loss yet.
    stage.worker(0).end = "exit code 1"
    stage.events()
    if is_ready:
        stage.get_ready(0)
    step = Step(3, SLOTS)
    stage.host.ask(step, np.arange(4))
    (lost,) = stage.events()
    assert (lost.slots, lost.voided) == ((4, 5), (Voided(step, (4, 5)),))
    assert stage.worker(0).hear() == []
    reset = Reset(4, (4, 5), 42)
    stage.host.ask(reset)
    if not is_ready:
        stage.get_ready(0)
    worker = stage.worker(0)
    worker.say(Stepped(number_of(worker)))
    assert stage.events() == [Rows(reset, (4, 5))]
    stage.host.ask(Step(5, (4, 5)), np.arange(2))
    assert len(worker.hear()) == 1


def test_a_loss_is_reported_once(stage):
    stage.worker(0).end = "exit code 1"
    assert [type(event) for event in stage.events()] == [Lost]
    assert stage.events() == []


def test_what_a_replaced_worker_still_says_is_ignored(make_stage):
    stage = make_stage().lay_out()
    stage.worker(1).say_laid_out()
    worker = stage.worker(0)
    worker.say_laid_out(error="no memory")
    worker.say(WorkerLeaving("it was told to leave (SIGTERM)"))
    worker.say(EnvWarned("UserWarning", "too late"))
    (lost,) = stage.events()
    assert "it cannot map the shared memory: no memory" in lost.reason
    assert stage.worker(0).name == "worker-0.1"
    assert stage.events() == []
    assert stage.worker(0).name == "worker-0.1"


def test_a_worker_that_says_what_is_no_message_is_lost(stage):
    stage.worker(0).line.mailbox.to_host.push(b"no message")
    (lost,) = stage.events()
    assert lost.slots == (4, 5)
    assert "it broke the protocol" in lost.reason


def test_a_worker_that_says_what_does_not_fit_its_state_is_lost(stage):
    stage.worker(0).say(RowsMapped("", stage.worker(0).build.deal))
    (lost,) = stage.events()
    assert "it broke the protocol: RowsMapped while it is READY" in lost.reason


def test_what_was_built_for_an_earlier_deal_is_ignored(stage):
    stage.worker(0).say(EnvsBuilt(b"", deal=0))
    stage.worker(0).say(RowsMapped("", deal=0))
    assert stage.events() == []
    assert stage.host.is_ready


def test_a_worker_that_does_not_answer_in_time_is_lost(make_stage):
    stage = make_stage().open()
    stage.workers.limits = IMPATIENT
    stage.host.ask(call(slots=(4,)))
    (lost,) = stage.events()
    assert lost.slots == (4, 5)
    assert lost.voided == (Voided(call(slots=(4,)), (4,)),)
    assert lost.reason == "no answer within step_timeout_s=-60"


def test_a_worker_with_many_overdue_requests_is_lost_once(make_stage):
    stage = make_stage().open()
    stage.workers.limits = IMPATIENT
    for number in range(3):
        stage.host.ask(call(number, (4,)))
    (lost,) = stage.events()
    assert len(lost.voided) == 3


def test_a_replacement_that_does_not_get_ready_in_time_is_lost(make_stage):
    stage = make_stage().open()
    stage.worker(0).end = "exit code 1"
    stage.events()
    stage.host.ask(call())
    stage.workers.limits = IMPATIENT
    reasons = {lost.slots: lost.reason for lost in stage.events()}
    assert reasons[4, 5] == "not ready within restart_timeout_s=-60"
    assert reasons[6, 7] == "no answer within step_timeout_s=-60"


def test_a_worker_that_was_replaced_too_often_is_not_replaced_again(make_stage):
    limits = msgspec.structs.replace(PATIENT, max_restarts_per_minute=1)
    stage = make_stage(limits=limits).open()
    stage.host.ask(call())
    stage.worker(0).end = "exit code 1"
    (lost,) = stage.events()
    assert lost.error == ""
    stage.host.ask(call(2))
    stage.worker(0).end = "exit code 2"
    (lost,) = stage.events()
    assert lost.voided == (Voided(call(2), (4, 5)),)
    assert "exit code 2" in lost.error
    assert "It was replaced 1 times within a minute already" in lost.error
    assert "1 times exit code 1; 1 times exit code 2" in lost.error
    assert "raise that limit" in lost.error
    assert stage.worker(0).name == "worker-0.1"
    assert stage.worker(0).is_killed
    assert stage.events() == []


ONCE = msgspec.structs.replace(PATIENT, max_restarts_per_minute=1)


def test_a_replacement_that_cannot_build_its_envs_is_replaced_within_the_budget(stage):
    stage.worker(0).end = "exit code 1"
    stage.events()
    stage.host.ask(call(1))
    stage.worker(0).say(raised(0, "no such level"))
    (lost,) = stage.events()
    assert (lost.slots, lost.voided, lost.error) == ((4, 5), (Voided(call(1), (4, 5)),), "")
    assert lost.reason == "it could not build its envs: Odd: no such level"


def test_whoever_waits_for_envs_that_cannot_be_built_in_the_end_gets_their_own_error(make_stage):
    stage = make_stage(limits=ONCE).open()
    stage.worker(0).end = "exit code 1"
    stage.events()
    stage.host.ask(call(1))
    stage.host.ask(call(2))
    error = raised(0, "no such level")
    stage.worker(0).say(error)
    failed, lost = stage.events()
    assert failed == Failed(call(1), (4, 5), error, "worker-0.1 (pid 4711)")
    assert lost.voided == (Voided(call(2), (4, 5)),)
    assert "it could not build its envs: Odd: no such level" in lost.error


def test_a_replacement_that_cannot_build_its_envs_is_a_loss_even_if_nobody_waits_for_it(make_stage):
    stage = make_stage(limits=ONCE).open()
    stage.worker(0).end = "exit code 1"
    stage.events()
    stage.worker(0).say(raised(0, "no such level"))
    (lost,) = stage.events()
    assert (lost.slots, lost.voided) == ((4, 5), ())
    assert "it could not build its envs: Odd: no such level" in lost.error


def test_the_second_replacement_in_a_row_is_started_after_a_pause(make_stage):
    limits = msgspec.structs.replace(PATIENT, restart_backoff_s=1000.0)
    stage = make_stage(limits=limits).open()
    for number in range(2):
        stage.worker(0).end = f"exit code {number}"
        stage.events()
    assert [worker.name for worker in stage.starter.started[2:]] == ["worker-0.1"]
    assert stage.host.workers[0].name == "worker-0.2"
    stage.host.ask(call())
    assert stage.events() == []
    stage.workers.all[0].started_at = 0.0
    stage.events()
    assert stage.starter.started[-1].name == "worker-0.2"
    assert stage.get_ready(0) == []
    assert [type(message) for message in stage.worker(0).hear()] == [Call]


def test_a_replacement_that_cannot_be_started_is_tried_again(make_stage, monkeypatch):
    limits = msgspec.structs.replace(PATIENT, restart_backoff_s=1e-9)
    stage = make_stage(limits=limits).open()
    start, failures = stage.starter.start, ["too many open files"]

    def start_or_fail(*args):
        if failures:
            raise OSError(failures.pop())
        return start(*args)

    monkeypatch.setattr(stage.starter, "start", start_or_fail)
    stage.worker(0).end = "exit code 1"
    reasons = [lost.reason for lost in stage.events()]
    assert reasons == ["exit code 1", "it cannot be started: too many open files"]
    stage.events()
    assert stage.worker(0).name == "worker-0.2"


@pytest.mark.parametrize("slots", [(4, 5), (6, 7)])
def test_rows_that_were_written_without_an_answer_are_taken_back(stage, slots):
    place = 0 if 4 in slots else 1
    worker, rows = stage.worker(place), stage.host.rows
    rows.results.observations[0][...] = 1.0
    stage.host.ask(Reset(1, SLOTS, 42))
    own = worker.rows()
    own.begin_to_write(slots, place, number_of(worker))
    own.results.observations[0][own.rows_of(slots)] = 2.0
    worker.end = "killed by SIGKILL"
    stage.events()
    assert (rows.results.observations[0] == 1.0).all()


# Leaving.


def collect(slots=SLOTS):
    return Collect(1, slots, 5, Newest(1, 1))


def test_a_worker_that_has_to_leave_is_replaced_when_it_has_nothing_to_do(stage):
    stage.worker(0).say(WorkerLeaving("it was told to leave (SIGTERM)"))
    (lost,) = stage.events()
    assert (lost.slots, lost.voided) == ((4, 5), ())
    assert lost.reason == "it was told to leave (SIGTERM)"
    assert stage.worker(0).name == "worker-0.1"


def test_a_worker_that_has_to_leave_ends_its_step_first(stage):
    request = Reset(1, SLOTS, 42)
    stage.host.ask(request)
    worker = stage.worker(0)
    worker.say(WorkerLeaving("it was told to leave (SIGTERM)"))
    assert stage.events() == []
    assert stage.host.staff[0].status("host").state == "leaving"
    worker.say(Stepped(number_of(worker)))
    rows, lost = stage.events()
    assert rows == Rows(request, (4, 5))
    assert (lost.slots, lost.voided) == ((4, 5), ())


# Actions that are no arrays.


def test_actions_that_are_no_arrays_travel_in_the_message(make_stage):
    stage = make_stage().open(action=Dict(a=Discrete(3)))
    actions = tuple(pack({"a": slot}, allow_pickle=False) for slot in SLOTS)
    step = Step(3, SLOTS, packed_actions=actions)
    stage.host.ask(step)
    for place, (message,) in enumerate(stage.heard()):
        assert message.slots == stage.worker(place).slots
        assert [unpack(one, allow_pickle=False) for one in message.packed_actions] == [
            {"a": slot} for slot in message.slots
        ]
        stage.worker(place).say(Stepped(message.request))
    assert stage.events() == [Rows(step, (4, 5)), Rows(step, (6, 7))]
    assert stage.host.is_idle


def begin_to_collect(stage, request):
    """The number under which the first worker was asked for a fragment."""
    stage.host.ask(request)
    assert [type(event) for event in stage.events()] == [PullWanted]
    stage.host.take_weights(
        PulledWeights(TakePolicy(1, b"policy", b"layout"), 1, b"weights!", "first", 8)
    )
    _, message = stage.worker(0).hear()
    return message.request


def test_the_rows_of_a_fragment_lie_in_the_workers_memory_until_they_are_released(stage):
    request, worker = collect((4, 5)), stage.worker(0)
    number = begin_to_collect(stage, request)
    frame = np.arange(6, dtype=np.float64)
    worker.say(Collected(number, 3, ("rewards",), (("<f8", (3, 2)),)), [frame.tobytes()])
    (part,) = stage.events()
    assert isinstance(part, FragmentPart)
    assert (part.request, part.slots, part.version) == (request, (4, 5), 3)
    np.testing.assert_array_equal(part.arrays["rewards"], frame.reshape(3, 2))
    assert worker.line.mailbox.released_by_host[0] == 0
    part.release()
    assert worker.line.mailbox.released_by_host[0] == 1


@pytest.mark.parametrize(
    ("dtype", "shape"), [("|O", (6,)), ("<f8", (7,)), ("no dtype", (6,)), ("<f8", (-1, -1))]
)
def test_a_fragment_that_cannot_be_read_costs_its_worker(stage, dtype, shape):
    request = collect((4, 5))
    number = begin_to_collect(stage, request)
    stage.worker(0).say(Collected(number, 3, ("rewards",), ((dtype, shape),)), [bytes(48)])
    (lost,) = stage.events()
    assert "it broke the protocol" in lost.reason
    # Somebody has to collect it again.
    assert lost.voided == (Voided(request, (4, 5)),)
