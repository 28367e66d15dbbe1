"""Host processes on this machine: what they are given, how their end is told."""

import subprocess
import sys
import time

import pytest

from clusterenv import children as child_processes
from clusterenv.bounded_log import BoundedLog
from clusterenv.launchers import in_process, local
from clusterenv.launchers.base import Order, Status


class Restless:
    """A host that is replaced by another in the middle of the question how it is."""

    def __init__(self, change):
        self._change, self.log = change, BoundedLog.open(None)

    def how_it_ended(self):
        self._change()


def test_the_local_launcher_can_be_watched_while_hosts_come_and_go():
    # The head's watcher asks from its own thread; an exception there would end it for good.
    launcher = local.LocalLauncher(hosts=2)
    children = launcher._children

    def replace():
        children["host-0.1"] = children.pop("host-0.0")

    for host, change in [("host-0.0", replace), ("host-1.0", lambda: None)]:
        children[host] = Restless(change)
    assert launcher.status()["host-1.0"] == Status(ended=False)


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Start a script in the place of a host."""
    launcher = local.LocalLauncher(1, log_dir=tmp_path / "logs", environment={"MARK": "x"})
    run = subprocess.Popen

    def start(script):
        def popen(command, **options):
            assert command == [sys.executable, "-m", "clusterenv", "host"]
            return run([sys.executable, "-c", script], **options)

        monkeypatch.setattr(child_processes.subprocess, "Popen", popen)
        launcher.start([Order("host-0.0", b"the invitation")])
        return launcher

    yield start
    launcher.stop(["host-0.0"])


def ended(launcher):
    launcher._children["host-0.0"].wait(time.monotonic() + 60)
    return launcher.status()["host-0.0"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("import os; os.kill(os.getpid(), 15)", "killed by SIGTERM"),
        ("import os; os.kill(os.getpid(), 40)", "killed by signal 40"),
    ],
    ids=["exit", "SIGKILL", "SIGTERM", "a signal without a name"],
)
def test_the_end_of_a_host_is_explained(launch, script, reason):
    assert ended(launch(script)) == Status(ended=True, reason=reason)


def test_a_host_gets_its_invitation_on_standard_input_and_nowhere_else(launch):
    launcher = launch("print(input(), flush=True)")
    ended(launcher)
    assert launcher.logs("host-0.0").strip() == "the invitation"


def test_a_host_gets_the_environment_and_all_cores(launch, monkeypatch):
    # Workers are limited to one thread each where they are started; the host is not.
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    launcher = launch("import os; print(os.environ['MARK'], os.environ.get('OMP_NUM_THREADS'))")
    ended(launcher)
    assert launcher.logs("host-0.0").strip() == "x None"


def test_a_host_that_was_stopped_is_forgotten(launch):
    launcher = launch("import time; time.sleep(600)")
    child = launcher._children["host-0.0"]
    launcher.stop(["host-0.0"])
    assert child.exit_code() is not None
    assert launcher.status() == {}


def test_only_the_end_of_a_long_log_is_shown(launch):
    launcher = launch("print('a' * 100_000 + 'the end')")
    ended(launcher)
    log = launcher.logs("host-0.0")
    assert log.endswith("the end\n")
    assert len(log) < 10_000


def test_the_log_of_an_unknown_host_is_empty():
    assert local.LocalLauncher().logs("host-9.0") == ""


def test_by_default_the_host_is_in_the_heads_process(tmp_path):
    launcher = local.LocalLauncher(log_dir=tmp_path, environment={"MARK": "x"})
    assert (launcher.num_hosts, launcher.workers_per_host) == (0, None)
    assert launcher.worker_environment == {"MARK": "x"}
    assert launcher.log_dir == tmp_path
    assert in_process.InProcessLauncher().num_hosts == 0


@pytest.mark.parametrize(("hosts", "workers"), [(1, 6), (2, 3), (4, 1), (9, 1)])
def test_hosts_share_the_cores_of_this_machine(monkeypatch, hosts, workers):
    monkeypatch.setattr(local, "cores", lambda: 6)
    launcher = local.LocalLauncher(hosts)
    assert (launcher.num_hosts, launcher.workers_per_host) == (hosts, workers)
