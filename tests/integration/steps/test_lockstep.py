"""In lockstep the head sleeps until all workers but one have answered, and most are silent."""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import SyncVectorEnv

from clusterenv import ClusterEnv
from tests import inside
from tests.environments.walks import Quiet, Walk
from tests.equality import assert_same

_SLOW_S = 0.2

ordered = pytest.mark.skipif(
    not inside.MAY_SPIN, reason="memory is ordered weakly: no silent answers"
)


class Slow(Quiet):
    """A walk whose steps take their time."""

    def step(self, action):
        time.sleep(_SLOW_S)
        return super().step(action)


class Slower(Quiet):
    """A walk whose steps take longer than the head waits at a time."""

    def step(self, action):
        time.sleep(1.3)
        return super().step(action)


class Stumbling(Quiet):
    """A walk that ends in its first step."""

    def step(self, action):
        raise ValueError("stumbled")


class Counting(Quiet):
    """A walk that takes its time and counts its steps."""

    num_steps = 0

    def step(self, action):
        time.sleep(_SLOW_S)
        self.num_steps += 1
        return super().step(action)


@pytest.fixture
def core_of_its_own(monkeypatch):
    """The head sleeps where no worker is."""
    inside.pretend_to_sleep_on(monkeypatch, lambda: -1)


def step(envs):
    return envs.step(envs.action_space.sample())


def count_waits_of_a_step(envs):
    # Who answered before may have rung once more than the head had to be woken.
    inside.forget_rings(envs)
    envs.step_async(envs.action_space.sample())
    waits = inside.note_waits(envs)
    assert inside.finish_lockstep(envs, 10.0)
    envs.step_wait()
    return len(waits)


@ordered
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 0, 1)])
@pytest.mark.usefixtures("core_of_its_own")
def test_the_head_wakes_for_the_last_two_answers_only(order):
    makers = [(Quiet, Quiet, Slow, Slower)[place] for place in order]
    with ClusterEnv(makers, num_workers=4) as envs:
        envs.reset(seed=1)
        inside.let_spin(envs, False)
        assert [count_waits_of_a_step(envs) for _ in range(2)] == [2, 2]


@ordered
def test_a_head_that_sleeps_on_the_core_of_the_last_wakes_once(monkeypatch):
    with ClusterEnv([Quiet, Slow], num_workers=2) as envs:
        envs.reset(seed=1)
        inside.let_spin(envs, False)
        cores = inside.cores_of_workers(envs)
        inside.pretend_to_sleep_on(monkeypatch, lambda: cores[1])
        for _ in range(2):
            step(envs)
        assert count_waits_of_a_step(envs) == 1


@ordered
@pytest.mark.usefixtures("core_of_its_own")
def test_a_bell_that_rings_late_does_not_keep_the_head_awake():
    with ClusterEnv([Slow, Slower], num_workers=2) as envs:
        envs.reset(seed=1)
        inside.let_spin(envs, False)
        envs.step_async(envs.action_space.sample())
        looks = inside.note_spins(envs)
        inside.ring(envs)
        assert inside.finish_lockstep(envs, 10.0)
        # When the last but one had answered: not when it rang for nothing.
        assert len(looks) == 1
        envs.step_wait()


@ordered
def test_who_has_nothing_to_say_sends_no_message():
    with ClusterEnv(Quiet, 4, 2) as envs:
        envs.reset(seed=1)
        pumps = inside.note_pumps(envs)
        for _ in range(3):
            step(envs)
        assert pumps == []


@ordered
@pytest.mark.parametrize("may_spin", [True, False])
def test_who_is_sent_actions_for_all_its_slots_answers_silently_too(may_spin):
    with ClusterEnv(Quiet, 4, 2, batch_size=4) as envs:
        envs.async_reset(seed=1)
        observations, *_, info = envs.recv()
        inside.let_spin(envs, may_spin)
        arrivals = inside.note_arrivals(envs)
        for _ in range(5):
            envs.send(np.zeros((4, 2)), info["env_id"])
            after, *_, info = envs.recv()
            assert np.array_equal(after, observations)
        assert arrivals == []


@pytest.mark.parametrize("makers", [[Walk, Slow], [Slow, Walk], [Walk, Quiet]])
def test_what_one_worker_has_to_say_comes_with_the_rows_of_all(makers):
    with ClusterEnv(makers, num_workers=2) as envs, ClusterEnv([Quiet] * 2, num_workers=2) as quiet:
        envs.reset(seed=1)
        quiet.reset(seed=1)
        for _ in range(3):
            actions = envs.action_space.sample()
            *result, infos = envs.step(actions)
            assert np.array_equal(infos["_age"], [maker is Walk for maker in makers])
            for left, right in zip(result, quiet.step(actions), strict=False):
                assert np.array_equal(left, right)


@pytest.mark.parametrize("makers", [[Stumbling, Slow], [Slow, Stumbling]])
def test_who_answers_after_an_error_wakes_the_head(makers, monkeypatch):
    inside.wait_long(monkeypatch)
    with ClusterEnv(makers, num_workers=2) as envs:
        envs.reset(seed=1)
        waits = inside.note_waits(envs)
        begun = time.monotonic()
        with pytest.raises(ValueError, match="stumbled"):
            step(envs)
        # Else it would look again only when its time-out is over.
        assert time.monotonic() - begun < max(seconds for seconds, *_ in waits)


def test_a_step_may_take_longer_than_the_head_waits_at_a_time():
    with ClusterEnv([Quiet, Slower], num_workers=2) as envs:
        envs.reset(seed=1)
        actions = envs.action_space.sample()
        observations, *_ = envs.step(actions)
        with ClusterEnv([Quiet, Quiet], num_workers=2) as expected:
            expected.reset(seed=1)
            assert np.array_equal(observations, expected.step(actions)[0])


def test_what_comes_after_a_step_that_was_given_up_is_done_after_it():
    with ClusterEnv(Counting, 4, 2) as envs:
        envs.reset(seed=1)
        envs.step_async(envs.action_space.sample())
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=_SLOW_S / 4)
        assert envs.get_attr("num_steps") == (1,) * 4
        step(envs)
        assert envs.get_attr("num_steps") == (2,) * 4


@pytest.mark.parametrize("num_before", [0, 2])
def test_a_step_after_one_that_was_given_up_is_not_lost(num_before):
    with ClusterEnv(Counting, 4, 2) as envs:
        envs.reset(seed=1)
        for _ in range(num_before):
            step(envs)
        for _ in range(3):
            envs.step_async(envs.action_space.sample())
            with pytest.raises(multiprocessing.TimeoutError):
                envs.step_wait(timeout=_SLOW_S / 4)
        step(envs)
        assert envs.get_attr("num_steps") == (num_before + 4,) * 4


@ordered
@pytest.mark.parametrize("may_spin", [True, False])
def test_a_step_right_after_a_step_is_begun_without_a_look_at_each_worker(may_spin):
    with ClusterEnv(Quiet, 4, 2) as envs:
        envs.reset(seed=1)
        inside.let_spin(envs, may_spin)
        looks = inside.note_full_begins(envs)
        for _ in range(20):
            step(envs)
        # Twice if something arrived that has nothing to do with it.
        assert 1 <= len(looks) <= 2


@ordered
def test_what_is_sent_during_a_step_has_the_next_one_look_at_each_worker():
    with ClusterEnv(Quiet, 4, 2) as envs:
        envs.reset(seed=1)
        step(envs)
        looks = inside.note_full_begins(envs)
        envs.step_async(envs.action_space.sample())
        inside.send_unasked(envs, 0)
        envs.step_wait()
        step(envs)
        # Else the worker might be called before it has heard of it.
        assert len(looks) == 2


@pytest.mark.parametrize("may_spin", [True, False])
def test_whatever_comes_between_steps_the_numbers_are_the_same(may_spin):
    with ClusterEnv(Quiet, 4, 2) as envs, closing(SyncVectorEnv([Quiet] * 4)) as expected:
        inside.let_spin(envs, may_spin)
        for both in (envs, expected):
            both.reset(seed=1)
        between = [
            lambda both: both.call("poke"),
            lambda both: both.reset(options={"reset_mask": np.array([True, False, False, True])}),
            lambda both: both.set_attr("length", 3),
            lambda both: both.reset(),
        ]
        for happens in between:
            for _ in range(3):
                actions = envs.action_space.sample()
                for left, right in zip(envs.step(actions), expected.step(actions), strict=True):
                    assert_same(left, right)
            assert_same(happens(envs), happens(expected))


@pytest.mark.parametrize("may_spin", [True, False])
def test_a_worker_that_has_to_leave_is_heard_though_it_answers_silently(may_spin):
    with ClusterEnv(Quiet, 4, 2) as envs:
        envs.reset(seed=1)
        inside.let_spin(envs, may_spin)
        for _ in range(20):
            step(envs)
        os.kill(envs.workers[1].pid, signal.SIGTERM)
        time.sleep(0.1)  # it hears of it between two steps
        lost = [step(envs)[-1].get("env_lost") for _ in range(3)]
        assert [mask.tolist() for mask in lost if mask is not None] == [[False, False, True, True]]


@pytest.fixture
def interruptible():
    """Processes that a shell starts in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("may_spin", [True, False])
def test_after_a_step_that_was_interrupted_a_reset_is_needed(may_spin):
    with ClusterEnv(Counting, 4, 2) as envs:
        envs.reset(seed=1)
        inside.let_spin(envs, may_spin)
        step(envs)
        timer = threading.Timer(_SLOW_S / 2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            step(envs)
        timer.join()
        with pytest.raises(ResetNeeded):
            step(envs)
        envs.reset(seed=1)
        step(envs)
        assert envs.get_attr("num_steps") == (3,) * 4
