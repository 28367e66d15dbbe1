"""The engines are real, can be broken and mended, and leave nothing."""

import os
import signal
import subprocess
import sys
import time

import pytest

import clusterenv
from tests.engines.connections import dial, dial_from, echo_at
from tests.engines.harness import Hosts, SlurmCluster, SshHosts, packages
from tests.engines.harness.runs import (
    ANCHOR,
    LOCK,
    ROOT,
    RUNS,
    Run,
    held_networks,
    links,
    members,
    start_time,
)
from tests.engines.harness.waiting import Daemon, EngineError, locked
from tests.integration.polling import eventually

pytestmark = pytest.mark.usefixtures("engines")
SBATCH = ["sbatch", "--parsable", "--output=/dev/null"]
TELL = "import clusterenv, socket; print(socket.gethostname(), clusterenv.__file__)"
IMPORT = [sys.executable, "-c", TELL]


def ssh(hosts, name, *command, options=()):
    argv = ["ssh", "-F", str(hosts.config), *options, name, *command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30)


def nothing_left(run):
    with locked(LOCK, 60.0):
        # Another clone's tests may have claimed the number again.
        own_links = [] if list(RUNS.glob(f"{run.number}-*")) else links(run)
        return not (members(run.mark) or own_links or run.folder.exists())


def test_srun_runs_on_three_nodes(slurm):
    assert sorted(slurm.run(["srun", "-N3", "hostname"]).split()) == ["n1", "n2", "n3"]


def test_nodes_reach_the_head_and_import_the_project(slurm):
    told = sorted(slurm.run(["srun", "-N4", *IMPORT]).splitlines())
    assert told == [f"{node} {clusterenv.__file__}" for node in slurm.nodes]
    with echo_at(slurm["n2"], slurm["n2"].address):
        peer, seen_from = dial(slurm["n2"].address)
        peer.close()
    assert seen_from == slurm.head_address


@pytest.mark.parametrize("kill", [SlurmCluster.kill_node, SlurmCluster.kill_slurmd])
def test_killed_node_takes_jobs_again_once_revived(slurm, kill):
    kill(slurm, "n2")
    slurm.revive("n2")
    assert slurm.run(["srun", "-w", "n2", "hostname"]) == "n2\n"


def test_slurm_notices_a_cut_link_and_takes_the_node_back(slurm):
    slurm.cut("n3")
    assert eventually(lambda: slurm.states()["n3"].startswith("down"), 60)
    slurm.revive("n3")
    assert slurm.run(["srun", "-w", "n3", "hostname"]) == "n3\n"


def test_urgent_job_preempts_a_low_one(slurm):
    low = slurm.run([*SBATCH, "-p", "low", "-N4", "--exclusive", "--wrap", "sleep 60"]).strip()
    assert eventually(lambda: slurm.run(["squeue", "-h", "-j", low, "-o", "%T"]) == "RUNNING\n")
    slurm.run(["srun", "-p", "urgent", "-N4", "--exclusive", "true"])
    assert "PREEMPTED" in slurm.run(["scontrol", "show", "job", low])


def test_job_in_a_closed_partition_pends_and_reset_cancels_it(slurm):
    job = slurm.run([*SBATCH, "-p", "closed", "--wrap", "true"]).strip()
    assert eventually(
        lambda: slurm.run(["squeue", "-h", "-j", job, "-o", "%T %r"]) == "PENDING PartitionDown\n"
    )
    slurm.reset()
    assert slurm.jobs() == []


def test_ssh_reaches_each_host_and_imports_the_project(ssh_hosts):
    for name in ssh_hosts.names:
        done = ssh(ssh_hosts, name, f"{sys.executable} -c '{TELL}'")
        assert (done.returncode, done.stdout.split()) == (0, [name, clusterenv.__file__]), done


def test_unreachable_host_never_answers(ssh_hosts):
    began = time.monotonic()
    done = ssh(ssh_hosts, ssh_hosts.unreachable, "true", options=["-o", "ConnectTimeout=4"])
    assert done.returncode == 255
    assert "timed out" in done.stderr
    assert time.monotonic() - began > 3.5


def test_killed_ssh_host_comes_back_with_reset(ssh_hosts):
    ssh_hosts.kill_host("host2")
    assert ssh(ssh_hosts, "host2", "true").returncode == 255
    ssh_hosts.reset()
    assert ssh(ssh_hosts, "host2", "true").returncode == 0


def test_cut_link_loses_all_in_silence_and_mended_delivers(hosts):
    with echo_at(hosts["h2"], hosts["h2"].address):
        peer, _ = dial(hosts["h2"].address)
        with peer:
            hosts.cut("h2")
            peer.sendall(b"hello")
            peer.settimeout(1.0)
            with pytest.raises(TimeoutError):
                peer.recv(100)
            with pytest.raises(TimeoutError):
                dial(hosts["h2"].address, timeout_s=1.0)
            with pytest.raises(EngineError, match="timed out"):
                dial_from(hosts["h1"], hosts["h2"].address, timeout_s=1.0)
            hosts.mend("h2")
            peer.settimeout(20.0)
            assert peer.recv(100) == b"hello"


@pytest.mark.parametrize("family", ["address", "address6"])
def test_hosts_reach_each_other(hosts, family):
    address = getattr(hosts["h2"], family)
    with echo_at(hosts["h2"], address):
        assert dial_from(hosts["h1"], address) == getattr(hosts["h1"], family)
        peer, seen_from = dial(address)
        peer.close()
        assert seen_from == getattr(hosts, f"head_{family}")


def test_natted_host_calls_out_but_cannot_be_called(hosts):
    with echo_at(hosts["h1"], hosts["h1"].address):
        assert dial_from(hosts.natted, hosts["h1"].address) == hosts.router.address
    with echo_at(hosts.natted, hosts.natted.address):
        for address in (hosts.natted.address, hosts.router.address):
            with pytest.raises(EngineError):
                dial_from(hosts["h1"], address, timeout_s=1.0)


def test_hosts_look_like_different_machines(hosts):
    hosts["h1"].run(["touch", "/dev/shm/clusterenv-test"])
    assert hosts["h2"].run(["ls", "/dev/shm"]) == ""
    boots = {host.run(["cat", "/proc/sys/kernel/random/boot_id"]) for host in hosts.values()}
    assert len(boots) == 3
    assert hosts["h3"].run(["getent", "hosts", "h1"]).split()[-1] == "h1"
    assert hosts["h1"].run(["pwd"]).strip() == os.getcwd()


@pytest.mark.parametrize("harness", [Hosts, SshHosts, SlurmCluster])
def test_two_at_once_and_nothing_is_left(harness):
    with harness(2) as one, harness(2) as other:
        runs = [getattr(each, "hosts", each).claim for each in (one, other)]
        if harness is SlurmCluster:
            for each in (one, other):
                assert sorted(each.run(["srun", "-N2", "hostname"]).split()) == ["n1", "n2"]
        for run in runs:
            assert links(run)
            assert members(run.mark)
    assert all(map(nothing_left, runs))


OWNER = """
import time
from tests.engines.harness import SlurmCluster
from tests.engines.harness.runs import cmdline
from tests.engines.harness.waiting import wait_until
with SlurmCluster(2) as cluster:
    cluster.run(["sbatch", "--export=NONE", "-N2", "-o/dev/null", "--wrap", "srun /bin/sleep 600"])
    def tasks():
        found = [pid for node in cluster.nodes for pid in cluster[node].processes("/sleep 600")]
        return [pid for pid in found if "srun" not in cmdline(pid)]
    wait_until(lambda: len(tasks()) == 2, "two tasks", 60.0)
    print(cluster.hosts.claim.folder, *tasks(), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def owner():
    """A process with a cluster of its own and a running job; its run and the job's tasks."""
    argv = [sys.executable, "-c", OWNER]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            folder, *tasks = process.stdout.readline().split()
            yield process, Run.of(RUNS / folder), [int(pid) for pid in tasks]
        finally:
            process.kill()


def test_nothing_is_left_when_the_owner_is_killed(owner):
    process, run, tasks = owner
    assert all(map(start_time, tasks))
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: nothing_left(run))
    assert not any(map(start_time, tasks))


def test_next_run_clears_up_after_a_dead_one_without_keeper(owner):
    process, run, tasks = owner
    keeper = subprocess.run(["pgrep", "-f", f"harness.keeper {run.folder}"], stdout=-1, text=True)
    os.kill(int(keeper.stdout), signal.SIGKILL)
    process.kill()
    process.wait()
    assert any(map(start_time, tasks))
    with Hosts(1):
        assert not run.folder.exists()
        assert not any(map(start_time, tasks))
    assert nothing_left(run)


def test_anchor_still_in_the_machines_network_endangers_no_one_else(hosts):
    env = {**os.environ, ANCHOR: "0-1-1"}
    with subprocess.Popen(["sleep", "60"], env=env) as anchor:
        assert eventually(lambda: members("0-1-1") == [anchor.pid])
        with held_networks(Run(0, 1, 1)) as networks:
            assert networks == set()
        anchor.kill()
    with held_networks(hosts.claim) as networks:
        assert networks == {host.network for host in hosts.everyone()}


def test_failed_daemon_says_why(tmp_path):
    daemon = Daemon(["sh", "-c", "echo no such disk; exit 3"], tmp_path / "log", os.environ)
    with pytest.raises(EngineError, match=r"exit code 3\n.*\nno such disk"):
        daemon.wait_until(lambda: False, "never", 10.0)


def test_without_root_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in packages.why_not_here.__wrapped__()
