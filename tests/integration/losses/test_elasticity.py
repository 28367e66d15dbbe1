"""Hosts come late, stay away and leave: all slots are served, and every row is real."""

import os
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from clusterenv import ClusterEnv, Limits, LocalLauncher
from clusterenv.errors import StartupError, WorkerLostError
from tests import inside
from tests.contract.following import Followed
from tests.contract.policies import numpy_policy
from tests.contract.replay import Life, Lives
from tests.environments import troubles
from tests.environments.counting import Count
from tests.integration.polling import eventually, kill

NUM_ENVS = 6
SEED = 5


class Tardy(LocalLauncher):
    """Starts a host only once its place has been let go."""

    def __init__(self, *late, hosts=3):
        super().__init__(hosts)
        self._late, self._held_back = set(late), []
        self._lock = threading.Lock()

    def start(self, orders):
        with self._lock:
            late = [order for order in orders if order.host.rpartition(".")[0] in self._late]
            self._held_back += late
            super().start([order for order in orders if order not in late])

    def hold_back(self, place):
        self._late.add(place)

    def let_go(self):
        with self._lock:
            self._late.clear()
            super().start(self._held_back)
            self._held_back = []


def make(launcher, min_hosts=2, env=Count, num_envs=NUM_ENVS, **limits):
    """One worker per host."""
    return ClusterEnv(
        env,
        num_envs,
        num_workers=launcher.num_hosts,
        min_hosts=min_hosts,
        launcher=launcher,
        limits=Limits(**{"restart_timeout_s": 2.0, **limits}),
    )


def arrive(envs):
    assert eventually(lambda: inside.all_are_here(envs))


def slots(**by_place):
    return {name.replace("_", "-") + ".0": slots for name, slots in by_place.items()}


def assert_parity(envs, steps=20):
    """Fail unless `envs` does what SyncVectorEnv does."""
    expected = SyncVectorEnv([Count] * NUM_ENVS)
    envs.action_space.seed(1)
    assert np.array_equal(envs.reset(seed=SEED)[0], expected.reset(seed=SEED)[0])
    for _ in range(steps):
        actions = envs.action_space.sample()
        for left, right in zip(envs.step(actions)[:4], expected.step(actions)[:4], strict=True):
            assert np.array_equal(left, right)


def test_a_run_starts_with_min_hosts_and_lets_the_others_in():
    launcher = Tardy("host-1")
    with make(launcher) as envs:
        assert inside.slots_by_host(envs) == slots(host_0=[0, 1, 2], host_2=[3, 4, 5])
        assert_parity(envs)
        launcher.let_go()
        arrive(envs)
        assert_parity(envs)
        assert eventually(
            lambda: inside.slots_by_host(envs) == slots(host_0=[0, 1], host_1=[2, 3], host_2=[4, 5])
        )


def test_a_host_that_comes_between_rollouts_takes_part_in_the_next():
    launcher = Tardy("host-1")
    with make(launcher) as envs:
        envs.reset(seed=SEED)
        policy, lives = numpy_policy(envs), Lives(Count, NUM_ENVS, SEED)
        lives.assert_lived(envs.rollout(policy, 7))
        launcher.let_go()
        arrive(envs)
        rollout = envs.rollout(policy, 7)
        assert len(inside.host_names(envs)) == 3
        for slot in range(NUM_ENVS):
            lives.by_slot[slot] = Life(Count(), inside.restart_seed(SEED, slot, 1))
        lives.assert_lived(rollout)
        lives.assert_lived(envs.rollout(policy, 7))


def test_a_host_that_comes_during_a_stream_takes_part_in_it():
    launcher = Tardy("host-1")
    with make(launcher) as envs:
        envs.reset(seed=SEED)
        envs.publish(numpy_policy(envs))
        stream = envs.stream(7)
        for _ in range(4):
            assert next(stream).slots.shape == (3,)
        launcher.let_go()
        arrive(envs)
        assert eventually(lambda: next(stream).slots.tolist() == [2, 3])
        seen = dict.fromkeys(range(NUM_ENVS), 0)
        # Those of the old deal are over; the first of a new one begins a new life.
        while min(seen.values()) < 3:
            fragment = next(stream)
            assert len(fragment.slots) == 2
            ages = fragment.observations[:-1, :, 1]
            assert np.array_equal(fragment.next_observations[..., 1], ages + 1)
            for slot in fragment.slots.tolist():
                seen[slot] += 1
        stream.close()


def lose_for_good(envs, launcher):
    """Kill the second of three hosts; nobody comes in its place."""
    launcher.hold_back("host-1")
    kill(inside.host_pid(envs, "host-1.0"))


def test_steps_go_on_without_a_host_that_cannot_be_replaced():
    launcher = Tardy()
    with make(launcher) as envs:
        envs.reset(seed=SEED)
        lose_for_good(envs, launcher)
        lost = np.zeros(NUM_ENVS, int)
        for _ in range(30):
            *_, truncated, infos = envs.step(envs.action_space.sample())
            now = infos.get("env_lost", np.zeros(NUM_ENVS, bool))
            assert (truncated | ~now).all()
            lost += now
        assert len(inside.host_names(envs)) == 2
        assert lost[[2, 3]].min() >= 1
        # Those that had to move are told so, too.
        assert lost.max() <= 2
        launcher.let_go()
        arrive(envs)
        assert_parity(envs)
        assert len(inside.host_names(envs)) == 3


def test_rollouts_go_on_without_a_host_that_cannot_be_replaced():
    launcher = Tardy()
    with make(launcher) as envs:
        envs.reset(seed=SEED)
        policy = numpy_policy(envs)
        envs.rollout(policy, 7)
        lose_for_good(envs, launcher)
        rollout = envs.rollout(policy, 7)
        assert len(inside.host_names(envs)) == 2
        assert rollout.rewards.shape == (7, NUM_ENVS)
        for _ in range(2):
            ages = rollout.observations[:-1, :, 1]
            assert np.array_equal(rollout.next_observations[..., 1], ages + 1)
            rollout = envs.rollout(policy, 7)


def test_slots_that_stay_where_they_are_go_on_without_a_gap():
    launcher = Tardy(hosts=4)
    with make(launcher, num_envs=5) as envs:
        envs.reset(seed=SEED)
        policy, followed = numpy_policy(envs), Followed(envs, Count, SEED)
        followed.check(envs.rollout(policy, 7))
        launcher.hold_back("host-0")
        kill(inside.host_pid(envs, "host-0.0"))
        for _ in range(3):
            followed.check(envs.rollout(policy, 7))
        assert inside.slots_by_host(envs) == slots(host_1=[0, 1], host_2=[2, 3], host_3=[4])


def test_a_stream_goes_on_without_a_host_that_cannot_be_replaced():
    launcher = Tardy()
    with make(launcher) as envs:
        envs.reset(seed=SEED)
        envs.publish(numpy_policy(envs))
        stream = envs.stream(7)
        next(stream)
        lose_for_good(envs, launcher)
        seen = set()

        def both_have_come():
            seen.add(tuple(next(stream).slots.tolist()))
            return {(0, 1, 2), (3, 4, 5)} <= seen

        assert eventually(both_have_come), seen
        stream.close()


class Built(Count):
    """Has trouble while it is built."""

    def __init__(self, trouble):
        super().__init__()
        trouble()


def test_a_replacement_that_is_slow_to_build_its_envs_takes_part_once_it_has(tmp_path):
    gate = tmp_path / "gate"
    # The first env that the replacement builds.
    trouble = troubles.OnlyThe(NUM_ENVS + 1, str(tmp_path / "built"), troubles.Gate(str(gate)))
    with make(LocalLauncher(hosts=3), env=partial(Built, trouble)) as envs:
        envs.reset(seed=SEED)
        policy = numpy_policy(envs)
        kill(inside.host_pid(envs, "host-1.0"))
        assert envs.rollout(policy, 7).rewards.shape == (7, NUM_ENVS)
        assert inside.host_names(envs) == ["host-0.0", "host-2.0"]
        gate.touch()

        def takes_part():
            envs.rollout(policy, 7)
            return inside.host_names(envs) == ["host-0.0", "host-1.1", "host-2.0"]

        assert eventually(takes_part)
        assert_parity(envs)


class SlowToReset(Count):
    def reset(self, *, seed=None, options=None):
        if options:
            time.sleep(options["seconds"])
        return super().reset(seed=seed, options=options)


def test_a_reset_that_all_were_busy_with_is_dealt_out_again_when_one_stays_away():
    launcher = Tardy()
    with make(launcher, env=SlowToReset, restart_timeout_s=2.0) as envs:
        envs.reset_async(seed=SEED, options={"seconds": 1.0})
        lose_for_good(envs, launcher)
        observations, _ = envs.reset_wait()
        assert inside.host_names(envs) == ["host-0.0", "host-2.0"]
        expected, _ = SyncVectorEnv([Count] * NUM_ENVS).reset(seed=SEED)
        assert np.array_equal(observations, expected)


def test_with_too_few_hosts_the_run_ends_with_the_reason():
    launcher = Tardy()
    with make(launcher, min_hosts=3, max_restarts_per_minute=1) as envs:
        envs.reset(seed=SEED)
        lose_for_good(envs, launcher)
        with pytest.raises(WorkerLostError, match="not ready within restart_timeout_s=2"):
            for _ in range(10):
                envs.step(envs.action_space.sample())


class FailsAtFirst(LocalLauncher):
    """Its second host never gets as far as to say Hello."""

    def command(self, host):
        return ["false"] if host == "host-1.0" else super().command(host)


def test_a_host_that_fails_at_the_start_is_done_without():
    with make(FailsAtFirst(hosts=3)) as envs:
        assert inside.host_names(envs) == ["host-0.0", "host-2.0"]
        assert_parity(envs)


class Straggles(Tardy, FailsAtFirst):
    """One fails at once and one comes late: at first only one of three is there."""


def test_a_host_that_fails_does_not_count_as_one_that_is_there():
    with pytest.raises(StartupError, match=r"[01] of 2 hosts came within startup_timeout_s=6"):
        make(Straggles("host-2"), startup_timeout_s=6.0)


def test_a_host_that_fails_at_the_start_is_named_where_all_are_needed():
    with pytest.raises(StartupError, match=r"(?s)host-1\.0 .*was lost: exit code 1"):
        make(FailsAtFirst(hosts=3), min_hosts=3)


def test_fewer_than_min_hosts_do_not_start():
    with pytest.raises(StartupError, match=r"[01] of 3 hosts came within startup_timeout_s=3"):
        make(Tardy("host-1", "host-2"), startup_timeout_s=3.0)


def test_a_host_that_has_to_leave_hands_its_slots_over():
    # No budget: an orderly end costs none of it.
    launcher = LocalLauncher(hosts=3)
    with make(launcher, max_restarts_per_minute=0, restart_timeout_s=30.0) as envs:
        envs.reset(seed=SEED)
        envs.step(envs.action_space.sample())
        pids = envs.call("pid")
        os.kill(inside.host_pid(envs, "host-1.0"), signal.SIGTERM)
        lost = np.zeros(NUM_ENVS, int)
        assert eventually(lambda: _step_and_count(envs, lost))
        assert lost.tolist() == [0, 0, 1, 1, 0, 0]
        after = envs.call("pid")
        assert [pid in pids for pid in after] == [True, True, False, False, True, True]


def _step_and_count(envs, lost):
    infos = envs.step(envs.action_space.sample())[4]
    lost += infos.get("env_lost", np.zeros(NUM_ENVS, bool))
    return lost.any() and "env_lost" not in infos


@pytest.mark.parametrize("min_hosts", [0, 4])
def test_min_hosts_must_be_possible(min_hosts):
    with pytest.raises(ValueError, match=f"min_hosts={min_hosts} must be between 1 and"):
        make(LocalLauncher(hosts=3), min_hosts=min_hosts)
