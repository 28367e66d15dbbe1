"""Steps by flags alone: all workers at once, or parts of their slots; and back to messages."""

import threading

import numpy as np
import pytest
from msgspec import structs

from clusterenv.host.events import Rows, Values, Voided
from clusterenv.memory.answer_flags import MAY_SPIN, MOST_PARTS
from clusterenv.memory.messages import EnvWarned, PartCall, StepCall
from clusterenv.protocol.replies import Raised, Returned, Stepped
from clusterenv.protocol.requests import Call, Reset, Step
from tests.unit.paper_workers import IMPATIENT, Stage

pytestmark = pytest.mark.skipif(not MAY_SPIN, reason="memory is ordered weakly: nobody is called")

SLOTS = (4, 5, 6, 7)
_PATIENCE_S = 60.0


@pytest.fixture
def make_stage():
    stages = []

    def make(*args, **kwargs):
        stages.append(Stage(*args, **kwargs))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


@pytest.fixture(params=[False, True], ids=["sleeps", "spins"])
def stage(request, make_stage):
    return make_stage(may_spin=request.param).open()


def step(number=1, slots=SLOTS, **how):
    return Step(number, slots, **how)


def begin(stage, number=1):
    """A step of all slots, and what each worker hears of it."""
    stage.host.ask(step(number), np.arange(10, 14))
    return [call for (call,) in stage.heard()]


# All slots.


def test_a_step_of_all_slots_is_a_call_and_no_message(stage):
    calls = begin(stage)
    assert [type(call) for call in calls] == [StepCall] * 2
    assert calls[0] == calls[1]
    for place in range(2):
        worker = stage.worker(place)
        actions = worker.rows().copy_actions(calls[place].dtype, worker.slots)
        assert actions.tolist() == [slot + 6 for slot in worker.slots]
    assert stage.host.is_in_lockstep
    assert not stage.host.is_idle


def test_rows_of_all_slots_come_as_one(stage):
    for number in (1, 2):
        for place, call in enumerate(begin(stage, number)):
            stage.worker(place).answer_silently(call)
        assert stage.events() == [Rows(step(number), range(4, 8))]
        assert stage.host.is_idle


def test_the_rows_of_a_worker_that_is_early_do_not_wait_in_vain(stage):
    first, _ = begin(stage)
    stage.worker(0).answer_silently(first)
    assert stage.events() == [Rows(step(), (4, 5))]
    assert not stage.host.is_idle


def test_a_worker_may_say_more_than_its_rows(stage):
    first, second = begin(stage)
    stage.worker(0).answer_silently(first)
    worker = stage.worker(1)
    worker.line.leave(Stepped(second.request, infos=b"infos"))
    if worker.rows().flags.put(1, second.request, says_more=True):
        worker.line.wake_host()
    assert sorted(stage.events(), key=lambda rows: rows.slots[0]) == [
        Rows(step(), (4, 5)),
        Rows(step(), (6, 7), infos=b"infos"),
    ]
    assert stage.host.is_idle


def test_a_warning_in_the_middle_of_a_step_does_not_cost_its_rows(stage):
    first, second = begin(stage)
    stage.worker(0).say(EnvWarned("UserWarning", "hm"))
    stage.worker(0).say(Stepped(first.request))
    stage.worker(0).rows().flags.put(0, first.request, says_more=True)
    stage.worker(1).answer_silently(second)
    events = stage.events()
    assert {event.slots for event in events if isinstance(event, Rows)} == {(4, 5), (6, 7)}
    assert len(events) == 3


def test_an_error_in_a_step_leaves_the_rows_of_the_others(stage):
    first, second = begin(stage)
    error = Raised(first.request, 4, "builtins", "ValueError", b"", "hm", "Traceback …")
    stage.worker(0).say(error)
    stage.worker(0).rows().flags.put(0, first.request, says_more=True)
    stage.worker(1).answer_silently(second)
    failed, rows = stage.events()
    assert (failed.request, failed.slots, failed.raised) == (step(), (4, 5), error)
    assert rows == Rows(step(), (6, 7))
    assert stage.host.is_idle


def test_a_worker_that_is_lost_in_a_step_is_reported_with_it(stage):
    _, second = begin(stage)
    stage.worker(1).answer_silently(second)
    stage.worker(0).end = "killed by SIGSEGV"
    rows, lost = stage.events()
    assert rows == Rows(step(), (6, 7))
    assert (lost.slots, lost.voided) == ((4, 5), (Voided(step(), (4, 5)),))
    assert stage.host.is_idle


def test_a_worker_that_does_not_answer_a_call_in_time_is_lost(stage):
    _, second = begin(stage)
    stage.worker(1).answer_silently(second)
    stage.workers.limits = IMPATIENT
    rows, lost = stage.events()
    assert rows.slots == (6, 7)
    assert lost.reason == "no answer within step_timeout_s=-60"


def test_after_a_loss_steps_go_on_with_messages_until_all_are_ready(stage):
    _, second = begin(stage)
    stage.worker(1).answer_silently(second)
    stage.worker(0).end = "killed by SIGSEGV"
    stage.events()
    stage.host.staff[0].not_reset.clear()
    stage.host.ask(step(2), np.arange(4))
    assert stage.worker(0).hear() == []
    assert [type(message) for message in stage.worker(1).hear()] == [PartCall]


def test_what_was_reset_alone_in_a_replacement_is_stepped_and_only_the_rest_is_lost(stage):
    stage.worker(0).end = "killed by SIGSEGV"
    stage.events()
    stage.get_ready(0)
    stage.host.ask(Reset(1, (5,), 0))
    (reset,) = stage.worker(0).hear()
    stage.worker(0).say(Stepped(reset.request))
    assert stage.events() == [Rows(Reset(1, (5,), 0), (5,))]
    # From a head that has not heard of the loss.
    stage.host.ask(step(2), np.arange(4))
    (lost,) = stage.events()
    assert (lost.slots, lost.voided) == ((4,), (Voided(step(2), (4,)),))
    (call,) = stage.worker(0).hear()
    assert (call.first, call.count) == (1, 1)


def test_an_answer_to_a_step_that_was_abandoned_is_not_taken_for_a_newer_one(stage):
    late = begin(stage)
    stage.host.abandon()
    stage.host.ask(step(2), np.arange(4))
    for place, call in enumerate(late):
        stage.worker(place).answer_silently(call)
    assert stage.events() == []
    assert not stage.host.is_idle
    for place, (call,) in enumerate(stage.heard()):
        stage.worker(place).answer_silently(call)
    assert {rows.slots for rows in stage.events()} == {(4, 5), (6, 7)}


def test_nobody_is_called_before_what_was_said_earlier_was_heard(stage):
    stage.host.ask(Call(1, (4,), "render", b""))
    stage.host.ask(step(2), np.arange(4))
    call, message = stage.worker(0).hear()
    assert isinstance(call, Call)
    assert isinstance(message, Step)
    worker = stage.worker(0)
    worker.say(Returned(call.request, b""))
    worker.say(Stepped(message.request))
    values, rows = stage.events()
    assert isinstance(values, Values)
    assert rows == Rows(step(2), (4, 5))


def test_who_sleeps_is_woken_by_a_call(stage):
    worker = stage.worker(0)
    worker.hear()
    assert worker.line.mailbox.fall_asleep()
    stage.host.ask(step(), np.arange(4))
    assert worker.line._poller.poll(0)


def play(stage, places, num_steps):
    """Threads that answer so many calls each, as workers do."""

    def answer(worker):
        for _ in range(num_steps):
            worker.answer_silently(worker.line.receive(_PATIENCE_S))

    threads = [threading.Thread(target=answer, args=(stage.worker(p),)) for p in places]
    for thread in threads:
        thread.start()
    return threads


def test_steps_like_the_last_need_nothing_but_flags(stage):
    num_steps, num_again = 300, 0
    threads = play(stage, (0, 1), num_steps)
    for number in range(num_steps):
        if stage.host.step_again(step(number), np.full(4, number)):
            num_again += 1
            continue
        if not stage.host.is_in_lockstep:
            stage.host.ask(step(number), np.full(4, number))
        finish(stage)
    for thread in threads:
        thread.join(_PATIENCE_S)
    assert stage.host.is_idle
    # Not always: a thread may need longer than anybody spins.
    assert num_again > 0


def finish(stage):
    while not stage.host.is_idle:
        for event in stage.host.events(1.0):
            assert isinstance(event, Rows)


def test_nothing_is_begun_like_the_last_where_something_else_was_said(stage):
    for place, call in enumerate(begin(stage)):
        stage.worker(place).answer_silently(call)
    stage.events()
    stage.host.ask(Call(2, (4,), "render", b""))
    assert not stage.host.step_again(step(3), np.arange(4))
    assert not stage.host.is_in_lockstep


def test_nothing_is_begun_like_the_last_before_there_was_a_step(stage):
    assert not stage.host.step_again(step(), np.arange(4))
    assert not stage.host.is_in_lockstep


def test_nothing_is_begun_like_the_last_where_another_thread_wants_something(stage):
    for place, call in enumerate(begin(stage)):
        stage.worker(place).answer_silently(call)
    stage.events()
    stage.host.wake()
    assert not stage.host.step_again(step(2), np.arange(4))
    assert not stage.host.is_in_lockstep


# Parts.


def send(stage, number, slots, num_parts=1):
    stage.host.ask(step(number, slots, num_parts=num_parts, together=False), np.array(slots))


def test_some_slots_are_stepped_by_calls_to_their_workers(stage):
    send(stage, 1, (5, 6))
    (first,), (second,) = stage.heard()
    assert (first.first, first.count) == (1, 1)
    assert (second.first, second.count) == (0, 1)
    for place, call in enumerate((first, second)):
        slot = 5 + place
        actions = stage.worker(place).rows().copy_actions(call.dtype, [slot])
        assert actions.tolist() == [slot]
        stage.worker(place).answer_silently(call)
    # Their rows say all: they are ready, and there is nothing to report.
    assert stage.events() == []
    assert sorted(stage.ready) == [5, 6]
    assert stage.host.is_idle


def test_each_worker_answers_for_one_part_of_its_slots_after_the_other(stage):
    send(stage, 1, SLOTS, num_parts=2)
    calls = stage.heard()
    assert [[(call.first, call.count) for call in own] for own in calls] == [[(0, 1), (1, 1)]] * 2
    stage.worker(1).answer_silently(calls[1][0])
    stage.events()
    assert stage.ready == [6]
    stage.worker(1).answer_silently(calls[1][1])
    stage.events()
    assert stage.ready == [6, 7]
    assert not stage.host.is_idle


def test_slots_that_are_no_neighbours_are_asked_for_by_a_message(make_stage):
    stage = make_stage(num_workers=1).open()
    send(stage, 1, (4, 6))
    (message,) = stage.worker(0).hear()
    assert isinstance(message, Step)
    assert message.slots == (4, 6)
    stage.worker(0).say(Stepped(message.request))
    (rows,) = stage.events()
    assert rows.slots == (4, 6)


def test_only_so_many_calls_wait_for_a_worker_and_then_messages_do(make_stage):
    stage = make_stage(num_workers=1, slots=range(4, 4 + MOST_PARTS + 2)).open()
    for slot in range(4, 4 + MOST_PARTS + 2):
        send(stage, slot, (slot,))
    heard = stage.worker(0).hear()
    assert [type(one) for one in heard] == [PartCall] * MOST_PARTS + [Step] * 2


def test_waiting_ends_with_as_many_slots_as_are_wanted(stage):
    # Look for losses only now and then, or there is always something else to do.
    stage.events()
    stage.host._next_check = float("inf")
    send(stage, 1, SLOTS)
    calls = [call for (call,) in stage.heard()]

    def answer():
        for place, call in enumerate(calls):
            stage.worker(place).answer_silently(call)

    thread = threading.Thread(target=answer)
    thread.start()
    assert stage.host.wait_for_parts(4, _PATIENCE_S)
    thread.join()
    assert sorted(stage.ready) == list(SLOTS)


def test_waiting_ends_where_there_is_something_else_to_hear(stage):
    send(stage, 1, SLOTS)
    stage.heard()
    stage.worker(0).say(EnvWarned("UserWarning", "hm"))
    assert not stage.host.wait_for_parts(4, _PATIENCE_S)


def test_waiting_in_vain_for_parts_ends(stage):
    send(stage, 1, SLOTS)
    assert not stage.host.wait_for_parts(4, 0.01)
    assert stage.ready == []


def test_a_part_that_says_more_than_its_rows_comes_as_an_event(stage):
    send(stage, 1, (4, 5))
    (call,) = stage.worker(0).hear()
    worker = stage.worker(0)
    worker.line.leave(Stepped(call.request, infos=b"infos"))
    if worker.rows().part_flags.put(0, call.number, call.request, says_more=True):
        worker.line.wake_host()
    (rows,) = stage.events()
    assert (rows.slots, rows.infos) == ((4, 5), b"infos")
    # Whoever takes the event says that they are ready.
    assert stage.ready == []
    assert stage.host.is_idle


def test_a_worker_that_is_lost_has_no_parts_any_more(stage):
    send(stage, 1, SLOTS, num_parts=2)
    calls = stage.heard()
    stage.worker(0).answer_silently(calls[0][0])
    stage.worker(0).end = "exit code 1"
    (lost,) = stage.events()
    assert stage.ready == [4]
    assert [one.slots for one in lost.voided] == [(5,)]
    for call in calls[1]:
        stage.worker(1).answer_silently(call)
    stage.events()
    assert stage.ready == [4, 6, 7]
    assert stage.host.is_idle


def test_answers_to_parts_that_were_abandoned_make_no_slot_ready(stage):
    send(stage, 1, SLOTS)
    late = [call for (call,) in stage.heard()]
    stage.host.abandon()
    for place, call in enumerate(late):
        stage.worker(place).answer_silently(call)
    stage.events()
    assert stage.ready == []
    assert stage.host.is_idle
    send(stage, 2, (4, 5))
    (call,) = stage.worker(0).hear()
    stage.worker(0).answer_silently(call)
    stage.events()
    assert stage.ready == [4, 5]


def test_more_parts_than_a_worker_may_have_go_round_and_round(stage):
    for number in range(1, 5 * MOST_PARTS):
        slot = SLOTS[number % 4]
        send(stage, number, (slot,))
        place = 0 if slot < 6 else 1
        (call,) = stage.worker(place).hear()
        stage.worker(place).answer_silently(call)
        stage.events()
        assert stage.ready.pop() == slot
        assert stage.ready == []


def test_nobody_spins_beside_an_engine_with_threads_of_its_own(make_stage):
    stage = make_stage(may_spin=True)
    stage.plan = structs.replace(stage.plan, has_own_threads=True)
    stage.open()
    assert not stage.workers.inbox.may_spin
