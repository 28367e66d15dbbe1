"""A launcher that fails for a moment does not end the watch; doubts become losses in time."""

import queue

import pytest

from clusterenv.head import watch as watching
from clusterenv.head.watch import Ended, Watch
from clusterenv.launchers.base import Status

LONG_S = 20.0


@pytest.fixture
def watched():
    """Watch a launcher; the reports come in a queue of (host, why it ended)."""
    watches, reports = [], queue.Queue()

    def start(launcher, prepare=lambda watch: None):
        watches.append(Watch(launcher, lambda host, ended: reports.put((host, ended))))
        prepare(watches[-1])
        watches[-1].start()
        return reports

    yield start
    for watch in watches:
        watch.close()
        watch.join(LONG_S)
        assert not watch.is_alive()


class Engine:
    """Says of all hosts what it was told to say."""

    def __init__(self, watch_every_s=60.0, **by_host):
        self.watch_every_s = watch_every_s
        self._status = {name.replace("_", "-") + ".0": how for name, how in by_host.items()}

    def status(self):
        return self._status


class Shaky(Engine):
    """Fails twice before it says anything."""

    asked = 0

    def status(self):
        self.asked += 1
        if self.asked < 3:
            raise OSError("the engine is away")
        return super().status()


def test_a_lost_host_is_reported_although_the_launcher_failed_before(watched, caplog):
    reports = watched(Shaky(0.01, host_0=Status(True, "exit code 1"), host_1=Status(False)))
    assert reports.get(timeout=LONG_S) == ("host-0.0", Ended("exit code 1"))
    assert "could not say how the hosts are" in caplog.text


def test_a_lost_host_is_reported_once(watched):
    reports = watched(Engine(0.01, host_0=Status(True, "exit code 1")))
    reports.get(timeout=LONG_S)
    with pytest.raises(queue.Empty):
        reports.get(timeout=0.3)


def test_a_broken_connection_is_reported_with_what_the_engine_says(watched):
    engine = Engine(host_0=Status(False, "on node n1"))
    reports = watched(engine, lambda watch: watch.connection_broke("host-0.0"))
    host, ended = reports.get(timeout=LONG_S)
    assert host == "host-0.0"
    assert "its connection broke" in ended.reason
    assert "(on node n1)" in ended.reason


def test_where_the_engine_knows_better_its_words_count(watched, monkeypatch):
    monkeypatch.setattr(watching, "_ENGINE_MAY_TELL_S", LONG_S)
    engine = Engine(0.01, host_0=Status(True, "killed by SIGKILL on n1"))
    reports = watched(engine, lambda watch: watch.connection_broke("host-0.0"))
    assert reports.get(timeout=LONG_S) == ("host-0.0", Ended("killed by SIGKILL on n1"))


def test_who_was_enrolled_and_does_not_come_back_is_lost(watched):
    reports = watched(Engine(), lambda watch: watch.expect_within("host-0.0", 0.2))
    assert reports.get(timeout=LONG_S) == (
        "host-0.0",
        Ended("it was enrolled but did not come back within 0.2 s"),
    )


def test_who_came_back_in_time_is_not_lost(watched):
    def enrol(watch):
        watch.expect_within("host-0.0", 0.2)
        watch.arrived("host-0.0")

    with pytest.raises(queue.Empty):
        watched(Engine(), enrol).get(timeout=0.6)
