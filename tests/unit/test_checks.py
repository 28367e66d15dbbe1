"""Facts → findings, without a machine that is in trouble."""

import msgspec
import pytest

from clusterenv.errors import StartupError
from clusterenv.launchers.local import LocalLauncher
from clusterenv.tools.checks import explanations, machine
from clusterenv.tools.checks.findings import (
    OK,
    PROBLEM,
    WARNING,
    has_problems,
    ok,
    problem,
    size,
    verdict,
)
from clusterenv.tools.checks.machine_checks import check_machine, check_threads
from clusterenv.tools.launcher_choice import launcher_from

GB = 1 << 30
WELL = machine.MachineFacts(
    name="here",
    pid=1,
    versions={"python": "3.11.2", "numpy": "2.1.0", "gymnasium": "1.1.0", "clusterenv": "0.1.0"},
    address="127.0.0.1",
    cores=8,
    cpu_limit=None,
    memory_limit_bytes=None,
    memory_used_bytes=0,
    shm_bytes=GB,
    shm_free_bytes=GB,
    open_files_limit=4096,
    threads={"OMP_NUM_THREADS": "1"},
)


def levels(facts, num_workers=4):
    return [f.level for f in check_machine(facts, num_workers)]


def test_nothing_is_wrong_with_a_machine_that_is_well():
    assert set(levels(WELL)) == {OK}
    assert check_threads(WELL).level == OK


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        ({"address": ""}, WARNING, "'here' cannot be resolved"),
        ({"shm_free_bytes": 1 << 20}, WARNING, "--shm-size"),
        ({"open_files_limit": 64}, PROBLEM, "ulimit -n"),
        ({"cores": 2}, WARNING, "num_workers=2"),
        ({"cpu_limit": 1.5}, WARNING, "num_workers=1"),
        ({"memory_limit_bytes": GB, "memory_used_bytes": GB - 1}, WARNING, "mem_per_node="),
    ],
)
def test_each_trouble_is_found_and_says_what_to_do(change, level, said):
    findings = list(check_machine(msgspec.structs.replace(WELL, **change), 4))
    wrong = [finding for finding in findings if finding.level != OK]
    assert [finding.level for finding in wrong] == [level]
    assert said in str(wrong[0])
    assert wrong[0].to_do


@pytest.mark.parametrize("value", ["", "8"])
def test_threads_that_would_fight_are_found(value):
    facts = msgspec.structs.replace(WELL, threads={"OMP_NUM_THREADS": value})
    assert check_threads(facts).level == WARNING


def test_limits_of_cgroups_are_found_in_both_versions(tmp_path):
    inner = tmp_path / "user" / "job"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("1000\n")
    (inner.parent / "memory.current").write_text("400\n")
    (inner / "cpu.max").write_text("150000 100000\n")
    folders = machine.cgroup_folders("0::/user/job\n", tmp_path)
    assert machine.memory_limit(folders) == (1000, 400)
    assert machine.cpu_limit(folders) == 1.5
    old = tmp_path / "memory" / "docker"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (old / "cpu.cfs_quota_us").write_text("-1\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    folders = machine.cgroup_folders("4:memory:/docker\n", tmp_path)
    assert machine.memory_limit(folders) == (None, 0)
    assert machine.cpu_limit(folders) is None


def test_the_facts_of_this_machine_can_be_had():
    facts = machine.machine_facts()
    assert facts.cores >= 1
    assert machine.memory_trouble(0) == ""
    # Not tried out: that would have the kernel kill processes.
    assert machine.memory_trouble(1 << 62).endswith("MB of memory are available")


def test_versions_that_differ_without_harm_are_a_warning():
    other = {**WELL.versions, "numpy": "2.0.1"}
    assert explanations.compare_versions(WELL.versions, WELL.versions, "there").level == OK
    assert explanations.compare_versions(WELL.versions, other, "there").level == WARNING
    other["numpy"] = "1.26.0"
    assert explanations.compare_versions(WELL.versions, other, "there").level == PROBLEM


def test_a_machine_without_workers_needs_no_cores():
    assert levels(msgspec.structs.replace(WELL, cores=1), 0) == [OK] * 3


@pytest.mark.parametrize(
    ("error", "what", "to_do"),
    [
        (StartupError("it was lost", refused="numpy 1.9 on the host, 2.1 on the head"),
         "numpy 1.9 on the host, 2.1 on the head", "pip install"),
        (StartupError("it was lost: exit code 1\nNo module named clusterenv", unreached="tcp://h:1"),
         "no clusterenv", "python="),
        (StartupError("0 of 1 hosts came", unreached="tcp://[::1]:77"),
         "through to [::1]:77", "nc -vz [::1] 77"),
        (StartupError("host-0.0 was lost: killed by SIGKILL"), "SIGKILL", "log"),
        (OSError("no memory"), "no memory", "log"),
        (StartupError("cannot submit a job for a host: sbatch: no\nuse `sinfo`; or: pray"),
         "a host: sbatch: no", "use `sinfo`; or: pray"),
        (StartupError("host-0.0 cannot start: job 7 would wait for ever: a: ask for less"),
         "would wait for ever", "a: ask for less"),
        (StartupError("host-2.0 cannot start: it has 2: no room for 4 steps; ask for more; or 2"),
         "no room for 4 steps", "ask for more; or 2"),
    ],
)  # fmt: skip
def test_a_failed_start_is_explained(error, what, to_do):
    finding = explanations.explain_startup(error)
    assert finding.level == PROBLEM
    assert what in finding.what
    assert to_do in finding.to_do
    assert to_do == "log" or to_do not in finding.what


def test_slow_lines_and_wrong_clocks_are_warnings():
    assert explanations.judge_line(1e-4, 1e9, 1e9, "there").level == OK
    assert "rollout" in explanations.judge_line(0.02, 1e9, 1e9, "there").to_do
    assert "bf16" in explanations.judge_line(1e-4, 1e9, 1e6, "there").to_do
    assert explanations.judge_clock(0.5, 1e-3, "there").level == OK
    assert explanations.judge_clock(-3.0, 1e-3, "there").level == WARNING
    assert explanations.judge_clock(3.0, 5.0, "there").level == OK


def test_a_module_is_installed_under_the_name_of_its_package():
    assert explanations.pip_name("cv2") == "opencv-python"
    assert explanations.pip_name("my_envs.maze") == "my_envs"


def test_the_last_line_counts():
    assert verdict([ok("a")]) == "all is well"
    assert verdict([ok("a"), problem("b", "c")]) == "1 problem(s), 0 warning(s)"
    assert has_problems([problem("b", "c")])
    assert str(problem("b", "c")) == "problem: b -> c"
    assert size(1536) == "1.5 KB"


def test_a_launcher_can_be_written_as_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(launcher_from("local"), LocalLauncher)
    made = launcher_from("clusterenv:LocalLauncher(environment={'A': '1'})")
    assert made.environment()["A"] == "1"
    with pytest.raises(ValueError, match="no name, and no call with literals"):
        launcher_from("clusterenv.launchers.local:LocalLauncher.start")
    with pytest.raises(ValueError, match="nothere"):
        launcher_from("clusterenv.launchers.local:nothere")
