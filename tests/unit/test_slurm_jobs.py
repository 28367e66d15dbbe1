"""Jobs are watched through a Slurm that may be slow, silent or forgetful."""

import logging
import os
import subprocess
import threading

import pytest

from clusterenv.errors import StartupError
from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.slurm import SlurmLauncher, commands
from clusterenv.launchers.slurm import jobs as slurm_jobs
from clusterenv.launchers.slurm.commands import SlurmError, steps_of, submit
from clusterenv.launchers.slurm.jobs import SlurmJobs
from clusterenv.launchers.slurm.keeper import Keeper
from clusterenv.launchers.slurm.text import JobRequest


class Slurm:
    """Answers in the place of Slurm's commands."""

    def __init__(self):
        self.submitted, self.cancelled = [], []
        self.queue, self.ended = {}, {}
        self.silent = False

    def submit(self, script, env, tell):
        self._speak()
        self.submitted.append((env, script))
        return f"{len(self.submitted)}"

    def cancel(self, jobs):
        self.cancelled += jobs
        return subprocess.Popen(["true"])

    def squeue(self, jobs, form):
        self._speak()
        return "".join(f"{job}|{self.queue[job]}\n" for job in jobs if job in self.queue)

    def show_job(self, job):
        self._speak()
        return self.ended[job]

    def _speak(self):
        if self.silent:
            raise SlurmError("slurm_load_jobs error: Unable to contact slurm controller")


@pytest.fixture
def slurm(monkeypatch):
    slurm = Slurm()
    monkeypatch.setattr(slurm_jobs, "submit", slurm.submit)
    monkeypatch.setattr(slurm_jobs, "cancel", slurm.cancel)
    monkeypatch.setattr(slurm_jobs, "queue", slurm.squeue)
    monkeypatch.setattr(slurm_jobs, "show_job", slurm.show_job)
    return slurm


@pytest.fixture
def launch(slurm, tmp_path):
    opened = []

    def launch(hosts):
        jobs = SlurmJobs(JobRequest(), {"MARK": "x"}, tmp_path)
        opened.append((jobs, hosts))
        jobs.start([Order(host, f"keys of {host}".encode()) for host in hosts])
        return jobs

    yield launch
    slurm.silent = False
    for jobs, hosts in opened:
        jobs.stop(hosts)


def test_the_keys_are_in_the_environment_of_the_job_and_nowhere_else(slurm, launch, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "99")
    launch(["a"])
    ((env, script),) = slurm.submitted
    assert env["CLUSTERENV_INVITATION"] == "keys of a"
    assert env["MARK"] == "x"
    assert "SLURM_JOB_ID" not in env
    assert "keys of" not in script


def test_each_host_is_a_job_with_keys_of_its_own(slurm, launch):
    launch(["a", "b", "c"])
    assert sorted(env["CLUSTERENV_INVITATION"] for env, _ in slurm.submitted) == [
        "keys of a",
        "keys of b",
        "keys of c",
    ]


def test_slurms_silence_is_not_the_end_of_a_host(slurm, launch):
    jobs = launch(["a"])
    slurm.queue = {"1": "RUNNING|None|n1"}
    running = Status(False, "job 1 is RUNNING on n1")
    assert jobs.status() == {"a": running}
    slurm.silent = True
    assert jobs.status() == {"a": running}


def test_the_end_of_a_job_is_asked_for_once(slurm, launch):
    jobs = launch(["a", "b"])
    slurm.queue = {"1": "RUNNING|None|n1", "2": "RUNNING|None|n1"}
    jobs.status()
    (lost,) = [host for host, job in jobs._job_by_host.items() if job.id == "2"]
    slurm.queue["2"] = "TIMEOUT|TimeLimit|n1"
    slurm.ended["2"] = "JobState=TIMEOUT Reason=TimeLimit ExitCode=0:0 NodeList=n1"
    assert jobs.status()[lost].ended
    del slurm.queue["2"], slurm.ended["2"]
    assert "TIMEOUT" in jobs.status()[lost].reason
    assert sum(status.ended for status in jobs.status().values()) == 1


def test_a_state_that_nobody_knows_is_not_an_end(slurm, launch):
    jobs = launch(["a"])
    slurm.queue = {"1": "LEVITATING|None|n1"}
    assert not jobs.status()["a"].ended


def test_jobs_that_wait_are_told_once_though_reasons_differ_and_change(
    slurm, launch, monkeypatch, caplog
):
    monkeypatch.setattr(slurm_jobs, "_PATIENCE_S", 0.0)
    jobs = launch(["a", "b"])
    for reasons in (("Resources", "Priority"), ("Priority", "Resources"), ("Resources",) * 2):
        slurm.queue = {f"{i + 1}": f"PENDING|{reason}|" for i, reason in enumerate(reasons)}
        with caplog.at_level(logging.WARNING, "clusterenv"):
            jobs.status()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("2 jobs wait: ")
    assert "1 is PENDING (Resources)" in told
    assert "1 is PENDING (Priority)" in told


def test_a_replacement_that_waits_is_told_too(slurm, launch, monkeypatch, caplog):
    monkeypatch.setattr(slurm_jobs, "_PATIENCE_S", 0.0)
    jobs = launch(["a.0"])
    slurm.queue = {"1": "PENDING|Resources|"}
    jobs.status()
    jobs.stop(["a.0"])
    jobs.start([Order("a.1", b"")])
    slurm.queue = {"2": "PENDING|Resources|"}
    jobs.status()
    jobs.stop(["a.1"])
    told = [record.getMessage() for record in caplog.records]
    assert [text.rpartition(" ")[2] for text in told] == ["1", "2"]


def test_a_job_that_can_never_start_ends_but_not_for_slurms_first_reason(
    slurm, launch, monkeypatch
):
    jobs = launch(["a"])
    slurm.queue = {"1": "PENDING|PartitionConfig|"}
    assert not jobs.status()["a"].ended
    monkeypatch.setattr(slurm_jobs, "_PATIENCE_S", 0.0)
    status = jobs.status()["a"]
    assert status.ended
    assert "PENDING (PartitionConfig) and would wait for ever" in status.reason


def test_a_job_that_can_never_start_is_cancelled(slurm, launch, monkeypatch):
    monkeypatch.setattr(slurm_jobs, "_PATIENCE_S", 0.0)
    jobs = launch(["a"])
    slurm.queue = {"1": "PENDING|PartitionTimeLimit|"}
    jobs.status()
    jobs.stop(["a"])
    assert slurm.cancelled == ["1"]


def test_a_job_is_named_after_its_run_and_its_host(slurm, tmp_path):
    jobs = SlurmJobs(JobRequest(), {}, tmp_path)
    jobs.start([Order("host-3.1", b"", "4f2a1b")])
    jobs.stop(["host-3.1"])
    ((_, script),) = slurm.submitted
    assert "#SBATCH --job-name=clusterenv-4f2a1b-host-3.1\n" in script


def test_a_replacement_that_cannot_be_submitted_ends_but_does_not_raise(slurm, launch):
    jobs = launch(["a.0"])
    slurm.queue = {"1": "RUNNING|None|n1"}
    jobs.stop(["a.0"])
    assert slurm.cancelled == ["1"]
    slurm.silent = True
    jobs.start([Order("a.1", b"")])
    slurm.silent = False
    assert "Unable to contact" in jobs.status()["a.1"].reason
    assert jobs.status()["a.1"].ended
    jobs.stop(["a.1"])


def test_the_first_job_that_cannot_be_submitted_raises(slurm, launch):
    slurm.silent = True
    message = "Unable to contact slurm controller\nSlurm's controller does not answer: try"
    with pytest.raises(StartupError, match=message):
        launch(["a"])


def test_a_job_ends_with_its_host(slurm, launch):
    jobs = launch(["a", "b"])
    slurm.queue = {"1": "RUNNING|None|n1", "2": "RUNNING|None|n2"}
    of_a = jobs._job_by_host["a"].id
    jobs.stop(["a"])
    assert slurm.cancelled == [of_a]


def test_a_job_that_ends_by_itself_is_not_cancelled(slurm, launch):
    jobs = launch(["a"])
    slurm.queue = {"1": "COMPLETED|None|n1"}
    jobs.stop(["a"], grace_s=5.0)
    assert slurm.cancelled == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"nodes": 0}, ValueError),
        ({"nodes": "n[1-4]"}, TypeError),
        ({"cpus_per_node": 0}, ValueError),
        ({"workers_per_job": 2}, TypeError),
        ({"extra": "--exclusive"}, TypeError),
        ({"prefix": "apptainer exec"}, TypeError),
        ({"time_limit": "never"}, ValueError),
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong, error):
    with pytest.raises(error, match=next(iter(wrong))):
        SlurmLauncher(**wrong)


@pytest.mark.parametrize(("cpus", "workers"), [(None, None), (1, 1), (16, 16)])
def test_a_node_has_as_many_workers_as_cores(monkeypatch, cpus, workers):
    monkeypatch.setattr("shutil.which", lambda program: program)
    launcher = SlurmLauncher("cpu", nodes=4, cpus_per_node=cpus)
    assert (launcher.num_hosts, launcher.workers_per_host) == (4, workers)


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Makes a program of that name."""
    program = tmp_path / "sbatch"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def make(script):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return make


def test_steps_are_listed_by_name_without_those_that_wait(monkeypatch):
    shown = "  7.0 host-0.0 \n7.interactive interactive\n7.TBD host-1.0\n"
    monkeypatch.setattr(commands, "ask", lambda argv, timeout_s: shown)
    assert steps_of("7") == [("7.0", "host-0.0"), ("7.interactive", "interactive")]


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_the_id_of_a_job_is_told_to_the_keeper_too(sbatch, pipe, tmp_path):
    heard, ear = pipe
    sbatch(f'cat > {tmp_path}/script; echo "$KEY" >> {tmp_path}/script; echo "7;cluster"')
    assert submit("echo hello", {**os.environ, "KEY": "secret"}, ear) == "7"
    assert os.read(heard, 100) == b"7;cluster\n"
    assert (tmp_path / "script").read_text() == "echo hellosecret\n"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "echo 'sbatch: error: no such partition' >&2; exit 1",
            "^sbatch: error: no such partition",
        ),
        ("exit 3", "^sbatch: exit code 3"),
        ("sleep 60", "^sbatch: it took too long"),
    ],
)
def test_a_job_that_was_not_submitted_is_told_to_nobody(
    sbatch, pipe, monkeypatch, program, message
):
    heard, ear = pipe
    os.set_blocking(heard, False)
    monkeypatch.setattr(commands, "_SUBMIT", ("timeout", "0.5", "sh", "-c"))
    sbatch(program)
    with pytest.raises(SlurmError, match=message):
        submit("", os.environ, ear)
    with pytest.raises(BlockingIOError):
        os.read(heard, 100)


def test_a_killed_head_leaves_a_shell_that_ends_its_jobs(tmp_path, monkeypatch):
    said = tmp_path / "said"
    fake = tmp_path / "scancel"
    fake.write_text(f'#!/bin/sh\necho "$*" >> {said}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path))
    keeper = Keeper(None)
    os.write(keeper.ear, b"5\n6;cluster\n")
    assert keeper.folder.exists()
    os.close(keeper.ear)
    keeper._process.wait(20)
    assert said.read_text().splitlines()[-1] == "--quiet 5 6"
    assert not keeper.folder.exists()


def test_a_keeper_that_is_dismissed_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    keeper = Keeper(None)
    os.write(keeper.ear, b"5\n")
    keeper.close()
    assert keeper._process.returncode == -9
    assert not keeper.folder.exists()
    assert subprocess.run(["pgrep", "-P", str(keeper._process.pid)], check=False).returncode == 1


def test_a_start_that_is_interrupted_knows_which_jobs_it_has(slurm, monkeypatch):
    second_is_submitted = threading.Event()

    def submit(script, env, tell):
        if "a.log" in script:
            assert second_is_submitted.wait(20)
            raise KeyboardInterrupt
        second_is_submitted.set()
        return slurm.submit(script, env, tell)

    monkeypatch.setattr(slurm_jobs, "submit", submit)
    jobs = SlurmJobs(JobRequest(), {}, None)
    with pytest.raises(KeyboardInterrupt):
        jobs.start([Order("a", b""), Order("b", b"")])
    jobs.stop(["a", "b"])
    assert slurm.cancelled == ["1"]
