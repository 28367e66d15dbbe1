"""What bears a mark is found and ended, wherever it is; nothing else is."""

import os
import subprocess
import sys
import time

import pytest

from clusterenv import strays
from clusterenv.strays import VARIABLE, Family, StrayWatch
from tests.integration.polling import eventually


@pytest.fixture
def start():
    """Starts a process in a session of its own, with these variables on top of our own."""
    started = []

    def start(**variables):
        environment = {**os.environ, **variables}
        command = ["sleep", "600"]
        child = subprocess.Popen(command, env=environment, start_new_session=True)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def has_ended(child):
    return eventually(lambda: child.poll() is not None)


def test_all_that_bear_a_mark_of_the_family_are_ended(start):
    family = Family()
    children = [start(**family.mark("worker-0.0")), start(**family.mark("worker-1.0"))]
    family.end()
    assert all(map(has_ended, children))


def test_one_member_s_strays_are_ended_and_no_others(start):
    family, other = Family(), Family()
    own = start(**family.mark("worker-1.1"))
    others = [
        start(**family.mark("worker-1.10")),
        start(**family.mark("worker-1.0")),
        start(**other.mark("worker-1.1")),
        start(OTHER=family.mark("worker-1.1")[VARIABLE]),
        start(),
    ]
    family.end("worker-1.1")
    assert has_ended(own)
    assert [child.poll() for child in others] == [None] * len(others)


def test_those_of_a_family_within_are_ended_too(start, monkeypatch):
    family = Family()
    monkeypatch.setenv(VARIABLE, family.mark("worker-0.0")[VARIABLE])
    inner = Family()
    child = start(**inner.mark("worker-3.0"))
    family.end("worker-0.1")
    assert child.poll() is None
    family.end("worker-0.0")
    assert has_ended(child)


def test_without_process_descriptors_it_works_too(start, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    family = Family()
    child = start(**family.mark("worker-0.0"))
    family.end()
    assert has_ended(child)


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_a_guardian_waits_for_the_end_of_the_worker(has_descriptors, start, monkeypatch):
    if not has_descriptors:
        monkeypatch.delattr(os, "pidfd_open")
    family = Family()
    mark = family.mark("worker-0.0")
    worker, stray = start(**mark), start(**mark)
    script = f"from clusterenv.strays import guard; guard({worker.pid}, {mark[VARIABLE]!r})"
    guardian = subprocess.Popen([sys.executable, "-c", script])
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            guardian.wait(1.0)
        assert stray.poll() is None
        worker.kill()
        worker.wait()
        assert has_ended(stray)
        assert has_ended(guardian)
    finally:
        guardian.kill()
        guardian.wait()


class Watching:
    """A watch in a worker of this name; it only writes down which guardians it would start."""

    def __init__(self, patch, mark):
        patch.setenv(VARIABLE, mark[VARIABLE])
        self.started = []
        self.watch = StrayWatch(lambda worker, mark: self.started.append((worker, mark)))

    def look(self, now):
        self.watch.look(now)
        return len(self.started)


def test_a_guardian_is_started_once_there_is_something_to_guard(start, monkeypatch):
    mark = Family().mark("worker-0.0")
    watching = Watching(monkeypatch, mark)
    start(OTHER="variable")
    # One that has just been started may not have its variables yet.
    assert eventually(lambda: watching.look(time.monotonic()) == 1)
    assert watching.started == [(os.getpid(), mark[VARIABLE])]
    assert watching.look(float("inf")) == 1


def test_what_ends_with_the_process_group_needs_no_guardian(monkeypatch):
    watching = Watching(monkeypatch, Family().mark("worker-0.0"))
    child = subprocess.Popen(["sleep", "600"])
    try:
        assert watching.look(0.0) == 0
    finally:
        child.kill()
        child.wait()


def test_looking_again_and_again_becomes_rare(start, monkeypatch):
    watching = Watching(monkeypatch, Family().mark("worker-0.0"))
    looks = []
    monkeypatch.setattr(strays, "_marked", lambda mark: looks.append(mark) or iter(()))
    start()
    for tick in range(200):
        watching.look(tick * 0.5)
    assert 3 < len(looks) < 12


def test_where_nobody_was_marked_there_is_nothing_to_watch(start, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    started = []
    watch = StrayWatch(lambda *arguments: started.append(arguments))
    start()
    watch.look(0.0)
    assert started == []
