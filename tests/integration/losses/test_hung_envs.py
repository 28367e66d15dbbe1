"""An env that does not come back: it counts as lost, and the error shows where it hangs."""

import os
import signal
from functools import cache

import pytest

from clusterenv import Limits, StartupError, WorkerLostError
from tests.environments import troubles
from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster, oracle_of, row_of, walks
from tests.equality import assert_same
from tests.integration.polling import eventually, is_alive, within

NUM_ENVS = 4
SLOT = 2
ACTIONS = actions_for(NUM_ENVS)
STEP_TIMEOUT_S = 1.0
PATIENCE_S = 30.0

HANGS = [troubles.sleep_forever, troubles.hold_the_gil]


@pytest.fixture(params=SHARED_MEMORY)
def transport(request):
    return request.param


def hanging(trouble, transport="shared_memory", verb="step", at=None, **limits):
    makers = walks(NUM_ENVS, SLOT, trouble=trouble, verb=verb, at=at)
    return cluster(makers, transport, limits=Limits(step_timeout_s=STEP_TIMEOUT_S, **limits))


def error_of_hanging(trouble, transport, verb="step"):
    """The text of the error that a hang in `verb` causes when nothing may be restarted."""
    with hanging(trouble, transport, verb, max_restarts_per_minute=0) as envs:
        if verb != "reset":
            envs.reset(seed=0)
        start = {"reset": envs.reset, "step": lambda: envs.step(ACTIONS)}.get(
            verb, lambda: envs.call(verb)
        )
        with pytest.raises(WorkerLostError) as caught:
            within(PATIENCE_S, start)
        return str(caught.value)


@pytest.fixture(scope="module")
def texts():
    """The error text of each kind of hang over each transport, when it is first asked for."""
    return cache(error_of_hanging)


@pytest.mark.parametrize("hang", HANGS)
def test_the_error_shows_the_function_that_hangs(hang, transport, texts):
    assert hang.__name__ in texts(hang, transport)


@pytest.mark.parametrize("hang", HANGS)
def test_the_error_names_the_worker_and_the_slot(hang, texts):
    assert "worker-1.0" in texts(hang, "shared_memory")
    assert f"slot {SLOT}" in texts(hang, "shared_memory")


def test_the_error_says_which_limit_was_passed(transport, texts):
    assert "step_timeout_s" in texts(troubles.sleep_forever, transport)


@pytest.mark.parametrize("verb", ["reset", "poke"])
def test_a_hang_in_a_reset_or_a_call_is_shown_as_well(verb):
    assert "sleep_forever" in error_of_hanging(troubles.sleep_forever, "shared_memory", verb)


@pytest.mark.parametrize(
    ("hang", "transport"),
    [(troubles.sleep_forever, "shared_memory"), (troubles.hold_the_gil, "tcp")],
)
def test_a_hung_env_is_lost_and_starts_over(hang, transport, tmp_path):
    trouble = troubles.OnlyOnce(str(tmp_path / "hung"), hang)
    oracle = oracle_of(NUM_ENVS)
    with hanging(trouble, transport) as envs:
        envs.reset(seed=0)
        oracle.reset(seed=0)
        answer, expected = within(PATIENCE_S, lambda: envs.step(ACTIONS)), oracle.step(ACTIONS)
        assert answer[-1]["env_lost"].tolist() == [False, False, True, True]
        assert_same(row_of(answer, 0), row_of(expected, 0))
        assert envs.step(ACTIONS)[-1]["_start"].tolist() == [False, False, True, True]
        assert envs.step(ACTIONS)[-1]["age"].tolist() == [3, 3, 1, 1]


def test_the_hung_process_is_gone():
    with hanging(troubles.sleep_forever, at=1) as envs:
        envs.reset(seed=0)
        pid = envs.call("pid")[SLOT]
        envs.step(ACTIONS)
        assert not is_alive(pid)


def test_a_worker_that_is_stopped_counts_as_lost():
    with cluster(walks(NUM_ENVS), limits=Limits(step_timeout_s=STEP_TIMEOUT_S)) as envs:
        envs.reset(seed=0)
        pid = envs.call("pid")[SLOT]
        os.kill(pid, signal.SIGSTOP)
        answer = within(PATIENCE_S, lambda: envs.step(ACTIONS))
        assert answer[-1]["env_lost"].tolist() == [False, False, True, True]
        assert eventually(lambda: not is_alive(pid))


def test_building_an_env_may_take_longer_than_a_step():
    with hanging(troubles.sleep_a_while, verb="make") as envs:
        assert_same(envs.reset(seed=0), oracle_of(NUM_ENVS).reset(seed=0))


def test_an_env_that_never_gets_built_is_a_startup_error_that_names_the_worker():
    makers = walks(NUM_ENVS, SLOT, trouble=troubles.sleep_forever, verb="make")
    with pytest.raises(StartupError, match=r"1 of 2 workers .*startup_timeout_s=3.*worker-1\.0"):
        within(PATIENCE_S, lambda: cluster(makers, limits=Limits(startup_timeout_s=3.0)))


def test_a_run_may_be_idle_for_longer_than_a_step_may_take():
    oracle = oracle_of(NUM_ENVS)
    with cluster(walks(NUM_ENVS), limits=Limits(step_timeout_s=STEP_TIMEOUT_S)) as envs:
        assert_same(envs.reset(seed=0), oracle.reset(seed=0))
        troubles.sleep_a_while()
        assert_same(envs.step(ACTIONS), oracle.step(ACTIONS))


def test_close_does_not_wait_for_an_env_that_hangs_in_close():
    with hanging(troubles.sleep_forever, verb="close") as envs:
        envs.reset(seed=0)
        pids = envs.call("pid")
        within(PATIENCE_S, lambda: envs.close(timeout=0.5))
    assert not any(map(is_alive, pids))
