"""The launcher of local processes, which two threads of a head use at once."""

import threading

from clusterenv.launchers.base import Order
from clusterenv.launchers.local import LocalLauncher
from tests.integration.polling import eventually

# No invitation: a worker that gets this ends at once.
NOTHING = b"{}"


def test_the_status_can_be_asked_for_while_workers_come_and_go():
    launcher, done, errors = LocalLauncher(), threading.Event(), []

    def ask():
        while not done.is_set():
            try:
                launcher.status()
            except RuntimeError as error:
                errors.append(error)

    asking = threading.Thread(target=ask)
    stay = [f"stay-{number}" for number in range(4)]
    launcher.start([Order(worker, NOTHING) for worker in stay])
    asking.start()
    for number in range(12):
        launcher.start([Order(f"go-{number}", NOTHING)])
        launcher.stop([f"go-{number}"])
    done.set()
    asking.join()
    launcher.stop(stay)
    assert errors == []


def test_a_worker_that_ended_is_reported_with_its_exit_code_and_log():
    launcher = LocalLauncher()
    launcher.start([Order("worker", NOTHING)])
    assert eventually(lambda: launcher.status()["worker"].ended)
    assert launcher.status()["worker"].reason == "exit code 1"
    assert "does not hold a valid invitation" in launcher.logs("worker")
    launcher.stop(["worker"])


def test_a_stopped_worker_is_forgotten(own_tmp):
    launcher = LocalLauncher()
    launcher.start([Order("worker", NOTHING)])
    launcher.stop(["worker"])
    assert launcher.status() == {}
    assert launcher.logs("worker") == ""
    assert list(own_tmp.iterdir()) == []
