"""One slow worker: slots in proportion to speed, and rollouts that do not wait for it."""

import os
import time
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from clusterenv import ClusterEnv, LocalLauncher
from tests import inside
from tests.contract.policies import numpy_policy
from tests.environments.counting import Count

SEED = 4
FAST, SLOW = [0, 1, 2, 3], [4, 5, 6, 7]


class Sluggish(Count):
    """As `Count`, but each step takes its time."""

    def __init__(self, slow=False):
        super().__init__()
        self.sleep_s = 0.01 if slow else 0.001

    def step(self, action):
        time.sleep(self.sleep_s)
        return super().step(action)


def assert_real(rollout):
    ages = rollout.observations[:-1, :, 1]
    assert np.array_equal(rollout.next_observations[..., 1], ages + 1)


@pytest.fixture
def uneven():
    """Four slots on a fast worker, four on a slow one."""
    makers = [*[Sluggish] * 4, *[lambda: Sluggish(slow=True)] * 4]
    with ClusterEnv(makers, num_workers=2) as envs:
        envs.reset(seed=SEED)
        yield envs


def test_a_rollout_returns_with_the_slots_that_are_there(uneven):
    policy = numpy_policy(uneven)
    first = uneven.rollout(policy, 10, wait_num=4)
    assert first.slots.tolist() == [0, 1, 2, 3]
    assert_real(first)
    ahead = [uneven.rollout(policy, 10, wait_num=4) for _ in range(3)]
    assert all(rollout.slots.tolist() in (FAST, SLOW, FAST + SLOW) for rollout in ahead)
    assert ahead[0].slots.tolist() == FAST
    # What the slow worker owed is not lost.
    whole = uneven.rollout(policy, 10)
    assert whole.slots.tolist() == list(range(8))
    assert_real(whole)
    assert set(whole.versions[0].tolist()) <= {1}


def test_every_row_of_the_slow_worker_comes_once(uneven):
    policy, ages = numpy_policy(uneven), []
    for _ in range(12):
        rollout = uneven.rollout(policy, 5, wait_num=4)
        if 4 in rollout.slots:
            column = rollout.slots.tolist().index(4)
            ages += rollout.observations[:-1, column, 1].tolist()
    ages += uneven.rollout(policy, 5).observations[:-1, 4, 1].tolist()
    # Count's episodes have five steps or fewer: each age follows the one before, or begins anew.
    assert all(now == before + 1 or now == 0 for before, now in pairwise(ages))


def test_with_patience_the_others_are_waited_for(uneven):
    policy = numpy_policy(uneven)
    rollout = uneven.rollout(policy, 5, wait_num=4, patience_s=30.0)
    assert rollout.slots.tolist() == list(range(8))


def test_a_reset_drops_what_is_owed(uneven):
    policy = numpy_policy(uneven)
    uneven.rollout(policy, 10, wait_num=4)
    uneven.reset(seed=SEED)
    rollout = uneven.rollout(policy, 7)
    assert rollout.slots.tolist() == list(range(8))
    assert (rollout.observations[0, :, 1] == 0).all()


def test_another_number_of_steps_drops_what_is_owed(uneven):
    policy = numpy_policy(uneven)
    uneven.rollout(policy, 10, wait_num=4)
    rollout = uneven.rollout(policy, 3)
    assert rollout.rewards.shape == (3, 8)
    assert_real(rollout)


@pytest.mark.parametrize("wait_num", [0, 9])
def test_wait_num_must_be_possible(uneven, wait_num):
    with pytest.raises(ValueError, match=f"wait_num={wait_num} must be between 1 and"):
        uneven.rollout(numpy_policy(uneven), 5, wait_num=wait_num)


class OnUnequalMachines(Sluggish):
    """Slow in the first process that claims the file, wherever its slots are."""

    def __init__(self, claim):
        try:
            with open(claim, "x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            pass
        with open(claim) as file:
            super().__init__(slow=file.read() == str(os.getpid()))


def test_slots_go_where_they_are_served_faster(tmp_path):
    make = partial(OnUnequalMachines, str(tmp_path / "claim"))
    with ClusterEnv(make, 22, 2, balance=True, launcher=LocalLauncher(hosts=2)) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=SEED)
        for _ in range(6):
            rollout = envs.rollout(policy, 5)
            assert rollout.slots.tolist() == list(range(22))
            assert_real(rollout)
        sizes = sorted(map(len, inside.slots_by_host(envs).values()))
        assert sizes[0] <= 5
        assert sum(sizes) == 22


@pytest.mark.parametrize("hosts", [None, 2])
def test_without_balance_slots_stay(hosts, tmp_path):
    make = partial(OnUnequalMachines, str(tmp_path / "claim"))
    with ClusterEnv(make, 6, 2, launcher=LocalLauncher(hosts)) as envs:
        policy = numpy_policy(envs)
        for _ in range(4):
            envs.rollout(policy, 5)
        assert [len(worker.slots) for worker in envs.workers] == [3, 3]
