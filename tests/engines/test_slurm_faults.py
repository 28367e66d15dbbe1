"""Faults on a real Slurm cluster: the run goes on with all slots, and every row is a real one."""

import os
import shutil
import signal
import time
from contextlib import contextmanager

import pytest

from clusterenv import ClusterEnv, Limits, WorkerLostError
from clusterenv.launchers.slurm import SlurmLauncher
from tests import inside
from tests.contract.following import Followed
from tests.contract.policies import numpy_policy
from tests.engines.slurm_runs import WHOLE_NODE, processes_on, whole_allocation
from tests.environments.counting import Count
from tests.integration.heads import HeadScript
from tests.integration.polling import eventually, is_alive, kill

pytestmark = pytest.mark.usefixtures("slurm_commands")
SEED = 7
NUM_ENVS = 5
LEASE_S = 4.0


class Run:
    """Two workers, each on a node of its own, and rollouts that are checked by replay."""

    def __init__(self, envs):
        self.envs = envs
        self.envs.reset(seed=SEED)
        self._policy = numpy_policy(envs)
        self.followed = Followed(envs, Count, SEED)

    @property
    def times_replaced(self):
        return inside.times_replaced(self.envs)

    def rollout(self, times=1):
        for _ in range(times):
            self.followed.check(self.envs.rollout(self._policy, 7))

    def rollout_until(self, condition, deadline_s):
        deadline = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < deadline
            self.rollout()
            time.sleep(0.1)


@contextmanager
def running(num_workers=2, min_workers=None, **options):
    launcher = SlurmLauncher(**{**WHOLE_NODE, **options})
    # A replacement that has to wait in the queue for longer is done without, where that may be.
    restart_s = 60.0 if min_workers is None else 8.0
    with ClusterEnv(
        Count,
        NUM_ENVS,
        num_workers,
        min_workers=min_workers,
        launcher=launcher,
        limits=Limits(lease_s=LEASE_S, restart_timeout_s=restart_s),
    ) as envs:
        run = Run(envs)
        run.rollout()
        yield run


def node_of(slurm, pid):
    return next(node for node in slurm.nodes if pid in processes_on(slurm, node))


def test_a_killed_task_is_replaced(slurm):
    with running() as run:
        kill(run.envs.call("pid")[4])
        run.rollout(3)
        assert run.followed.restarts == 2
        assert run.times_replaced == [0, 1]
    assert eventually(lambda: not slurm.jobs())


def test_without_a_budget_the_error_says_what_slurm_says():
    launcher = SlurmLauncher()
    with ClusterEnv(
        Count, 2, 2, launcher=launcher, limits=Limits(max_restarts_per_minute=0)
    ) as envs:
        envs.reset(seed=SEED)
        kill(envs.call("pid")[1])
        with pytest.raises(WorkerLostError, match=r"worker-1.0 .*job \d+ (ended as FAILED|is) "):
            envs.rollout(numpy_policy(envs), 7)


def test_a_killed_node_is_replaced_by_another(slurm):
    with running() as run:
        node = node_of(slurm, run.envs.call("pid")[4])
        slurm.kill_node(node)
        run.rollout(3)
        assert run.followed.restarts == 2
        assert node_of(slurm, run.envs.call("pid")[4]) != node


def test_a_worker_whose_slurmd_is_killed_goes_on_until_slurm_gives_its_node_up(slurm):
    with running() as run:
        pid = run.envs.call("pid")[4]
        node = node_of(slurm, pid)
        slurm.kill_slurmd(node)
        run.rollout(3)
        assert run.followed.restarts == 0
        run.rollout_until(lambda: run.times_replaced[1] == 1, 60.0)
        run.rollout(2)
        assert run.followed.restarts == 2
        # Slurm cannot end it any more; without the head it ends itself.
        assert eventually(lambda: not is_alive(pid), 2 * LEASE_S)
    assert eventually(lambda: not slurm.jobs())


def test_a_worker_on_a_node_that_is_cut_off_is_replaced_and_ends_by_its_lease(slurm):
    with running() as run:
        pid = run.envs.call("pid")[4]
        node = node_of(slurm, pid)
        slurm.cut(node)
        run.rollout(3)
        assert run.followed.restarts == 2
        assert eventually(lambda: not is_alive(pid), 2 * LEASE_S)
        slurm.mend(node)
        run.rollout(3)
        assert run.followed.restarts == 2
        assert run.times_replaced == [0, 1]


def test_a_link_that_is_cut_for_less_than_the_lease_is_no_loss(slurm):
    with running() as run:
        node = node_of(slurm, run.envs.call("pid")[4])
        slurm.cut(node)
        time.sleep(0.3)
        slurm.mend(node)
        run.rollout(3)
        assert run.times_replaced == [0, 0]


def test_workers_hand_over_before_their_time_limit(slurm, caplog):
    with running(time_limit=1) as run:
        run.rollout_until(lambda: all(run.times_replaced), 60.0)
        run.rollout(2)
        assert run.followed.restarts == NUM_ENVS
        # In order: it costs nothing of the budget.
        assert inside.restarts_that_count(run.envs) == [0, 0]


def test_a_run_starts_without_the_workers_that_wait(slurm, caplog):
    with running(num_workers=5, min_workers=2) as run:
        assert len(inside.slots_by_worker(run.envs)) == 4
        run.rollout_until(lambda: "PENDING (Resources)" in caplog.text, 20.0)
        kill(run.envs.call("pid")[0])
        # The node that it leaves is for whoever waits, and then for its replacement.
        run.rollout_until(lambda: len(inside.slots_by_worker(run.envs)) == 4, 20.0)
        run.rollout(3)


def test_a_run_goes_on_while_the_controller_is_away(slurm):
    with running() as run:
        slurm.stop_controller()
        asked = inside.last_status(run.envs)
        run.rollout_until(lambda: inside.last_status(run.envs) is not asked, 60.0)
        assert run.times_replaced == [0, 0]
        slurm.start_controller()
        kill(run.envs.call("pid")[4])
        run.rollout(2)
        assert run.followed.restarts == 2


def test_preempted_workers_hand_over(slurm):
    with running(partition="low") as run:
        node = node_of(slurm, run.envs.call("pid")[4])
        urgent = ["sbatch", "-p", "urgent", "-w", node, "--exclusive", "-o", "/dev/null"]
        slurm.run([*urgent, "--wrap", "sleep 30"])
        run.rollout_until(lambda: run.times_replaced[1], 30.0)
        run.rollout(2)
        assert run.followed.restarts == 2
        assert inside.restarts_that_count(run.envs) == [0, 0]
        assert node_of(slurm, run.envs.call("pid")[4]) != node


def test_a_killed_step_of_an_allocation_is_replaced(slurm, monkeypatch):
    with whole_allocation(slurm, monkeypatch), running(cpus_per_worker=1) as run:
        kill(run.envs.call("pid")[4])
        run.rollout(3)
        assert run.followed.restarts == 2


def test_a_step_that_stands_still_is_ended(slurm, monkeypatch):
    with whole_allocation(slurm, monkeypatch):
        with running(cpus_per_worker=1) as run:
            os.kill(run.envs.call("pid")[4], signal.SIGSTOP)
            run.envs.close(terminate=True)
        assert eventually(lambda: not processes_on(slurm))


HEAD = """
from clusterenv.launchers.slurm import SlurmLauncher
from tests.environments.counting import Count
envs = ClusterEnv(Count, 4, 2, launcher=SlurmLauncher({options}), limits=Limits(lease_s=4.0))
envs.reset(seed=0)
open(SIGN, "w").close()
time.sleep(600)
"""


def assert_nothing_left(slurm, head, within_s):
    os.kill(head.process.pid, signal.SIGKILL)
    head.wait()
    assert eventually(lambda: not processes_on(slurm), within_s)
    assert eventually(lambda: head.others() == [], within_s), head.others()


@pytest.mark.parametrize("options", ["", "workers_per_job=2"])
def test_no_job_outlives_a_killed_head(slurm, tmp_path, options):
    with HeadScript(tmp_path, HEAD.format(options=options)) as head:
        head.wait_for_sign()
        assert len(processes_on(slurm)) == 2
        assert_nothing_left(slurm, head, 2 * LEASE_S)
        assert eventually(lambda: not slurm.jobs())


def test_no_job_waits_on_after_its_head_was_killed(slurm, tmp_path):
    with HeadScript(tmp_path, HEAD.format(options="'closed'")) as head:
        assert eventually(lambda: len(slurm.jobs()) == 2), head.report()
        assert_nothing_left(slurm, head, 2 * LEASE_S)
        assert eventually(lambda: not slurm.jobs())


def test_no_job_is_lost_if_its_head_is_killed_before_it_hears_of_it(slurm, monkeypatch, tmp_path):
    slow = tmp_path / "bin" / "sbatch"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\n{shutil.which("sbatch")} "$@"; sleep 1\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=os.pathsep)
    with HeadScript(tmp_path, HEAD.format(options="'closed'")) as head:
        assert eventually(lambda: len(slurm.jobs()) == 2), head.report()
        assert_nothing_left(slurm, head, 2 * LEASE_S)
        assert eventually(lambda: not slurm.jobs())


def test_no_step_outlives_a_killed_head(slurm, monkeypatch, tmp_path):
    with (
        whole_allocation(slurm, monkeypatch) as job,
        HeadScript(tmp_path, HEAD.format(options="")) as head,
    ):
        head.wait_for_sign()
        assert len(processes_on(slurm)) == 2
        assert_nothing_left(slurm, head, 2 * LEASE_S)
        assert slurm.jobs() == [job]
