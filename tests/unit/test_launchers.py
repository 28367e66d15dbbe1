"""A launcher may be asked for its workers while others are started and stopped."""

import subprocess
import sys

import pytest

from clusterenv.launchers import in_process, local, processes
from clusterenv.launchers.base import Order, Status


class Restless:
    """A worker that is replaced by another in the middle of the question how it is."""

    def __init__(self, change):
        self._change = change

    def poll(self):
        self._change()

    def is_alive(self):
        self._change()
        return True


def test_the_local_launcher_can_be_watched_while_workers_come_and_go(tmp_path):
    # The crew's watcher asks from its own thread; an exception there would end it for good.
    launcher = local.LocalLauncher()
    children = launcher._children

    def replace():
        children["worker-0.1"] = children.pop("worker-0.0")

    for worker, change in [("worker-0.0", replace), ("worker-1.0", lambda: None)]:
        children[worker] = processes._Child(Restless(change), tmp_path / worker)
    assert launcher.status()["worker-1.0"] == Status(ended=False)


def test_the_in_process_launcher_can_be_watched_while_workers_come_and_go():
    launcher = in_process.InProcessLauncher()
    threads = launcher._threads

    def replace():
        threads["worker-0.1"] = threads.pop("worker-0.0")

    threads["worker-0.0"], threads["worker-1.0"] = Restless(replace), Restless(lambda: None)
    assert not launcher.status()["worker-1.0"].ended


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Start a script in the place of a worker."""
    launcher = local.LocalLauncher(log_dir=tmp_path / "logs", environment={"MARK": "x"})
    run = subprocess.Popen

    def start(script):
        def popen(command, **options):
            assert command == [sys.executable, "-m", "clusterenv", "worker"]
            return run([sys.executable, "-c", script], **options)

        monkeypatch.setattr(processes.subprocess, "Popen", popen)
        launcher.start([Order("worker-0.0", b"the invitation")])
        return launcher

    yield start
    launcher.stop(["worker-0.0"])


def ended(launcher):
    launcher._children["worker-0.0"].process.wait(60)
    return launcher.status()["worker-0.0"]


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
def test_the_end_of_a_worker_is_explained(launch, script, reason):
    assert ended(launch(script)) == Status(ended=True, reason=reason)


def test_a_worker_gets_its_invitation_on_standard_input_and_nowhere_else(launch):
    launcher = launch("print(input(), flush=True)")
    ended(launcher)
    assert launcher.logs("worker-0.0").strip() == "the invitation"


def test_a_worker_gets_the_environment_and_one_thread(launch):
    launcher = launch("import os; print(os.environ['MARK'], os.environ['OMP_NUM_THREADS'])")
    ended(launcher)
    assert launcher.logs("worker-0.0").strip() == "x 1"


def test_a_worker_that_was_stopped_is_forgotten(launch):
    launcher = launch("import time; time.sleep(600)")
    process = launcher._children["worker-0.0"].process
    launcher.stop(["worker-0.0"])
    assert process.poll() is not None
    assert launcher.status() == {}


def test_only_the_end_of_a_long_log_is_shown(launch):
    launcher = launch("print('a' * 100_000 + 'the end')")
    ended(launcher)
    log = launcher.logs("worker-0.0")
    assert log.endswith("the end\n")
    assert len(log) < 10_000


def test_the_log_of_an_unknown_worker_is_empty():
    assert local.LocalLauncher().logs("worker-9.0") == ""
