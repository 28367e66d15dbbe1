"""An env that takes long is told, with where it is, long before it counts as lost."""

import logging
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from clusterenv import ClusterEnv, Limits, WorkerLostError
from tests.contract.policies import numpy_policy
from tests.environments import troubles
from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster, oracle_of, walks
from tests.environments.walks import Troubled
from tests.equality import assert_same
from tests.integration.polling import eventually, within

NUM_ENVS = 4
SLOT = 2
ACTIONS = actions_for(NUM_ENVS)
SLOW_S = 0.6
LIMITS = Limits(slow_warning_s=SLOW_S)
PATIENCE_S = 60.0


@pytest.fixture(params=SHARED_MEMORY)
def transport(request):
    return request.param


@pytest.fixture
def told(caplog):
    """What was told so far."""
    caplog.set_level(logging.WARNING, "clusterenv")
    return lambda: [one.getMessage() for one in caplog.records if one.name == "clusterenv"]


class Stop:
    """Something that takes until it was told, and a while longer."""

    def __init__(self, tmp_path, told, caplog):
        self._path, self._told, self._caplog = tmp_path / "gate", told, caplog
        self.trouble = troubles.Gate(str(self._path))

    def during(self, call):
        """What `call` gives, which begins before the gate opens."""

        def open_late():
            assert eventually(self._told)
            # Not a second time for the same hang.
            assert not eventually(lambda: len(self._told()) > 1, 3 * SLOW_S)
            self._path.touch()

        # On a busy machine workers take longer than SLOW_S to start and to build their envs. That
        # is told as well, and rightly: it took so long.
        assert not [text for text in self._told() if "no progress for 0 s" in text]
        self._caplog.clear()
        return within(PATIENCE_S, lambda: _both(call, open_late))


def _both(call, other):
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(other)
        try:
            return call()
        finally:
            running.result()


@pytest.fixture
def stop(tmp_path, told, caplog):
    return Stop(tmp_path, told, caplog)


def assert_tells(told, doing, name="worker-1.0", where="in __call__"):
    (text,) = told()
    assert f"{name} (pid " in text
    assert "has made no progress for" in text
    assert doing in text
    assert where in text
    assert "lifeline" not in text


def test_a_long_step_is_told_once_and_goes_on(stop, transport, told):
    makers = walks(NUM_ENVS, SLOT, trouble=stop.trouble, verb="step")
    oracle = oracle_of(NUM_ENVS)
    with cluster(makers, transport, limits=LIMITS) as envs:
        assert_same(envs.reset(seed=0), oracle.reset(seed=0))
        assert_same(stop.during(lambda: envs.step(ACTIONS)), oracle.step(ACTIONS))
        assert_same(envs.step(ACTIONS), oracle.step(ACTIONS))
        assert envs.ledger.losses == []
    assert_tells(told, f"in a step, in the env of slot {SLOT}")


def test_a_long_reset_is_told(stop, told):
    makers = walks(NUM_ENVS, SLOT, trouble=stop.trouble, verb="reset")
    with cluster(makers, limits=LIMITS) as envs:
        stop.during(lambda: envs.reset(seed=0))
    assert_tells(told, f"in a reset, in the env of slot {SLOT}")


def test_a_long_step_within_a_fragment_is_told(stop, transport, told):
    makers = walks(NUM_ENVS, SLOT, trouble=stop.trouble, verb="step")
    with cluster(makers, transport, limits=LIMITS) as envs:
        envs.reset(seed=0)
        stop.during(lambda: envs.rollout(numpy_policy(envs), 5))
    assert_tells(told, f"in a fragment, in the env of slot {SLOT}")


def test_envs_that_take_long_to_be_built_are_told(stop, transport, told):
    makers = walks(NUM_ENVS, SLOT, trouble=stop.trouble, verb="make")
    stop.during(lambda: cluster(makers, transport, limits=LIMITS)).close()
    assert_tells(told, "in building its envs")


def test_a_thread_of_the_head_is_told_as_well(stop, told):
    makers = walks(NUM_ENVS, SLOT, trouble=stop.trouble, verb="step")
    with ClusterEnv(makers, num_workers=2, launcher="in-process", limits=LIMITS) as envs:
        envs.reset(seed=0)
        stop.during(lambda: envs.step(ACTIONS))
    assert "in __call__" in "".join(told())


def test_code_that_holds_the_gil_is_told_with_its_stack(transport, told):
    makers = walks(NUM_ENVS, SLOT, trouble=troubles.hold_the_gil, verb="step")
    with cluster(makers, transport, limits=LIMITS) as envs:
        envs.reset(seed=0)
        envs.step_async(ACTIONS)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=6.0)
    assert_tells(told, f"in a step, in the env of slot {SLOT}", where="in hold_the_gil")


def test_code_that_holds_the_gil_within_a_fragment_is_lost_in_time(transport):
    makers = walks(NUM_ENVS, SLOT, trouble=troubles.hold_the_gil, verb="step")
    limits = Limits(slow_warning_s=SLOW_S, step_timeout_s=3.0, max_restarts=0)
    with cluster(makers, transport, limits=limits) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerLostError, match="step_timeout_s=3") as caught:
            within(PATIENCE_S, lambda: envs.rollout(numpy_policy(envs), 1_000))
    assert "in hold_the_gil" in str(caught.value)


class Slow(Troubled):
    """Each takes a while; none takes long."""

    def __init__(self):
        super().__init__(troubles.Nap(0.9 * SLOW_S), "step")


def test_many_slow_envs_one_after_the_other_are_not_stuck(told):
    with ClusterEnv(Slow, 4, num_workers=1, limits=Limits(slow_warning_s=2 * SLOW_S)) as envs:
        envs.reset(seed=0)
        before = told()  # of a slow start
        envs.step(ACTIONS)
    assert told() == before


def test_a_run_may_be_idle_for_long(told):
    with cluster(walks(NUM_ENVS), limits=LIMITS) as envs:
        envs.reset(seed=0)
        before = told()  # of a slow start
        troubles.sleep_a_while()
        envs.step(ACTIONS)
    assert told() == before
