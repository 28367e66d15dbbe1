"""Faults of ssh hosts: the run goes on with all slots, and nothing is left on any host."""

import os
import signal
import subprocess
import time

import pytest

from clusterenv import Limits
from clusterenv.errors import WorkerLostError
from tests.engines.checked_runs import LEASE_S, Replay, gone, workers_on
from tests.environments.vectors import actions_for
from tests.integration.heads import HeadScript
from tests.integration.polling import eventually, is_alive, kill

# A tick of the worker's lifeline and a busy machine.
SLACK_S = 3.0
NUM_ENVS = 4


def test_a_worker_killed_on_its_host_is_replaced_and_no_row_is_wrong(ssh_cluster, ssh_hosts):
    with ssh_cluster() as envs:
        replay = Replay(envs)
        replay.rollout()
        assert envs.call("host") == ("host1", "host1", "host2", "host2")
        kill(workers_on(ssh_hosts["host2"])[0])
        replay.rollout_until(lambda: replay.restarted == [2, 3])
        replay.rollout()


def test_steps_report_the_envs_that_were_lost_with_their_host(ssh_cluster, ssh_hosts):
    with ssh_cluster() as envs:
        envs.reset(seed=0)
        envs.step(actions_for(NUM_ENVS))
        kill(workers_on(ssh_hosts["host2"])[0])
        *_, truncated, infos = envs.step(actions_for(NUM_ENVS))
        assert truncated.tolist() == infos["env_lost"].tolist() == [False, False, True, True]
        envs.step(actions_for(NUM_ENVS))
        assert envs.call("poke") == (3, 3, 0, 0)


def test_the_end_of_a_worker_is_told_with_its_host(ssh_cluster, ssh_hosts):
    with ssh_cluster(limits=Limits(lease_s=LEASE_S, max_restarts_per_minute=0)) as envs:
        envs.reset(seed=0)
        kill(workers_on(ssh_hosts["host2"])[0])
        with pytest.raises(WorkerLostError, match=r"killed by SIGKILL on ssh host host2"):
            for _ in range(100):
                envs.step(actions_for(NUM_ENVS))


def test_a_host_that_loses_power_is_left_for_others(ssh_cluster, ssh_hosts):
    with ssh_cluster() as envs:
        replay = Replay(envs)
        ssh_hosts.kill_host("host2")
        replay.rollout_until(lambda: replay.restarted == [2, 3])
        assert set(envs.call("host")) == {"host1", "host3"}


def test_a_cut_off_worker_fences_itself_and_the_run_goes_on(ssh_cluster, ssh_hosts):
    with ssh_cluster() as envs:
        replay = Replay(envs)
        replay.rollout()
        (pid,) = workers_on(ssh_hosts["host2"])
        ssh_hosts.cut("host2")
        cut_at = time.monotonic()
        replay.rollout_until(lambda: replay.restarted == [2, 3])
        assert set(envs.call("host")) == {"host1", "host3"}
        assert eventually(lambda: not is_alive(pid), LEASE_S + SLACK_S)
        assert time.monotonic() - cut_at < 2 * LEASE_S + SLACK_S
        ssh_hosts.mend("host2")
        for _ in range(5):
            replay.rollout()
        assert replay.restarted == [2, 3]


def ssh_clients():
    """The ssh clients that this process started."""
    ours = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "-x", "ssh"], capture_output=True, text=True
    )
    return [int(pid) for pid in ours.stdout.split()]


def test_a_killed_ssh_client_takes_its_worker_along(ssh_cluster, ssh_hosts):
    with ssh_cluster() as envs:
        replay = Replay(envs)
        workers = [pid for name in ssh_hosts.names for pid in workers_on(ssh_hosts[name])]
        os.kill(ssh_clients()[0], signal.SIGKILL)
        assert eventually(lambda: sum(map(is_alive, workers)) == 1, SLACK_S)
        replay.rollout_until(lambda: replay.restarted in ([0, 1], [2, 3]))


IN_STEP = """
from clusterenv.launchers.ssh import SshLauncher
launcher = SshLauncher(["host1", "host2"], ssh=("ssh", "-F", "{config}"))
busy = partial(Troubled, troubles.{trouble}, at=2, sign=SIGN)
envs = ClusterEnv([Walk, busy], num_workers=2, limits=Limits(lease_s={lease_s}), launcher=launcher)
envs.reset(seed=0)
envs.step(np.zeros((2, 2)))
envs.step(np.zeros((2, 2)))
say("ready")
time.sleep(600)
"""


@pytest.fixture
def head_that_steps_into(ssh_hosts, tmp_path):
    """Another process with two workers, one of which meets trouble in its second step."""
    heads = []

    def start(trouble):
        source = IN_STEP.format(config=ssh_hosts.config, trouble=trouble, lease_s=LEASE_S)
        heads.append(HeadScript(tmp_path, source))
        heads[-1].wait_for_sign()
        return heads[-1]

    yield start
    for head in heads:
        head.__exit__()


@pytest.mark.parametrize("trouble", ["sleep_forever", "hold_the_gil"])
def test_nothing_is_left_on_any_host_when_the_head_is_killed(
    trouble, head_that_steps_into, ssh_hosts
):
    head = head_that_steps_into(trouble)
    kill(head.process.pid)
    # At once: the end of ssh's input reaches them, whatever they do.
    assert gone(ssh_hosts.hosts.values(), SLACK_S)
    assert eventually(lambda: head.others() == [], SLACK_S)


def test_what_an_env_started_ends_with_a_killed_head(head_that_steps_into, ssh_hosts):
    head = head_that_steps_into("start_child")
    head.wait_for("ready")
    assert ssh_hosts["host2"].processes("sleep 600")
    kill(head.process.pid)
    assert eventually(lambda: not ssh_hosts["host2"].processes("sleep 600"), SLACK_S)
    assert gone(ssh_hosts.hosts.values(), SLACK_S)


def test_nothing_is_left_on_a_host_that_was_cut_off_before_the_head_was_killed(
    head_that_steps_into, ssh_hosts
):
    head = head_that_steps_into("sleep_forever")
    ssh_hosts.cut("host2")
    kill(head.process.pid)
    assert gone(ssh_hosts.hosts.values(), LEASE_S + SLACK_S)
