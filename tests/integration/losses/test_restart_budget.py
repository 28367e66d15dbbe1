"""Workers that die more often than they may be replaced: the error says who, why and where."""

import multiprocessing
import os
import signal

import pytest

from clusterenv import Limits, StartupError, WorkerLostError
from tests.contract.policies import numpy_policy
from tests.environments import troubles
from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster, oracle_of, walks
from tests.equality import assert_same
from tests.integration.polling import kill, within

NUM_ENVS = 4
SLOT = 2  # the first slot of the second worker
ACTIONS = actions_for(NUM_ENVS)


@pytest.fixture(params=SHARED_MEMORY)
def transport(request):
    return request.param


def loss_of(trouble, verb, max_restarts, transport="shared_memory", slot=SLOT, num_workers=2):
    """The text of the error that ends a run whose env dies in each `verb`."""
    makers = walks(NUM_ENVS, slot, trouble=trouble, verb=verb)
    limits = Limits(max_restarts_per_minute=max_restarts)
    with cluster(makers, transport, num_workers, limits=limits) as envs:
        with pytest.raises(WorkerLostError) as caught:
            for _ in range(2 * max_restarts + 2):
                envs.reset(seed=0)
                envs.step(ACTIONS)
        return str(caught.value)


def test_without_a_budget_the_first_loss_is_an_error(transport):
    with cluster(walks(NUM_ENVS), transport, limits=Limits(max_restarts_per_minute=0)) as envs:
        envs.reset(seed=0)
        pid = envs.call("pid")[SLOT]
        kill(pid)
        with pytest.raises(WorkerLostError) as caught:
            envs.step(ACTIONS)
    text = str(caught.value)
    assert "worker-1.0" in text
    assert str(pid) in text
    assert "SIGKILL" in text
    assert "max_restarts_per_minute" in text


def test_a_budget_of_one_allows_one_loss():
    with cluster(walks(NUM_ENVS), limits=Limits(max_restarts_per_minute=1)) as envs:
        envs.reset(seed=0)
        kill(envs.call("pid")[SLOT])
        assert envs.step(ACTIONS)[-1]["env_lost"].tolist() == [False, False, True, True]
        envs.step(ACTIONS)
        kill(envs.call("pid")[SLOT])
        with pytest.raises(WorkerLostError, match=r"worker-1\.1"):
            envs.step(ACTIONS)


def test_each_worker_has_its_own_budget():
    with cluster(walks(NUM_ENVS), limits=Limits(max_restarts_per_minute=1)) as envs:
        envs.reset(seed=0)
        for slot in (0, SLOT):
            kill(envs.call("pid")[slot])
            assert envs.step(ACTIONS)[-1]["env_lost"][slot]
            envs.step(ACTIONS)


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_an_env_that_segfaults_on_every_reset_is_named(max_restarts):
    text = loss_of(troubles.segfault, "reset", max_restarts)
    assert f"slot {SLOT}" in text
    assert "SIGSEGV" in text


def test_the_stack_of_a_segfault_is_in_the_error(transport):
    text = loss_of(troubles.segfault, "reset", 0, transport)
    assert "in segfault" in text
    assert "SIGSEGV" in text


def test_over_tcp_the_slots_of_the_lost_worker_are_named():
    text = loss_of(troubles.segfault, "reset", 0, "tcp", num_workers=NUM_ENVS)
    assert f"slot {SLOT}" in text or f"slots {SLOT}" in text


def test_an_env_that_exits_is_named_with_its_exit_code():
    text = loss_of(troubles.exit_3, "step", 1)
    assert f"slot {SLOT}" in text
    assert "exit code 3" in text


def test_an_env_that_calls_sys_exit_ends_its_worker():
    text = loss_of(troubles.system_exit, "step", 0)
    assert f"slot {SLOT}" in text
    assert "exit code 4" in text


def test_what_an_env_printed_before_it_died_is_in_the_error(transport):
    text = loss_of(troubles.print_then_exit, "step", 0, transport)
    assert "the ground is shaking" in text


def test_a_worker_that_dies_while_it_builds_its_envs_is_a_startup_error(transport):
    makers = walks(NUM_ENVS, SLOT, trouble=troubles.exit_3, verb="make")
    with pytest.raises(StartupError, match=r"(?s)worker-1\.0.*exit code 3"):
        cluster(makers, transport)


def test_an_env_that_cannot_be_built_again_raises_its_own_error(tmp_path):
    trouble = troubles.AllButOnce(str(tmp_path / "made"), troubles.raise_value_error)
    makers = walks(NUM_ENVS, SLOT, trouble=trouble, verb="make")
    with cluster(makers) as envs:
        envs.reset(seed=0)
        kill(envs.call("pid")[SLOT])
        envs.step(ACTIONS)
        with pytest.raises(ValueError, match="blocked"):
            within(20.0, lambda: envs.step(ACTIONS))


def test_one_error_while_envs_are_built_again_costs_a_restart_and_not_the_run(transport, tmp_path):
    trouble = troubles.OnlyThe(2, str(tmp_path / "made"), troubles.raise_value_error)
    makers = walks(NUM_ENVS, SLOT, trouble=trouble, verb="make")
    with cluster(makers, transport) as envs:
        envs.reset(seed=0)
        kill(envs.call("pid")[SLOT])
        envs.step(ACTIONS)
        assert "env_lost" not in within(30.0, lambda: envs.step(ACTIONS))[-1]
        assert [one.incarnation for one in envs.workers] == [0, 2]
        envs.step(ACTIONS)


def test_an_env_that_dies_whenever_it_is_built_again_is_an_error(tmp_path):
    trouble = troubles.AllButOnce(str(tmp_path / "made"), troubles.exit_3)
    makers = walks(NUM_ENVS, SLOT, trouble=trouble, verb="make")
    with cluster(makers, limits=Limits(max_restarts_per_minute=2)) as envs:
        envs.reset(seed=0)
        kill(envs.call("pid")[SLOT])
        envs.step(ACTIONS)
        with pytest.raises(WorkerLostError, match="exit code 3"):
            within(30.0, lambda: envs.step(ACTIONS))


# Whatever the rate.

UNHURRIED = {"max_restarts_per_minute": 1_000, "restart_backoff_s": 0.01}


def test_a_rollout_whose_env_always_dies_ends_however_slowly_it_does(transport):
    # No minute sees more restarts than it may.
    makers = walks(NUM_ENVS, SLOT, trouble=troubles.print_then_exit, verb="step", at=2)
    limits = Limits(max_restarts=2, **UNHURRIED)
    with cluster(makers, transport, limits=limits) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerLostError) as caught:
            within(60.0, lambda: envs.rollout(numpy_policy(envs), 8))
    text = str(caught.value)
    assert "max_restarts=2" in text
    assert "3 times exit code 3" in text
    assert f"slot {SLOT}" in text
    assert "the ground is shaking" in text


def test_a_worker_that_is_told_to_leave_is_not_replaced_for_ever():
    with cluster(walks(NUM_ENVS), limits=Limits(max_restarts=2, **UNHURRIED)) as envs:
        envs.reset(seed=0)
        told = set()

        def step_and_tell():
            envs.step(ACTIONS)
            worker = envs.workers[1]
            if worker.state == "ready" and worker.pid not in told:
                told.add(worker.pid)
                os.kill(worker.pid, signal.SIGTERM)

        with pytest.raises(WorkerLostError, match=r"max_restarts=2 .*3 times it was told to leave"):
            within(60.0, lambda: [step_and_tell() for _ in range(100_000)])
        assert len(told) == 3


def test_a_replacement_waits_longer_each_time():
    limits = Limits(max_restarts_per_minute=1_000, restart_backoff_s=1.0)
    makers = walks(NUM_ENVS, SLOT, trouble=troubles.exit_3, verb="reset", at=1)
    with cluster(makers, limits=limits) as envs:
        envs.reset_async(seed=0)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.reset_wait(timeout=6.0)
        # At 0, 1, 3 and 7 seconds, and not several times a second.
        assert 1 <= envs.workers[1].incarnation <= 4


@pytest.mark.parametrize("verb", ["reset", "call"])
def test_after_a_worker_was_given_up_calls_do_not_wait_for_it(verb):
    with cluster(walks(NUM_ENVS), limits=Limits(max_restarts_per_minute=0)) as envs:
        envs.reset(seed=0)
        kill(envs.call("pid")[SLOT])
        with pytest.raises(WorkerLostError):
            envs.step(ACTIONS)
        again = envs.reset if verb == "reset" else lambda: envs.call("poke")
        with pytest.raises(WorkerLostError, match="worker-1"):
            within(10.0, again)


def test_other_workers_are_not_restarted_by_a_loss():
    oracle = oracle_of(NUM_ENVS)
    makers = walks(NUM_ENVS, SLOT, trouble=troubles.exit_3, verb="step", at=2)
    with cluster(makers, limits=Limits(max_restarts_per_minute=5)) as envs:
        envs.reset(seed=0)
        oracle.reset(seed=0)
        pids = envs.call("pid")
        for number in range(4):
            actions = actions_for(NUM_ENVS, number)
            answer, expected = envs.step(actions), oracle.step(actions)
            assert_same(answer[0][:SLOT], expected[0][:SLOT])
        assert envs.call("pid")[:SLOT] == pids[:SLOT]
