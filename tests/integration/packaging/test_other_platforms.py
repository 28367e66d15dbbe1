"""What is said and what works without Linux: by simulation, for no such machine is at hand.

A process in which ``lacking.py`` has taken away what macOS or Windows lacks shows that nothing of
ours needs it. That NumPy, ZeroMQ and the rest work there is their makers' promise, and the kernel
below is still Linux: a run on a real one may find more.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import clusterenv

HERE = Path(__file__).parent
# Without the extras: what PyTorch or Ray do elsewhere is not simulated.
PUBLIC = """
import sys, clusterenv
for extra in "ale_py envpool jax kubernetes ray torch".split():
    sys.modules[extra] = None
for name in clusterenv.__all__:
    try:
        getattr(clusterenv, name)
    except ImportError as error:
        assert "pip install" in str(error), (name, error)
"""
OPENED = "import clusterenv; clusterenv.ClusterEnv('CartPole-v1', 2, launcher={})"
TOOL = "from clusterenv.tools.main import main; main([{!r}])"


def run_on(platform, script, *arguments, tmp_path=None):
    if tmp_path is not None:
        (tmp_path / "script.py").write_text(script)
        script = tmp_path / "script.py"
    return subprocess.run(
        [sys.executable, HERE / "lacking.py", platform, script, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def last_line(done):
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_every_public_name_can_be_imported(platform, tmp_path):
    done = run_on(platform, PUBLIC, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr


def test_workers_that_are_threads_need_no_linux():
    done = run_on("darwin", HERE / "trial.py", "in-process")
    assert (done.returncode, done.stdout) == (0, "in-process: ok\n"), done.stderr


@pytest.mark.parametrize("launcher", ["'local'", "clusterenv.LocalLauncher(hosts=2)"])
def test_workers_that_are_processes_need_linux_and_the_error_says_what_to_do(launcher, tmp_path):
    done = run_on("darwin", OPENED.format(launcher), tmp_path=tmp_path)
    assert last_line(done) == (
        "clusterenv.errors.StartupError: workers that are processes need Linux: darwin lacks "
        "os.memfd_create, os.posix_fallocate, /proc; use launcher='in-process' here, or hosts on "
        "Linux machines (SshLauncher, …)"
    )


@pytest.mark.parametrize("launcher", ["'local'", "'in-process'"])
def test_windows_is_refused_with_one_error(launcher, tmp_path):
    done = run_on("win32", OPENED.format(launcher), tmp_path=tmp_path)
    assert last_line(done) == (
        "clusterenv.errors.StartupError: ClusterEnv needs Linux, or macOS with "
        "launcher='in-process': win32 lacks fcntl, os.register_at_fork, os.sched_yield, resource, "
        "select.poll; on Windows, use it within WSL 2"
    )


@pytest.mark.parametrize("command", ["host", "top"])
def test_commands_that_need_linux_say_so(command, tmp_path):
    done = run_on("darwin", TOOL.format(command), tmp_path=tmp_path)
    assert done.returncode == 2
    assert f"error: {command}: workers that are processes need Linux: " in last_line(done)


def test_the_version_is_told_everywhere(tmp_path):
    done = run_on("win32", TOOL.format("--version"), tmp_path=tmp_path)
    assert done.stdout == f"clusterenv {clusterenv.__version__}\n", done.stderr


def test_what_is_taken_away_is_gone(tmp_path):
    script = "import os, clusterenv.platforms as p; print(p.lacking_for_workers()); os.memfd_create"
    done = run_on("darwin", script, tmp_path=tmp_path)
    assert done.stdout == "['os.memfd_create', 'os.posix_fallocate', '/proc']\n"
    assert "has no attribute 'memfd_create'" in last_line(done)
