"""What is said to Slurm, and how its answers are read."""

import subprocess
from pathlib import Path

import pytest

from clusterenv.launchers.base import Status
from clusterenv.launchers.slurm.refusals import advice_on_refusal
from clusterenv.launchers.slurm.text import (
    JobRequest,
    QueuedJob,
    cannot_start,
    read_end,
    read_queue,
    seconds_of,
    who_waits,
)
from tests.integration.polling import eventually

ENDED_JOB = (
    "JobId=7 JobName=clusterenv JobState={state} Reason={reason} Dependency=(null) Requeue=0 "
    "ExitCode={code} RunTime=00:00:03 ReqNodeList=n9 NodeList=n1 BatchHost=n1"
)


def options_of(script):
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if "#SBATCH" in line]


def test_a_job_asks_for_what_the_user_chose():
    request = JobRequest(
        partition="cpu",
        account="lab",
        qos="high",
        constraint="avx2&ib",
        time_limit="1-00",
        cpus_per_node=16,
        mem_per_node="3gb",
        gpus_per_node=2,
        extra=("--comment=two words",),
    )
    options = options_of(request.script(None))
    for wanted in (
        "--partition=cpu",
        "--account=lab",
        "--qos=high",
        "'--constraint=avx2&ib'",
        "--time=1-00",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=16",
        "--mem=3G",
        "--gpus=2",
        "--no-requeue",
        "'--comment=two words'",
    ):
        assert wanted in options
    assert options[-1] == "'--comment=two words'"
    assert "--exclusive" not in options


def test_what_was_not_chosen_is_left_to_slurm():
    script = JobRequest().script(None)
    for name in ("partition", "account", "qos", "constraint", "time", "mem", "gpus", "cpus-per"):
        assert f"--{name}" not in script


def test_without_a_number_of_cores_a_host_gets_a_whole_node():
    assert "--exclusive" in options_of(JobRequest().script(None))
    assert "--exact" not in JobRequest().step_command("host-0.0")
    some = JobRequest(cpus_per_node=3).step_command("host-0.0")
    assert {"--exact", "--cpus-per-task=3", "--job-name=host-0.0"} <= set(some)


def test_the_script_becomes_the_host_after_its_setup():
    request = JobRequest(setup="module load x", command=("image", "python 3"))
    *_, log, setup, last = request.script(Path("/logs/a b.log")).splitlines()
    assert "exec >'/logs/a b.log' 2>&1" in log
    assert setup == "module load x"
    assert last == "exec image 'python 3'"
    assert request.step_command("host-0.0")[-1] == f"{setup}\n{last}"


@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_the_host_of_a_job_hears_the_signals_of_the_job(tmp_path, name):
    host = f"trap 'echo bye; exit' {name}; echo up; while :; do sleep 0.05; done"
    log = tmp_path / "host.log"
    script = JobRequest(command=("bash", "-c", host)).script(log)
    process = subprocess.Popen(["bash", "-c", script], start_new_session=True)
    assert eventually(lambda: log.exists() and log.read_text() == "up\n")
    subprocess.run(["kill", f"-{name}", str(process.pid)], check=True)
    process.wait(20)
    assert log.read_text() == "up\nbye\n"


def test_a_log_folder_that_a_node_does_not_have_is_no_reason_to_fail():
    script = JobRequest(command=("echo", "works")).script(Path("/nowhere/at/all/h.log"))
    assert subprocess.check_output(["bash", "-c", script], text=True) == "works\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("1:30", 90),
        ("2:00:10", 7210),
        ("1-2", 93600),
        ("1-2:30", 95400),
        ("0-0:0:9", 9),
    ],
)
def test_time_limits_are_read_as_slurm_reads_them(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(("limit", "notice"), [(None, 60), ("60", 60), ("2", 30), ("1", 15)])
def test_short_jobs_get_short_notice(limit, notice):
    options = options_of(JobRequest(time_limit=limit).script(None))
    assert f"--signal=B:USR1@{notice}" in options


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"cpus_per_node": 0}, "cpus_per_node=0"),
        ({"gpus_per_node": -1}, "gpus_per_node=-1"),
        ({"time_limit": "soon"}, "time_limit='soon' must be minutes"),
        ({"mem_per_node": "much"}, "mem_per_node='much'"),
        ({"mem_per_node": 64}, "mem_per_node=64 must be a string"),
        ({"notice_s": 0}, "notice_s=0"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        JobRequest(**wrong)


def test_the_queue_says_who_waits_and_why():
    found = read_queue("12|PENDING|Resources|\n13|RUNNING|None|n[2-3]\nnoise\n")
    waiting = "job 12 is PENDING (Resources), see: squeue -j 12"
    assert found["12"].status("12") == Status(False, waiting, is_queued=True)
    assert found["13"].status("13") == Status(False, "job 13 is RUNNING on n[2-3]")
    assert len(found) == 2
    assert [job.is_pending for job in found.values()] == [True, False]


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("PartitionConfig", "cpus_per_node="),
        ("PartitionNodeLimit", "a job of one node"),
        ("PartitionTimeLimit", "time_limit="),
        ("BadConstraints", "constraint="),
        ("InvalidAccount", "account="),
        ("InvalidQOS", "qos="),
        ("QOSMaxWallDurationPerJobLimit", "ask for less"),
        ("QOSMaxMemoryPerJob", "ask for less"),
        ("AssocMaxNodePerJobLimit", "ask for less"),
    ],
)
def test_a_request_that_can_never_be_met_says_what_to_change(reason, advice):
    status = cannot_start("7", QueuedJob("PENDING", reason, ""))
    assert status.ended
    assert status.is_queued
    assert status.reason.startswith(f"job 7 is PENDING ({reason}) and would wait for ever: ")
    assert advice in status.reason


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("error: invalid partition specified: nowhere; sbatch: failed", "partition="),
        ("Invalid account or account/partition combination specified", "account="),
        ("Invalid qos specification", "qos="),
        ("Invalid feature specification", "constraint="),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time_limit="),
        ("Requested node configuration is not available", "cpus_per_node="),
        ("Memory specification can not be satisfied", "mem_per_node="),
        ("Invalid generic resource (gres) specification", "gpus_per_node="),
        ("Job violates accounting/QOS policy (job submit limit, … time limits)", "qos="),
        ("Unable to contact slurm controller (connect failure)", "scontrol ping"),
        ("The moon is in the wrong place", "launcher.script()"),
    ],
)
def test_a_refusal_of_sbatch_says_what_to_change(said, advice):
    assert advice in advice_on_refusal(f"sbatch: error: {said}")


@pytest.mark.parametrize(
    "reason",
    [
        "None",
        "Resources",
        "Priority",
        "PartitionDown",
        "ReqNodeNotAvail, UnavailableNodes:n1",
        "QOSMaxJobsPerUserLimit",
        "AssocMaxJobsLimit",
        "QOSGrpCpuLimit",
    ],
)
def test_a_request_that_may_be_met_later_waits(reason):
    assert QueuedJob("PENDING", reason, "").never_starts == ""


def test_a_job_that_runs_does_not_wait_for_anything():
    assert QueuedJob("RUNNING", "PartitionTimeLimit", "n1").never_starts == ""


def test_jobs_that_wait_are_told_together():
    assert who_waits({"5": "Resources"}) == (
        "1 job waits: 1 is PENDING (Resources), see: squeue -j 5"
    )
    assert who_waits({"5": "Resources", "6": "Priority", "7": "Priority"}) == (
        "3 jobs wait: 1 is PENDING (Resources), 2 are PENDING (Priority), see: squeue -j 5,6,7"
    )


@pytest.mark.parametrize(
    ("state", "reason", "code", "words"),
    [
        ("FAILED", "NonZeroExitCode", "3:0", "FAILED (NonZeroExitCode) on n1, exit code 3"),
        ("FAILED", "None", "0:9", "FAILED on n1, killed by signal 9 (out of memory?)"),
        ("TIMEOUT", "TimeLimit", "0:15", "TIMEOUT (TimeLimit) on n1, killed by signal 15: raise"),
        ("OUT_OF_MEMORY", "OutOfMemory", "0:125", "OUT_OF_MEMORY (OutOfMemory) on n1"),
        ("NODE_FAIL", "NodeDown", "1:0", "NODE_FAIL (NodeDown) on n1"),
        ("PREEMPTED", "None", "0:0", "PREEMPTED on n1"),
        ("CANCELLED", "None", "0:0", "CANCELLED on n1"),
    ],
)
def test_the_end_of_a_job_is_told_in_slurms_words(state, reason, code, words):
    status = read_end("7", ENDED_JOB.format(state=state, reason=reason, code=code))
    assert status.ended
    assert status.reason.startswith(f"job 7 ended as {words}")


def test_a_job_that_slurm_has_forgotten_may_still_run():
    assert read_end("7", "") == Status(False, "job 7 is not known to Slurm any more")
