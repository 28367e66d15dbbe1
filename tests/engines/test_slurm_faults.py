"""Faults on a real Slurm cluster: the run goes on with all slots, and every row is a real one."""

import os
import shutil
import signal
import socket
import time
from contextlib import contextmanager

import pytest

from clusterenv import ClusterEnv, Limits, SlurmLauncher, WorkerLostError
from tests import inside
from tests.contract.following import Followed
from tests.contract.policies import numpy_policy
from tests.engines.checked_runs import hosts_on
from tests.engines.slurm_runs import nothing_runs_on, processes_on, whole_allocation
from tests.environments.counting import Count
from tests.integration.heads import HeadScript
from tests.integration.polling import eventually, is_alive, kill

pytestmark = pytest.mark.usefixtures("slurm_commands")
SEED = 7
NUM_ENVS = 5
LEASE_S = 4.0
LAST = NUM_ENVS - 1
"""The last slot: with slot 3 it is the second host's."""


class PlacedCount(Count):
    """Knows its node."""

    def node(self):
        return socket.gethostname()


class Run:
    """Two hosts, each on a node of its own, and rollouts that are checked by replay."""

    def __init__(self, slurm, envs):
        self._slurm, self.envs = slurm, envs
        self.envs.reset(seed=SEED)
        self._policy = numpy_policy(envs)
        self.followed = Followed(envs, PlacedCount, SEED)

    @property
    def times_replaced(self):
        """How often the host in each place was replaced."""
        return inside.hosts_replaced(self.envs)

    @property
    def last_node(self):
        """The node of the last slot."""
        return self.envs.call("node")[LAST]

    @property
    def last_host(self):
        """The host process of the last slot."""
        (pid,) = hosts_on(self._slurm[self.last_node])
        return pid

    def rollout(self, times=1):
        for _ in range(times):
            self.followed.check(self.envs.rollout(self._policy, 7))

    def rollout_until(self, condition, deadline_s):
        deadline = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < deadline
            self.rollout()
            time.sleep(0.1)


@pytest.fixture
def running(slurm):
    """Open a checked run; whole nodes by default."""

    @contextmanager
    def open_run(nodes=2, min_hosts=None, **options):
        # A replacement that has to wait in the queue for longer is done without, where it may be.
        restart_s = 60.0 if min_hosts is None else 8.0
        with ClusterEnv(
            PlacedCount,
            NUM_ENVS,
            launcher=SlurmLauncher(nodes=nodes, **options),
            min_hosts=min_hosts,
            limits=Limits(lease_s=LEASE_S, restart_timeout_s=restart_s),
        ) as envs:
            run = Run(slurm, envs)
            run.rollout()
            yield run

    return open_run


def test_a_killed_host_is_replaced(slurm, running):
    with running() as run:
        kill(run.last_host)
        run.rollout(3)
        assert run.followed.restarts == 2
        assert run.times_replaced == [0, 1]
    assert eventually(lambda: not slurm.jobs())


def test_a_killed_worker_is_replaced_by_its_host_in_the_same_job(slurm, running):
    with running() as run:
        host, jobs = run.last_host, slurm.jobs()
        kill(run.envs.call("pid")[LAST])
        run.rollout_until(lambda: run.followed.restarts, 30.0)
        run.rollout(2)
        assert run.last_host == host
        assert slurm.jobs() == jobs
        assert run.times_replaced == [0, 0]


def test_without_a_budget_the_error_says_what_slurm_says(slurm):
    limits = Limits(max_restarts_per_minute=0)
    with ClusterEnv(PlacedCount, 2, launcher=SlurmLauncher(nodes=2), limits=limits) as envs:
        envs.reset(seed=SEED)
        (pid,) = hosts_on(slurm[envs.call("node")[1]])
        kill(pid)
        with pytest.raises(WorkerLostError, match=r"host-1.0 .*job \d+ (ended as FAILED|is) "):
            envs.rollout(numpy_policy(envs), 7)


def test_a_killed_node_is_replaced_by_another(slurm, running):
    with running() as run:
        node = run.last_node
        slurm.kill_node(node)
        run.rollout(3)
        assert run.followed.restarts == 2
        assert run.last_node != node


def test_a_host_whose_slurmd_is_killed_goes_on_until_slurm_gives_its_node_up(slurm, running):
    with running() as run:
        pids = [run.last_host, run.envs.call("pid")[LAST]]
        slurm.kill_slurmd(run.last_node)
        run.rollout(3)
        assert run.followed.restarts == 0
        run.rollout_until(lambda: run.times_replaced[1] == 1, 60.0)
        run.rollout(2)
        assert run.followed.restarts == 2
        # Slurm cannot end it any more; without the head it ends itself, and its workers.
        assert eventually(lambda: not any(map(is_alive, pids)), 2 * LEASE_S)
    assert eventually(lambda: not slurm.jobs())


def test_a_host_on_a_node_that_is_cut_off_is_replaced_and_ends_by_its_lease(slurm, running):
    with running() as run:
        pids, node = [run.last_host, run.envs.call("pid")[LAST]], run.last_node
        slurm.cut(node)
        run.rollout(3)
        assert run.followed.restarts == 2
        assert eventually(lambda: not any(map(is_alive, pids)), 2 * LEASE_S)
        slurm.mend(node)
        run.rollout(3)
        assert run.followed.restarts == 2
        assert run.times_replaced == [0, 1]


def test_a_link_that_is_cut_for_less_than_the_lease_is_no_loss(slurm, running):
    with running() as run:
        node = run.last_node
        slurm.cut(node)
        time.sleep(0.3)
        slurm.mend(node)
        run.rollout(3)
        assert run.times_replaced == [0, 0]


def test_hosts_hand_over_before_their_time_limit_and_say_so(running, caplog):
    with running(time_limit=1) as run:
        run.rollout_until(lambda: all(run.times_replaced), 60.0)
        run.rollout(2)
        assert run.followed.restarts == NUM_ENVS
        # In order: it costs nothing of the budget.
        assert inside.host_restarts_that_count(run.envs) == [0, 0]
    assert "told it to leave (SIGUSR1: a time limit or a preemption)" in caplog.text


def test_a_run_starts_without_the_hosts_that_wait(slurm, running, caplog):
    with running(nodes=5, min_hosts=2) as run:
        assert len(set(run.envs.call("node"))) == 4
        run.rollout_until(lambda: "PENDING (Resources)" in caplog.text, 20.0)
        (pid,) = hosts_on(slurm[run.envs.call("node")[0]])
        kill(pid)
        # The node that it leaves is for whoever waits, and then for its replacement.
        run.rollout_until(lambda: "host-4.0" in inside.slots_by_host(run.envs), 30.0)
        run.rollout_until(lambda: len(inside.slots_by_host(run.envs)) == 4, 30.0)
        run.rollout(3)
        assert len(set(run.envs.call("node"))) == 4


def test_a_run_goes_on_while_the_controller_is_away(slurm, running):
    with running() as run:
        slurm.stop_controller()
        asked = inside.last_status(run.envs)
        run.rollout_until(lambda: inside.last_status(run.envs) is not asked, 60.0)
        assert run.times_replaced == [0, 0]
        slurm.start_controller()
        kill(run.last_host)
        run.rollout(2)
        assert run.followed.restarts == 2


def test_preempted_hosts_hand_over(slurm, running):
    with running(partition="low") as run:
        node = run.last_node
        urgent = ["sbatch", "-p", "urgent", "-w", node, "--exclusive", "-o", "/dev/null"]
        slurm.run([*urgent, "--wrap", "sleep 30"])
        run.rollout_until(lambda: run.times_replaced[1], 30.0)
        run.rollout(2)
        assert run.followed.restarts == 2
        assert inside.host_restarts_that_count(run.envs) == [0, 0]
        assert run.last_node != node


def test_the_log_of_a_host_that_slurm_ends_says_that_it_left_in_order(slurm, running, tmp_path):
    log = tmp_path / "host-1.0.log"
    with running(log_dir=tmp_path) as run:
        slurm.run(["scancel", f"--name=clusterenv-{run.envs.run_id}-host-1.0"])
        run.rollout_until(lambda: run.times_replaced == [0, 1], 30.0)
        assert eventually(lambda: "host ends" in log.read_text()), log.read_text()
    assert log.read_text().splitlines() == [
        "clusterenv host: its engine told it to leave (SIGTERM)",
        "clusterenv host ends: SIGTERM: handed its slots over and ended",
    ]


def test_a_drained_node_keeps_its_host_until_that_ends(slurm, running):
    with running() as run:
        node = run.last_node
        slurm.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test"])
        run.rollout(2)
        assert run.times_replaced == [0, 0]
        kill(run.last_host)
        run.rollout_until(lambda: run.times_replaced[1], 30.0)
        run.rollout(2)
        assert run.last_node != node


def test_a_killed_step_of_an_allocation_is_replaced(slurm, monkeypatch, running):
    with whole_allocation(slurm, monkeypatch), running() as run:
        kill(run.last_host)
        run.rollout(3)
        assert run.followed.restarts == 2


def test_a_step_that_stands_still_is_ended(slurm, monkeypatch, running):
    with whole_allocation(slurm, monkeypatch):
        with running() as run:
            os.kill(run.last_host, signal.SIGSTOP)
            run.envs.close(terminate=True)
        assert eventually(lambda: nothing_runs_on(slurm))


HEAD = """
from clusterenv import Limits, SlurmLauncher
from tests.environments.counting import Count
launcher = SlurmLauncher({options}nodes=2, cpus_per_node={cpus})
envs = ClusterEnv(Count, 4, launcher=launcher, limits=Limits(lease_s=4.0))
envs.reset(seed=0)
open(SIGN, "w").close()
time.sleep(600)
"""


def assert_nothing_left(slurm, head, within_s, number=signal.SIGKILL):
    os.kill(head.process.pid, number)
    head.wait()
    assert eventually(lambda: nothing_runs_on(slurm), within_s)
    assert eventually(lambda: head.others() == [], within_s), head.others()


@pytest.mark.parametrize(
    ("cpus", "number"), [(None, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGTERM)]
)
def test_no_job_outlives_a_killed_head(slurm, tmp_path, cpus, number):
    with HeadScript(tmp_path, HEAD.format(options="", cpus=cpus)) as head:
        head.wait_for_sign()
        assert len(processes_on(slurm)) == 2
        assert_nothing_left(slurm, head, 2 * LEASE_S, number)
        assert eventually(lambda: not slurm.jobs())


def test_no_job_waits_on_after_its_head_was_killed(slurm, tmp_path):
    with HeadScript(tmp_path, HEAD.format(options="'closed', ", cpus=1)) as head:
        assert eventually(lambda: len(slurm.jobs()) == 2), head.report()
        assert_nothing_left(slurm, head, 2 * LEASE_S)
        assert eventually(lambda: not slurm.jobs())


def test_no_job_is_lost_if_its_head_is_killed_before_it_hears_of_it(slurm, monkeypatch, tmp_path):
    slow = tmp_path / "bin" / "sbatch"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\n{shutil.which("sbatch")} "$@"; sleep 1\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=os.pathsep)
    with HeadScript(tmp_path, HEAD.format(options="'closed', ", cpus=1)) as head:
        assert eventually(lambda: len(slurm.jobs()) == 2), head.report()
        assert_nothing_left(slurm, head, 2 * LEASE_S)
        assert eventually(lambda: not slurm.jobs())


def test_no_step_outlives_a_killed_head(slurm, monkeypatch, tmp_path):
    with (
        whole_allocation(slurm, monkeypatch) as job,
        HeadScript(tmp_path, HEAD.format(options="", cpus=1)) as head,
    ):
        head.wait_for_sign()
        assert len(processes_on(slurm)) == 2
        assert_nothing_left(slurm, head, 2 * LEASE_S)
        assert slurm.jobs() == [job]
