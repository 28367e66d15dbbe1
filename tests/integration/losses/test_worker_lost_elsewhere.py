"""A worker killed with -9 between steps, during a reset, during a call; and with no autoreset."""

import time
from multiprocessing import TimeoutError as CallTimeoutError

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from clusterenv import Limits, WorkerLostError
from tests import inside
from tests.environments.troubles import Gate
from tests.environments.vectors import (
    SHARED_MEMORY,
    actions_for,
    cluster,
    info_of,
    oracle_of,
    row_of,
    walks,
)
from tests.equality import assert_same
from tests.integration.polling import eventually, is_alive, kill, within

NUM_ENVS = 4
VICTIM = 2  # its worker has slots 2 and 3
ACTIONS = actions_for(NUM_ENVS)


@pytest.fixture(params=SHARED_MEMORY)
def transport(request):
    return request.param


def kill_worker_of(envs, slot):
    """Kill while nothing is under way."""
    kill(envs.call("pid")[slot])


def kill_within(envs, folder, start):
    """Start something in which the env of slot `VICTIM` waits, and kill its worker then."""
    pid = envs.call("pid")[VICTIM]
    start()
    assert eventually((folder / "sign").exists)
    kill(pid)
    (folder / "gate").touch()


def gated_walks(folder, verb, at=1):
    gate = Gate(str(folder / "gate"))
    return walks(NUM_ENVS, VICTIM, trouble=gate, verb=verb, at=at, sign=str(folder / "sign"))


def lost_in(answer):
    infos = answer[-1]
    return np.flatnonzero(infos["env_lost"]).tolist() if "env_lost" in infos else []


# Between steps.


def test_a_worker_killed_while_idle_is_reported_by_the_next_step(transport):
    oracle = oracle_of(NUM_ENVS)
    with cluster(walks(NUM_ENVS), transport) as envs:
        start, _ = envs.reset(seed=1)
        oracle.reset(seed=1)
        kill_worker_of(envs, VICTIM)
        answer, expected = envs.step(ACTIONS), oracle.step(ACTIONS)
        assert lost_in(answer) == [2, 3]
        assert_same(answer[0][2:], start[2:])
        assert_same(row_of(answer, 0), row_of(expected, 0))
        assert lost_in(envs.step(ACTIONS)) == []


def test_a_worker_that_was_replaced_before_the_next_step_is_reported_by_it(transport):
    with cluster(walks(NUM_ENVS), transport) as envs:
        envs.reset(seed=1)
        kill_worker_of(envs, VICTIM)
        time.sleep(2.0)  # the user computes, and a host elsewhere need not wait for that
        assert lost_in(envs.step(ACTIONS)) == [2, 3]
        assert envs.step(ACTIONS)[-1]["_start"].tolist() == [False, False, True, True]


def test_a_worker_killed_before_the_first_reset_is_no_loss(transport):
    oracle = oracle_of(NUM_ENVS)
    with cluster(walks(NUM_ENVS), transport) as envs:
        kill_worker_of(envs, VICTIM)
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        assert_same(envs.step(ACTIONS), oracle.step(ACTIONS))


def test_a_reset_after_a_kill_starts_anew_without_a_loss(transport):
    oracle = oracle_of(NUM_ENVS)
    with cluster(walks(NUM_ENVS), transport) as envs:
        envs.reset(seed=0)
        envs.step(ACTIONS)
        kill_worker_of(envs, VICTIM)
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        assert_same(envs.step(ACTIONS), oracle.step(ACTIONS))


def test_a_reset_right_after_the_report_starts_anew():
    oracle = oracle_of(NUM_ENVS)
    with cluster(walks(NUM_ENVS)) as envs:
        envs.reset(seed=0)
        kill_worker_of(envs, VICTIM)
        assert lost_in(envs.step(ACTIONS)) == [2, 3]
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        assert_same(envs.step(ACTIONS), oracle.step(ACTIONS))


def test_both_workers_may_be_killed_at_once(transport):
    with cluster(walks(NUM_ENVS), transport) as envs:
        envs.reset(seed=0)
        for pid in set(envs.call("pid")):
            kill(pid)
        assert lost_in(envs.step(ACTIONS)) == [0, 1, 2, 3]
        assert envs.step(ACTIONS)[-1]["_start"].all()


def test_a_replacement_may_be_killed_too():
    with cluster(walks(NUM_ENVS)) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            kill_worker_of(envs, VICTIM)
            assert lost_in(envs.step(ACTIONS)) == [2, 3]
            assert info_of(envs.step(ACTIONS)[-1], VICTIM).keys() == {"start"}


def test_the_replacement_is_another_process():
    with cluster(walks(NUM_ENVS)) as envs:
        envs.reset(seed=0)
        before = envs.call("pid")
        kill(before[VICTIM])
        envs.step(ACTIONS)
        envs.step(ACTIONS)
        after = envs.call("pid")
        assert after[:2] == before[:2]
        assert after[2] == after[3] != before[2]
        assert not is_alive(before[VICTIM])


def test_a_replacement_that_got_ready_while_nobody_listened_is_not_replaced_again(transport):
    limits = Limits(restart_timeout_s=0.5)
    with cluster(walks(NUM_ENVS), transport, limits=limits) as envs:
        envs.reset(seed=0)
        kill_worker_of(envs, VICTIM)
        assert lost_in(envs.step(ACTIONS)) == [2, 3]
        time.sleep(1.5)  # the user computes for longer than a worker may take to get ready
        assert envs.step(ACTIONS)[-1]["_start"].tolist() == [False, False, True, True]
        assert inside.times_replaced(envs) == [0, 1]


def test_ctrl_c_while_a_worker_is_replaced_leaves_the_run_usable(monkeypatch):
    oracle = oracle_of(NUM_ENVS)
    with cluster(walks(NUM_ENVS)) as envs:
        envs.reset(seed=0)
        kill_worker_of(envs, VICTIM)
        inside.interrupt_next_start(envs, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            envs.step(ACTIONS)
        assert_same(within(20.0, lambda: envs.reset(seed=1)), oracle.reset(seed=1))
        assert_same(envs.step(ACTIONS), oracle.step(ACTIONS))


@pytest.mark.parametrize("verb", ["poke", "mood"])
def test_a_call_that_was_interrupted_has_no_say_in_the_next_reset(verb, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    oracle = oracle_of(NUM_ENVS)
    with cluster(gated_walks(tmp_path, verb)) as envs:
        envs.reset(seed=0)
        pid = envs.workers[1].pid
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            inside.replace_wait(envs, patch, interrupt)
            envs.call("poke") if verb == "poke" else envs.set_attr("mood", "sad")
        kill(pid)
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))


def test_a_step_that_timed_out_waiting_for_the_replacement_can_be_repeated():
    with cluster(walks(NUM_ENVS)) as envs:
        envs.reset(seed=0)
        kill_worker_of(envs, VICTIM)
        envs.step(ACTIONS)
        envs.step_async(ACTIONS)
        with pytest.raises(CallTimeoutError):
            envs.step_wait(timeout=0.01)
        # The restart may be part of this step, or have come too late for the one before.
        age = info_of(envs.step(ACTIONS)[-1], VICTIM).get("age", 0)
        assert age in (0, 1)
        assert info_of(envs.step(ACTIONS)[-1], VICTIM) == {"age": age + 1}


# During a reset.


def test_a_reset_completes_on_the_replacement_with_the_same_numbers(transport, tmp_path):
    oracle = oracle_of(NUM_ENVS)
    with cluster(gated_walks(tmp_path, "reset"), transport) as envs:
        kill_within(envs, tmp_path, lambda: envs.reset_async(seed=1))
        assert_same(envs.reset_wait(), oracle.reset(seed=1))
        assert_same(envs.step(ACTIONS), oracle.step(ACTIONS))


def test_slots_that_were_not_being_reset_are_lost(tmp_path):
    with cluster(gated_walks(tmp_path, "reset", at=2)) as envs:
        envs.reset(seed=1)
        mask = np.arange(NUM_ENVS) == VICTIM
        kill_within(envs, tmp_path, lambda: envs.reset_async(options={"reset_mask": mask}))
        envs.reset_wait()
        assert lost_in(envs.step(ACTIONS)) == [3]


# During a call.


@pytest.mark.parametrize("verb", ["call", "set_attr"])
def test_a_worker_killed_before_a_call_is_an_error_that_says_so(verb):
    with cluster(walks(NUM_ENVS)) as envs:
        envs.reset(seed=0)
        kill_worker_of(envs, VICTIM)
        with pytest.raises(WorkerLostError, match="SIGKILL"):
            envs.call("poke") if verb == "call" else envs.set_attr("mark", 1)


def test_a_worker_killed_during_a_call_is_an_error_and_later_calls_work(transport, tmp_path):
    with cluster(gated_walks(tmp_path, "poke"), transport) as envs:
        envs.reset(seed=0)
        kill_within(envs, tmp_path, lambda: envs.call_async("poke"))
        with pytest.raises(WorkerLostError, match="SIGKILL"):
            envs.call_wait()
        assert len(set(envs.call("pid"))) == 2
        assert envs.get_attr("length") == (1000,) * NUM_ENVS


def test_slots_lost_during_a_call_are_reported_by_the_next_step(tmp_path):
    with cluster(gated_walks(tmp_path, "poke")) as envs:
        envs.reset(seed=0)
        kill_within(envs, tmp_path, lambda: envs.call_async("poke"))
        with pytest.raises(WorkerLostError):
            envs.call_wait()
        assert lost_in(envs.step(ACTIONS)) == [2, 3]
        assert info_of(envs.step(ACTIONS)[-1], VICTIM).keys() == {"start"}


# Without autoreset.


@pytest.fixture
def disabled(transport):
    with cluster(walks(NUM_ENVS), transport, autoreset_mode=AutoresetMode.DISABLED) as envs:
        envs.reset(seed=0)
        kill_worker_of(envs, VICTIM)
        yield envs


def test_disabled_autoreset_reports_the_loss_as_an_end_of_the_episode(disabled):
    answer = disabled.step(ACTIONS)
    assert lost_in(answer) == [2, 3]
    assert answer[3].tolist() == [False, False, True, True]


def test_disabled_autoreset_lets_the_user_reset_lost_slots(disabled):
    *_, truncated, _ = disabled.step(ACTIONS)
    observations, infos = disabled.reset(seed=7, options={"reset_mask": truncated})
    expected, _ = oracle_of(NUM_ENVS).reset(seed=7)
    assert_same(observations[2:], expected[2:])
    *_, truncated, infos = disabled.step(ACTIONS)
    assert not truncated.any()
    assert infos["age"].tolist() == [2, 2, 1, 1]


def test_disabled_autoreset_refuses_to_step_a_lost_slot_that_was_not_reset(disabled):
    disabled.step(ACTIONS)
    with pytest.raises(Exception, match="reset"):
        disabled.step(ACTIONS)
