"""Some of the random schedules, and old faults that are found when they are put back."""

import gc
import logging
import time

import pytest

from clusterenv.head.intake import Intake
from clusterenv.host import lockstep
from clusterenv.host.hearing import Hearing
from clusterenv.host.lockstep import Lockstep
from clusterenv.host.weights import HostWeights
from clusterenv.host.worker_requests import WorkerRequests
from clusterenv.host.workers import Workers
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Evaluate
from clusterenv.sync.rules import EVALUATION, FIRST
from clusterenv.wire import gathering
from clusterenv.wire.fragment_window import FragmentWindow
from clusterenv.wire.reply_checks import ReplyChecks
from tests.simulation.schedules import play
from tests.simulation.stage import simulated
from tests.simulation.world import Violation

SECONDS = 5.0  # for each of the six blocks
MOST_SCHEDULES = 3_000
"""Within so many an old fault must be found."""


@pytest.fixture(autouse=True)
def _simulation():
    logging.disable(logging.CRITICAL)
    with simulated():
        yield
    logging.disable(logging.NOTSET)
    gc.collect()


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("kind", ["local", "remote", "liars"])
def test_whatever_happens_in_whatever_order_every_row_is_real(kind, block):
    seed, deadline = 1_000_000 * (block + 1), time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        play(seed, kind)
        seed += 1


def test_a_seed_is_a_schedule(capsys):
    play(7, "remote", is_traced=True)
    first = capsys.readouterr().out
    play(7, "remote", is_traced=True)
    assert capsys.readouterr().out == first
    assert "user: reset" in first


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        # A slot that was reset alone in a replacement was reported as lost with its neighbour.
        ("remote", 269_410),
        ("liars", 183_589),
        # A fragment ahead came joined with others before its slot's earlier one was known as lost.
        ("liars", 219_625),
        ("remote", 365_441),
        # A slot that was reset alone in a replacement was reset again with its neighbours, whose
        # loss the head had not heard of, by a rollout.
        ("remote", 475_368),
    ],
)
def test_schedules_that_went_wrong_once_go_well(kind, seed):
    play(seed, kind)


def first_violation(kind, first_seed=0):
    """What is found first, or nothing."""
    for seed in range(first_seed, first_seed + MOST_SCHEDULES):
        try:
            play(seed, kind)
        except Violation as violation:
            return str(violation)
    return ""


# Old faults.


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_an_answer_that_is_dropped_with_its_worker_is_found(kind, monkeypatch):
    answered = Lockstep.answered

    def of_the_living(lockstep):
        return [worker for worker in answered(lockstep) if not worker.running.how_it_ended()]

    monkeypatch.setattr(Lockstep, "answered", of_the_living)
    monkeypatch.setattr(Hearing, "last_answers", lambda hearing, worker: [])
    found = first_violation(kind)
    assert "and lost that" in found or "was lost at" in found


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_a_reset_that_is_forgotten_when_a_rollout_is_abandoned_is_found(kind, monkeypatch):
    abandon = WorkerRequests.abandon

    def forget(requests):
        abandon(requests)
        for worker in requests._staff.members:
            worker.not_reset.clear()
        return set()

    monkeypatch.setattr(WorkerRequests, "abandon", forget)
    assert "which nobody reset" in first_violation(kind)


def test_a_policy_that_acts_for_a_new_one_is_found(monkeypatch):
    def cause(weights, request):
        if isinstance(request, Evaluate):
            return EVALUATION if weights._held_for_evaluation < weights._newest.version else None
        news = weights._news(weights._newest)
        return weights._rule.cause_to_pull(news) if weights._held else FIRST

    monkeypatch.setattr(HostWeights, "_cause", cause)
    found = first_violation("local")
    assert "of a policy before that of" in found or "no weights of this policy" in found


def test_a_stream_that_waits_for_ever_is_found(monkeypatch):
    monkeypatch.setattr(FragmentWindow, "asked", lambda window, slots: None)
    assert "did nothing wrong" in first_violation("remote")


def test_a_replacement_that_is_never_started_is_found(monkeypatch):
    monkeypatch.setattr(Workers, "start_due", lambda workers: iter(()))
    assert first_violation("local")


def test_rows_that_are_sent_before_fragments_are_found(monkeypatch):
    monkeypatch.setattr(gathering, "_before_fragments", lambda rows, parts: (rows, []))
    assert "went from" in first_violation("liars", 3_000)


def test_a_row_of_a_lockstep_that_overtakes_a_fragment_is_found(monkeypatch):
    def can_be_called(worker):
        return worker.is_ready and not worker.not_reset and worker.line.can_call()

    monkeypatch.setattr(lockstep, "_can_be_called", can_be_called)
    assert "went from" in first_violation("liars")


def frame(monkeypatch):
    """Compare hosts with one another, and blame who comes second."""
    take = Intake._take

    def compare(intake, host, event):
        if isinstance(event, FragmentPart) and event.request.together:
            others = [
                part
                for part in intake.fragments.waiting
                if part.arrays.keys() != event.arrays.keys()
            ]
            if others:
                intake.fragments.drop()
                raise ValueError("other outputs than those of others")
        take(intake, host, event)

    monkeypatch.setattr(Intake, "_take", compare)
    monkeypatch.setattr(ReplyChecks, "_check_policys", lambda checks, part: None)


def test_an_honest_host_that_is_framed_by_a_liar_is_found(monkeypatch):
    frame(monkeypatch)
    assert "did nothing wrong" in first_violation("liars")
