"""`python -m clusterenv doctor` finds what is wrong, under real conditions, and says what to do."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IS_ROOT = os.geteuid() == 0


def may(*command):
    """Whether this machine lets us do that."""
    if not IS_ROOT or shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


MAY_BLOCK = may("unshare", "-n", "nft", "list", "ruleset")
MAY_MOUNT = may("unshare", "-m", "true")


@pytest.fixture
def doctor(tmp_path):
    """Run it with one worker, in a folder of its own: exit code and lines."""

    def run(*arguments, prefix=()):
        command = [sys.executable, "-m", "clusterenv", "doctor", "--num-workers", "1"]
        done = subprocess.run(
            [*prefix, *command, "--megabytes", "1", *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            timeout=100,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    return run


@pytest.fixture
def worker_with(tmp_path):
    """`--launcher` for workers whose Python runs `code` first."""

    def write(code, hosts=None):
        site = tmp_path / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(code)
        path = os.pathsep.join([str(site), str(ROOT / "src")])
        (tmp_path / "odd.py").write_text(
            "from clusterenv.launchers.local import LocalLauncher\n"
            f"launcher = LocalLauncher({hosts}, environment={{'PYTHONPATH': {path!r}}})\n"
        )
        return "--launcher", "odd:launcher"

    return write


def only(lines, level):
    return [line for line in lines if line.startswith(f"{level}: ")]


def the(lines, level, topic):
    found = [line for line in only(lines, level) if line.startswith(f"{level}: {topic}")]
    assert len(found) == 1, lines
    assert " -> " in found[0] or level == "ok", found
    return found[0]


def test_a_machine_that_is_well_is_told_so(doctor):
    code, lines = doctor("--env", "CartPole-v1", "--num-envs", "4")
    assert code == 0, lines
    assert not only(lines, "problem")
    assert "built in" in the(lines, "ok", "env: CartPole-v1 works")
    assert "for the rows of 4 envs can be had" in the(lines, "ok", "shared memory")
    assert the(lines, "ok", "port: none is needed")
    assert "MB/s" in "".join(lines)
    assert the(lines, "ok", "clock")
    assert the(lines, "ok", "threads")


def test_a_port_that_is_taken_is_found(doctor):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, lines = doctor("--port", port)
    assert code == 1
    line = the(lines, "problem", "port")
    assert f"127.0.0.1:{port}" in line
    assert "ss -ltnp" in line


@pytest.mark.skipif(not MAY_BLOCK, reason="NOT TESTED: a firewall needs root, unshare and nft")
def test_a_blocked_port_is_found(doctor):
    rules = "table inet t { chain c { type filter hook input priority 0; tcp dport 7123 drop; }; }"
    fenced = ["unshare", "-n", "sh", "-c", f'ip link set lo up; nft "{rules}"; exec "$@"', "sh"]
    code, lines = doctor("--port", "7123", prefix=fenced)
    assert code == 1
    assert "127.0.0.1:7123 is open, but nothing gets through" in the(lines, "problem", "port")
    assert "firewall blocks tcp port 7123" in the(lines, "problem", "port")
    assert doctor("--port", "7124", prefix=fenced)[0] == 0


@pytest.mark.skipif(not MAY_BLOCK, reason="NOT TESTED: a host without network needs unshare -n")
def test_a_host_that_cannot_reach_the_head_is_found(doctor, tmp_path):
    (tmp_path / "cut_off.py").write_text(
        "from clusterenv.launchers.local import LocalLauncher\n"
        "class CutOff(LocalLauncher):\n"
        "    def __init__(self):\n"
        "        super().__init__(hosts=1)\n"
        "    def command(self, host):\n"
        "        return ['unshare', '-n', *super().command(host)]\n"
    )
    code, lines = doctor("--launcher", "cut_off:CutOff", "--timeout", "5")
    assert code == 1
    assert "do not get through to 127.0.0.1:" in the(lines, "problem", "route")
    assert "advertise_host=" in the(lines, "problem", "route")


def test_an_advertised_name_that_cannot_be_resolved_is_found(doctor):
    code, lines = doctor("--advertise-host", "no-such-host.invalid")
    assert code == 1
    line = the(lines, "problem", "advertised name")
    assert "'no-such-host.invalid' cannot be resolved" in line
    assert "/etc/hosts" in line


@pytest.mark.parametrize("hosts", [None, 1])
def test_a_host_of_another_version_is_found(doctor, worker_with, hosts):
    patch = "import clusterenv.wire.versions as v\nv.__version__ = '9.9.9'\n"
    code, lines = doctor(*worker_with(patch, hosts))
    assert code == 1
    line = the(lines, "problem", "versions")
    assert "clusterenv 9.9.9 on the host" in line
    assert "pip install" in line or hosts is None


def test_each_host_of_its_own_is_looked_at(doctor):
    launcher = "clusterenv:LocalLauncher(hosts=2)"
    code, lines = doctor("--launcher", launcher, "--num-workers", "2", "--env", "CartPole-v1")
    assert code == 0, lines
    looked_at = [line.split()[2] for line in lines if line.startswith("ok: line: ")]
    assert looked_at == ["host-0.0", "host-1.0"]
    assert "leads back to this machine" in the(lines, "ok", "route")
    assert the(lines, "ok", "env: CartPole-v1 works")


def test_a_package_that_only_the_worker_lacks_is_found(doctor, worker_with):
    without = "import sys\nsys.modules['Box2D'] = None\n"
    code, lines = doctor("--env", "LunarLander-v3", *worker_with(without))
    assert code == 1
    line = the(lines, "problem", "env: LunarLander-v3 needs the package 'Box2D'")
    assert "pip install 'gymnasium[box2d]'" in line


def test_a_package_that_is_nowhere_is_named(doctor, tmp_path):
    (tmp_path / "registry.py").write_text(
        "import gymnasium\ngymnasium.register('Odd-v0', 'no_such_package.envs:Odd')\n"
    )
    code, lines = doctor("--env", "registry:Odd-v0")
    assert code == 1
    assert "pip install 'no_such_package'" in the(lines, "problem", "env")


@pytest.mark.parametrize(
    ("does", "said"),
    [("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"), ("time.sleep(60)", "no progress within")],
)
def test_an_env_that_ends_or_hangs_its_worker_is_found(doctor, tmp_path, does, said):
    (tmp_path / "deadly.py").write_text(
        "import os, signal, time, gymnasium\n"
        "class Deadly(gymnasium.Env):\n"
        f"    def __init__(self):\n        {does}\n"
        "gymnasium.register('Deadly-v0', Deadly)\n"
    )
    code, lines = doctor("--env", "deadly:Deadly-v0", "--timeout", "10")
    assert code == 1
    line = the(lines, "problem", "env: deadly:Deadly-v0 ends or hangs its worker")
    assert said in line


def test_a_launcher_whose_engine_is_not_there_is_found(doctor):
    launcher = "clusterenv.launchers.ssh:SshLauncher(['nowhere'], ssh=['false'])"
    code, lines = doctor("--launcher", launcher)
    assert code == 1
    assert "ssh knows no address of 'nowhere'" in the(lines, "problem", "launcher")


def test_an_env_that_nobody_knows_is_found(doctor):
    code, lines = doctor("--env", "NoSuchEnv-v0")
    assert code == 1
    assert "MODULE:ID" in the(lines, "problem", "env")


@pytest.mark.skipif(not MAY_MOUNT, reason="NOT TESTED: a small /dev/shm needs root and unshare")
def test_a_small_dev_shm_is_found(doctor):
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    code, lines = doctor(prefix=["unshare", "-m", "sh", "-c", mount, "sh"])
    line = the(lines, "warning", "/dev/shm: 1 MB of 1 MB are free")
    assert "--shm-size" in line
    assert code == 0, "ClusterEnv itself does not need it"


def test_shared_memory_that_cannot_be_had_is_found(doctor):
    limit = ["sh", "-c", 'ulimit -f 4096; exec "$@"', "sh"]
    code, lines = doctor("--env", "CartPole-v1", "--num-envs", "1000000", prefix=limit)
    assert code == 1
    line = the(lines, "problem", "shared memory")
    assert "for the rows of 1000000 envs cannot be had" in line
    assert "fewer envs" in line


def test_few_open_files_are_found(doctor):
    code, lines = doctor(prefix=["sh", "-c", 'ulimit -n 100; exec "$@"', "sh"])
    assert code == 1
    assert "ulimit -n 4096" in the(lines, "problem", "open files")


def test_a_launcher_that_does_not_exist_is_named(doctor):
    code, lines = doctor("--launcher", "nowhere:Launcher")
    assert code == 1
    assert "No module named 'nowhere'" in the(lines, "problem", "arguments")
