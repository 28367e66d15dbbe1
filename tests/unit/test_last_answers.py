"""A worker that answers and then ends: its answer counts, and the loss comes after it."""

import numpy as np
import pytest

from clusterenv.host.events import Lost, Rows, Voided, WorkerWarned
from clusterenv.memory.answer_flags import MAY_SPIN
from clusterenv.memory.messages import EnvWarned
from clusterenv.protocol.replies import Collected, Returned, Stepped
from clusterenv.protocol.requests import Call, Step
from tests.unit.paper_workers import Stage

SLOTS = (4, 5, 6, 7)
called = pytest.mark.skipif(not MAY_SPIN, reason="memory is ordered weakly: nobody is called")


@pytest.fixture
def stage():
    stage = Stage().open()
    yield stage
    stage.close()


def end_after(worker, last_words):
    """The worker does this, and ends, just when its host looks whether it has ended."""

    def how_it_ended():
        if not worker.is_killed:
            last_words()
        return "killed by SIGKILL"

    worker.how_it_ended = how_it_ended


def kinds(events):
    return [(type(event), tuple(event.slots)) for event in events]


@called
def test_a_step_that_was_answered_silently_counts_though_its_worker_ended(stage):
    step = Step(1, SLOTS)
    stage.host.ask(step, np.arange(4))
    (call,), _ = stage.heard()
    end_after(stage.worker(0), lambda: stage.worker(0).answer_silently(call))
    rows, lost = stage.events()
    assert rows == Rows(step, (4, 5))
    assert (lost.slots, lost.voided) == ((4, 5), ())
    assert not stage.host.is_idle


@called
def test_what_an_answered_step_wrote_is_not_taken_back(stage):
    stage.host.ask(Step(1, SLOTS), np.arange(4))
    (call,), _ = stage.heard()
    worker = stage.worker(0)

    def write_and_answer():
        rows = worker.rows()
        rows.begin_to_write(worker.slots, 0, call.request)
        rows.results.observations[0][:2] = 7.0
        rows.results.rewards[:2] = 3.0
        worker.answer_silently(call)

    end_after(worker, write_and_answer)
    stage.events()
    assert stage.host.rows.results.observations[0][:2].tolist() == [[7.0, 7.0]] * 2
    assert stage.host.rows.results.rewards[:2].tolist() == [3.0, 3.0]


@called
def test_a_part_that_was_answered_counts_and_only_the_others_are_void(stage):
    step = Step(1, SLOTS, num_parts=2, together=False)
    stage.host.ask(step, np.arange(4))
    (first, _), _ = stage.heard()
    end_after(stage.worker(0), lambda: stage.worker(0).answer_silently(first))
    (lost,) = stage.events()
    assert (lost.slots, lost.voided) == ((4, 5), (Voided(step, (5,)),))
    assert stage.ready == [4]


@called
def test_a_part_that_was_answered_behind_one_with_a_message_counts_too(stage):
    step = Step(1, SLOTS, num_parts=2, together=False)
    stage.host.ask(step, np.arange(4))
    (first, second), _ = stage.heard()
    worker = stage.worker(0)

    def answer_both():
        worker.say(Stepped(first.request, infos=b"infos"))
        worker.answer_silently(second)

    end_after(worker, answer_both)
    assert kinds(stage.events()) == [(Rows, (4,)), (Lost, (4, 5))]
    assert stage.ready == [5]


def test_a_message_that_was_not_heard_yet_counts(stage):
    stage.host.ask(Call(1, SLOTS, "render", b""))
    (call,), _ = stage.heard()
    worker = stage.worker(0)

    def warn_and_return():
        worker.say(EnvWarned("UserWarning", "hm"))
        worker.say(Returned(call.request, b"values"))

    end_after(worker, warn_and_return)
    warned, values, lost = stage.events()
    assert warned == WorkerWarned("worker-0.0", "UserWarning", "hm")
    assert (values.slots, values.values) == ((4, 5), b"values")
    assert lost.voided == ()


def test_a_last_message_that_makes_no_sense_does_not_count(stage):
    request = Call(1, SLOTS, "render", b"")
    stage.host.ask(request)
    (call,), _ = stage.heard()
    worker = stage.worker(0)
    end_after(worker, lambda: worker.say(Collected(call.request, 1, (), ())))
    (lost,) = stage.events()
    assert lost.voided == (Voided(request, (4, 5)),)
    assert lost.reason == "killed by SIGKILL"


def test_nothing_of_a_worker_that_broke_the_protocol_is_believed(stage):
    request = Call(1, SLOTS, "render", b"")
    stage.host.ask(request)
    (call,), _ = stage.heard()
    stage.worker(0).say(Collected(call.request, 1, (), ()))
    stage.worker(0).say(Returned(call.request, b"values"))
    (lost,) = stage.events()
    assert lost.voided == (Voided(request, (4, 5)),)
    assert "it broke the protocol" in lost.reason
