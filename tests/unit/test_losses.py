"""Who is lost: whoever has to leave and can, and whoever does not answer in time."""

from types import SimpleNamespace

import pytest

from clusterenv.host.losses import _HUNG_GRACE_S, has_to_go, overdue
from clusterenv.host.plan import WorkerLimits
from clusterenv.host.worker import Asked
from clusterenv.protocol.requests import (
    Act,
    Call,
    Collect,
    CountTime,
    Evaluate,
    Newest,
    Reset,
    SetAttr,
    Step,
)

LIMITS = WorkerLimits(
    startup_timeout_s=1000.0,
    step_timeout_s=10.0,
    restart_timeout_s=60.0,
    max_restarts_per_minute=3,
)
NEWEST = Newest(1, 1)
QUICK = [
    Reset(1, (0,), 42),
    Step(1, (0,)),
    Call(1, (0,), "render", b""),
    SetAttr(1, (0,), "speed", (b"",)),
    CountTime(1, (0,), True),
    Act(1, (0,), NEWEST),
]
EVALUATE = Evaluate(1, (0,), (1,), 7, True, NEWEST)


def collect(num_steps=5):
    return Collect(1, (0,), num_steps, NEWEST)


def worker(*requests, sent_at=0.0, is_ready=True, started_at=0.0, leaving=""):
    asked = {n: Asked(request, (0,), sent_at) for n, request in enumerate(requests)}
    return SimpleNamespace(asked=asked, is_ready=is_ready, started_at=started_at, leaving=leaving)


def reasons(now, *workers):
    return [reason for _, reason in overdue(list(workers), LIMITS, now)]


def kind(request):
    return type(request).__name__


# In time.


@pytest.mark.parametrize("request_", QUICK, ids=kind)
def test_a_request_may_take_as_long_as_a_step_and_a_little_longer(request_):
    late = 10.0 + _HUNG_GRACE_S
    # The worker dumps its stack at the limit itself.
    assert reasons(late, worker(request_)) == []
    assert reasons(late + 0.1, worker(request_)) == ["no answer within step_timeout_s=10"]


def test_a_fragment_may_take_as_long_as_all_its_steps():
    late = 5 * 10.0 + _HUNG_GRACE_S
    assert reasons(late, worker(collect(5))) == []
    assert reasons(late + 0.1, worker(collect(5))) == ["no answer within step_timeout_s=10"]


def test_nobody_knows_how_long_episodes_are():
    assert reasons(1e9, worker(EVALUATE)) == []


def test_time_counts_from_when_it_was_asked():
    assert reasons(1005.0, worker(Step(1, (0,)), sent_at=1000.0)) == []


def test_one_late_answer_among_others_is_enough_and_the_worker_is_named_once():
    own = worker(EVALUATE, *QUICK)
    (found,) = overdue([worker(), own, worker()], LIMITS, 100.0)
    assert found[0] is own


def test_a_worker_that_was_asked_nothing_has_all_the_time_there_is():
    assert reasons(1e9, worker()) == []


def test_who_is_not_ready_is_late_after_the_time_for_restarts():
    own = worker(Step(1, (0,)), is_ready=False, started_at=100.0)
    assert reasons(160.0, own) == []
    assert reasons(160.1, own) == ["not ready within restart_timeout_s=60"]


def test_who_is_not_ready_is_not_late_with_what_it_was_never_sent():
    assert reasons(50.0, worker(Step(1, (0,)), is_ready=False)) == []


def test_who_is_not_ready_and_not_needed_is_not_late():
    assert reasons(1e9, worker(is_ready=False)) == []


# Leaving.


def test_nobody_has_to_go_who_has_not_said_so():
    assert not has_to_go(worker())


def test_who_has_nothing_to_do_can_go():
    assert has_to_go(worker(leaving="it was told to leave"))


def test_fragments_can_be_collected_again():
    assert has_to_go(worker(collect(), collect(), leaving="it was told to leave"))


@pytest.mark.parametrize("request_", [*QUICK, EVALUATE], ids=kind)
def test_anything_else_is_done_first(request_):
    assert not has_to_go(worker(collect(), request_, leaving="it was told to leave"))
