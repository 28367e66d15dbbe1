"""Hosts on a real Slurm cluster: the contract holds, nothing is shown, nothing is left."""

import importlib
import logging
import os
import shutil
import time
from contextlib import nullcontext

import pytest

from clusterenv import ClusterEnv, Limits, SlurmLauncher, StartupError
from tests import inside
from tests.contract import test_parity, transports
from tests.engines.harness.runs import ROOT
from tests.engines.slurm_runs import (
    allocation,
    nothing_runs_on,
    processes_on,
    whole_allocation,
)
from tests.environments.counting import Count
from tests.integration.polling import eventually

PARITY = [
    ("CartPole-v1", "7 on 3", "NextStep", {"nodes": 3, "cpus_per_node": 1}),
    ("dict", "5 on 2", "SameStep", {"nodes": 1, "cpus_per_node": 2}),
    ("loose types", "3 on 1", "Disabled", {"nodes": 1, "cpus_per_node": 1}),
]
# A host looks for what its workers printed twice a second.
LOG_S = 5.0

pytestmark = pytest.mark.usefixtures("slurm_commands")


def put_on_slurm(monkeypatch, **options):
    """Let the contract's transport `slurm` be such a launcher."""
    on_slurm = {"launcher": SlurmLauncher(**options), "trust_workers": True}
    monkeypatch.setitem(transports.TRANSPORTS, "slurm", lambda num_envs: on_slurm)
    return on_slurm["launcher"]


@pytest.mark.parametrize(("env", "layout", "mode", "options"), PARITY)
def test_the_parity_contract_holds_with_a_job_per_host(
    slurm, monkeypatch, env, layout, mode, options
):
    put_on_slurm(monkeypatch, **options)
    test_parity.assert_parity(env, layout, mode, "slurm")
    assert eventually(lambda: not slurm.jobs())
    assert nothing_runs_on(slurm)


def test_the_parity_contract_holds_with_steps_of_an_allocation(slurm, monkeypatch):
    with whole_allocation(slurm, monkeypatch):
        launcher = put_on_slurm(monkeypatch, nodes=3, cpus_per_node=1)
        assert launcher.script().startswith("srun ")
        test_parity.assert_parity("dict", "7 on 3", "NextStep", "slurm")
        assert eventually(lambda: nothing_runs_on(slurm))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({"cpus_per_node": 4}, "4 steps of 4 cores"), ({}, "4 steps of a whole node each")],
)
def test_an_allocation_without_room_for_all_steps_is_an_error_at_once(
    slurm, monkeypatch, options, wanted
):
    with allocation(slurm, monkeypatch, nodes=2):
        began = time.monotonic()
        message = rf"host-2.0 cannot start: .* 2 nodes \(8 cores\): no room for {wanted}"
        with pytest.raises(StartupError, match=message) as raised:
            ClusterEnv(Count, 8, launcher=SlurmLauncher(nodes=4, **options))
        assert time.monotonic() - began < 20.0
        assert str(raised.value).endswith("give the launcher nodes=2")
        assert not raised.value.unreached
        assert eventually(lambda: nothing_runs_on(slurm))


def test_an_allocation_with_room_for_min_hosts_is_enough(slurm, monkeypatch, caplog):
    with allocation(slurm, monkeypatch, nodes=2):
        launcher = SlurmLauncher(nodes=3, cpus_per_node=4)
        with ClusterEnv(Count, 8, launcher=launcher, min_hosts=2) as envs:
            assert {worker.host for worker in envs.workers} == {"host-0.0", "host-1.0"}
            envs.reset(seed=0)
        told = [r.getMessage() for r in caplog.records if "no room" in r.getMessage()]
        assert len(told) == 1
        assert "starting without it" in told[0]


def test_a_step_that_waits_for_room_is_no_host_that_cannot_reach_the_head(slurm, monkeypatch):
    with allocation(slurm, monkeypatch, nodes=2) as job:
        launcher = SlurmLauncher(nodes=2, cpus_per_node=4, extra=("--nodelist=n1",))
        message = rf"1 of 2 hosts .* \(its step waits for room in job {job}, see: squeue --me -s"
        with pytest.raises(StartupError, match=message) as raised:
            ClusterEnv(Count, 2, launcher=launcher, limits=Limits(startup_timeout_s=12.0))
        assert "has not reached" not in str(raised.value)
        assert not raised.value.unreached


@pytest.mark.parametrize("inside_allocation", [False, True], ids=["jobs", "steps"])
def test_each_host_has_a_node_of_its_own_by_default(slurm, monkeypatch, inside_allocation):
    with whole_allocation(slurm, monkeypatch) if inside_allocation else nullcontext():
        with ClusterEnv(Count, 6, launcher=SlurmLauncher(nodes=3)) as envs:
            assert not inside.shares_memory(envs)
            hosts = [len(processes_on(slurm, node)) for node in slurm.nodes]
            assert sorted(hosts) == [0, 1, 1, 1]
            envs.reset(seed=0)
        assert eventually(lambda: nothing_runs_on(slurm))


def test_a_host_runs_a_worker_per_core(slurm):
    launcher = SlurmLauncher(nodes=2, cpus_per_node=2, mem_per_node="500M")
    with ClusterEnv(Count, 8, launcher=launcher) as envs:
        assert len(slurm.jobs()) == 2
        assert len(processes_on(slurm)) == 2
        assert len(set(envs.call("pid"))) == 4


def test_jobs_of_one_core_may_share_a_node(slurm):
    launcher = SlurmLauncher(nodes=4, cpus_per_node=1, extra=("--nodelist=n2",))
    with ClusterEnv(Count, 4, launcher=launcher):
        assert len(slurm.jobs()) == 4
        assert [len(processes_on(slurm, node)) for node in slurm.nodes] == [0, 4, 0, 0]
    assert eventually(lambda: not slurm.jobs())
    assert nothing_runs_on(slurm)


def test_logs_are_kept_where_the_user_wants_them(tmp_path):
    launcher = SlurmLauncher(nodes=2, log_dir=tmp_path / "logs")
    with ClusterEnv(Noisy, 2, launcher=launcher):
        # A host copies what its workers print now and then …
        assert eventually(lambda: "built in a worker" in launcher.logs("host-1.0"), LOG_S)
    # … and at the end.
    log = (tmp_path / "logs" / "host-0.0.log").read_text()
    assert "built in a worker" in log
    assert "closed in a worker" in log


def test_default_logs_are_shown_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    launcher = SlurmLauncher()
    with ClusterEnv(Noisy, 1, launcher=launcher):
        assert eventually(lambda: "built in a worker" in launcher.logs("host-0.0"), LOG_S)
    assert list((tmp_path / ".cache" / "clusterenv").iterdir()) == []


class Noisy(Count):
    """Says that it was built."""

    def __init__(self):
        super().__init__()
        print("built in a worker")

    def close(self):
        print("closed in a worker")


def test_setup_prefix_and_environment_reach_the_worker(tmp_path):
    launcher = SlurmLauncher(
        setup="export FROM_SETUP=1",
        prefix=("env", "FROM_PREFIX=2"),
        environment={"FROM_ENVIRONMENT": "3"},
    )
    with ClusterEnv(Telling, 1, launcher=launcher) as envs:
        names = ("FROM_SETUP", "FROM_PREFIX", "FROM_ENVIRONMENT", "OMP_NUM_THREADS")
        assert [envs.call("tell", name)[0] for name in names] == ["1", "2", "3", "1"]


class Telling(Count):
    """Tells what is in its worker's environment."""

    def tell(self, name):
        return os.environ.get(name)


class Recording(SlurmLauncher):
    """Remembers the invitations it delivered."""

    invitations = ()

    def start(self, orders):
        self.invitations += tuple(order.invitation.decode() for order in orders)
        super().start(orders)


@pytest.mark.parametrize("steps", [False, True], ids=["jobs", "steps"])
def test_secrets_are_nowhere_to_be_seen(slurm, monkeypatch, tmp_path, steps):
    with whole_allocation(slurm, monkeypatch) if steps else nullcontext():
        launcher = Recording(nodes=2, log_dir=tmp_path)
        with ClusterEnv(Telling, 2, launcher=launcher) as envs:
            assert envs.call("tell", "CLUSTERENV_INVITATION") == (None, None)
            seen = slurm.run(["ps", "-eww", "-o", "args"])
            for job in slurm.jobs():
                seen += slurm.run(["scontrol", "show", "job", "-dd", job])
                if not steps:
                    seen += slurm.run(["scontrol", "write", "batch_script", job, "-"])
            seen += "".join(path.read_text() for path in tmp_path.iterdir())
    secrets = [part.split('"')[0] for i in launcher.invitations for part in i.split('_key":"')[1:]]
    assert len(secrets) == 6
    assert "clusterenv host" in seen
    assert not [secret for secret in secrets if secret in seen]


def test_a_job_that_waits_for_ever_is_told_and_ends_at_the_deadline_with_the_reason(slurm, caplog):
    launcher = SlurmLauncher("closed", nodes=2)
    with (
        caplog.at_level(logging.WARNING, "clusterenv"),
        pytest.raises(StartupError, match=r"0 of 2 hosts .* PENDING \(PartitionDown\)") as raised,
    ):
        ClusterEnv(Count, 2, launcher=launcher, limits=Limits(startup_timeout_s=9.0))
    assert "has not reached" not in str(raised.value)
    assert not raised.value.unreached
    told = [record.getMessage() for record in caplog.records if "PENDING" in record.getMessage()]
    assert len(told) == 1
    assert "2 jobs wait: 2 are PENDING (PartitionDown)" in told[0]
    assert slurm.jobs() == []


@pytest.mark.parametrize(
    ("options", "reason", "advice"),
    [
        ({"cpus_per_node": 99}, "PartitionConfig", "cpus_per_node="),
        ({"partition": "short", "time_limit": 20}, "PartitionTimeLimit", "time_limit="),
    ],
)
def test_a_job_that_can_never_start_is_an_error_within_seconds(slurm, options, reason, advice):
    slurm.run(["scontrol", "create", "PartitionName=short", "Nodes=ALL", "MaxTime=5"])
    try:
        began = time.monotonic()
        with pytest.raises(StartupError, match=f"cannot start: job .*{reason}.*{advice}"):
            ClusterEnv(Count, 2, launcher=SlurmLauncher(nodes=2, **options))
        assert time.monotonic() - began < 30.0
        assert eventually(lambda: not slurm.jobs())
    finally:
        slurm.run(["scontrol", "delete", "PartitionName=short"])


def test_squeue_names_jobs_as_top_names_the_run_and_its_hosts(slurm):
    with ClusterEnv(Count, 2, launcher=SlurmLauncher(nodes=2)) as envs:
        names = slurm.run(["squeue", "--noheader", "--format=%j"]).split()
        assert sorted(names) == [f"clusterenv-{envs.run_id}-host-{i}.0" for i in range(2)]


@pytest.mark.timeout(300)
def test_ppo_trains_on_three_nodes_by_one_argument(slurm, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setenv("NODES", "3")
    ppo = importlib.import_module("ppo")
    settings = {"num_envs": 6, "num_steps": 32, "num_minibatches": 2}
    args = ppo.Args("CartPole-v1", launcher="slurm", total_steps=768, out=tmp_path, **settings)
    with ppo.make_envs(args) as envs, ppo.Progress(768) as progress:
        assert [len(processes_on(slurm, node)) for node in slurm.nodes] == [1, 1, 1, 0]
        ppo.train(args, envs, progress)
        assert progress.step == 768


def test_an_unknown_partition_is_refused_in_the_words_of_sbatch(slurm):
    with pytest.raises(StartupError, match=r"invalid partition .*: nowhere; [^\n]*\n.*`sinfo -s`"):
        ClusterEnv(Count, 2, launcher=SlurmLauncher("nowhere", nodes=2))
    assert slurm.jobs() == []


def test_a_host_that_cannot_start_says_why(slurm):
    launcher = SlurmLauncher(python="/nowhere/python")
    with pytest.raises(StartupError, match=r"(?s)ended as FAILED.*exit code 12[67].*No such file"):
        ClusterEnv(Count, 2, launcher=launcher)
    assert eventually(lambda: not slurm.jobs())


def test_without_slurm_the_error_says_where_to_start(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(ValueError, match="no 'sbatch' on this machine"):
        SlurmLauncher()
