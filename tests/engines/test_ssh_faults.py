"""Faults of ssh hosts: the run goes on with all slots, and nothing is left on any host."""

import os
import signal
import subprocess
import time
from functools import partial

import pytest

from clusterenv import Limits, WorkerLostError
from tests.engines.checked_runs import LEASE_S, Replay, gone, hosts_on
from tests.environments import troubles
from tests.environments.vectors import actions_for
from tests.environments.walks import Placed, Troubled
from tests.integration.heads import HeadScript
from tests.integration.polling import eventually, is_alive, kill

# A tick of the host's lifeline and a busy machine.
SLACK_S = 3.0
# A host looks for what its workers printed twice a second.
LOG_S = 5.0
NUM_ENVS = 4
SIX = (Placed,) * 6


def test_a_host_that_is_killed_is_replaced_on_its_machine_and_no_row_is_wrong(
    ssh_cluster, ssh_hosts
):
    with ssh_cluster() as envs:
        replay = Replay(envs)
        replay.rollout()
        assert envs.call("host") == ("host1", "host1", "host2", "host2")
        kill(hosts_on(ssh_hosts["host2"])[0])
        replay.rollout_until(lambda: replay.restarted == [2, 3])
        replay.rollout()
        assert envs.call("host") == ("host1", "host1", "host2", "host2")


def test_a_worker_that_is_killed_is_replaced_by_its_host(ssh_cluster, ssh_hosts):
    with ssh_cluster() as envs:
        replay = Replay(envs)
        replay.rollout()
        hosts = hosts_on(ssh_hosts["host2"])
        kill(envs.call("pid")[3])
        replay.rollout_until(lambda: replay.restarted == [3])
        replay.rollout()
        assert hosts_on(ssh_hosts["host2"]) == hosts


def test_steps_report_the_envs_that_were_lost_with_their_host(ssh_cluster, ssh_hosts):
    with ssh_cluster() as envs:
        envs.reset(seed=0)
        envs.step(actions_for(NUM_ENVS))
        kill(hosts_on(ssh_hosts["host2"])[0])
        *_, truncated, infos = envs.step(actions_for(NUM_ENVS))
        assert truncated.tolist() == infos["env_lost"].tolist() == [False, False, True, True]
        envs.step(actions_for(NUM_ENVS))
        assert envs.call("poke") == (3, 3, 0, 0)


def test_the_end_of_a_host_is_told_with_its_machine(ssh_cluster, ssh_hosts):
    with ssh_cluster(limits=Limits(lease_s=LEASE_S, max_restarts_per_minute=0)) as envs:
        envs.reset(seed=0)
        kill(hosts_on(ssh_hosts["host2"])[0])
        with pytest.raises(WorkerLostError, match=r"killed by SIGKILL on ssh host host2"):
            for _ in range(100):
                envs.step(actions_for(NUM_ENVS))


def test_the_last_words_of_a_worker_are_in_the_error_and_in_the_log_of_its_host(
    ssh_cluster, ssh_launcher, tmp_path
):
    launcher = ssh_launcher({"host1": 1, "host2": 1}, log_dir=tmp_path)
    makers = [Placed, partial(Troubled, troubles.print_then_exit)]
    limits = Limits(lease_s=LEASE_S, max_restarts_per_minute=0)
    with ssh_cluster(makers=makers, launcher=launcher, limits=limits) as envs:
        envs.reset(seed=0)
        told = r"(?s)host-1\.0 \(machine host2, .*worker-0\.0 .*exit code 3.*the ground is shaking"
        with pytest.raises(WorkerLostError, match=told):
            for _ in range(100):
                envs.step(actions_for(2))
        log = tmp_path / "host-1.0.log"
        assert eventually(lambda: "worker-0.0: the ground is shaking\n" in log.read_text(), LOG_S)


def test_a_machine_that_loses_power_is_left_for_others(ssh_cluster, ssh_hosts):
    with ssh_cluster(ssh_hosts.names, SIX) as envs:
        replay = Replay(envs)
        ssh_hosts.kill_host("host2")
        replay.rollout_until(lambda: replay.restarted == [2, 3])
        assert set(envs.call("host")) == {"host1", "host3"}


def test_a_cut_off_host_fences_itself_and_the_run_goes_on(ssh_cluster, ssh_hosts):
    with ssh_cluster(ssh_hosts.names, SIX) as envs:
        replay = Replay(envs)
        replay.rollout()
        pids = [*hosts_on(ssh_hosts["host2"]), *envs.call("pid")[2:4]]
        ssh_hosts.cut("host2")
        cut_at = time.monotonic()
        replay.rollout_until(lambda: replay.restarted == [2, 3])
        assert set(envs.call("host")) == {"host1", "host3"}
        assert eventually(lambda: not any(map(is_alive, pids)), LEASE_S + SLACK_S)
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


def test_a_killed_ssh_client_takes_its_host_along(ssh_cluster, ssh_hosts):
    with ssh_cluster() as envs:
        replay = Replay(envs)
        hosts = [pid for name in ssh_hosts.names for pid in hosts_on(ssh_hosts[name])]
        os.kill(ssh_clients()[0], signal.SIGKILL)
        assert eventually(lambda: sum(map(is_alive, hosts)) == 1, SLACK_S)
        replay.rollout_until(lambda: replay.restarted in ([0, 1], [2, 3]))


IN_STEP = """
from clusterenv import Limits, SshLauncher
launcher = SshLauncher({{"host1": 1, "host2": 1}}, ssh=("ssh", "-F", "{config}"))
busy = partial(Troubled, troubles.{trouble}, at=2, sign=SIGN)
envs = ClusterEnv([Walk, busy], limits=Limits(lease_s={lease_s}), launcher=launcher)
envs.reset(seed=0)
envs.step(np.zeros((2, 2)))
envs.step(np.zeros((2, 2)))
say("ready")
time.sleep(600)
"""


@pytest.fixture
def head_that_steps_into(ssh_hosts, tmp_path):
    """Another process with two hosts, one of which meets trouble in its second step."""
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
