"""A thread can tell where it runs, and go elsewhere without being bound there."""

import os

import pytest

from clusterenv.wire.cores import UNKNOWN, current_core, move_to


@pytest.fixture
def allowed():
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


def test_a_thread_runs_where_it_may(allowed):
    core = min(allowed)
    os.sched_setaffinity(0, {core})
    assert current_core() == core


def test_a_thread_is_free_to_go_after_a_move(allowed):
    for core in sorted(allowed) * 2:
        move_to(core)
        assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize("core", [UNKNOWN, 1 << 20])
def test_nobody_goes_where_there_is_no_core(allowed, core):
    move_to(core)
    assert os.sched_getaffinity(0) == allowed


def test_a_thread_stays_where_it_is_bound_to(allowed):
    if len(allowed) < 2:
        pytest.skip("there is only one core")
    here, there = sorted(allowed)[:2]
    os.sched_setaffinity(0, {here})
    move_to(there)
    assert (current_core(), os.sched_getaffinity(0)) == (here, {here})


def test_a_thread_goes_on_where_it_is_if_moving_is_forbidden(allowed, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    for core in allowed:
        move_to(core)


def test_a_thread_gets_there(allowed, monkeypatch):
    # Where it is once it may run anywhere again is the kernel's business: look before.
    places, bind = [], os.sched_setaffinity

    def note(pid, cores):
        bind(pid, cores)
        places.append(current_core())

    monkeypatch.setattr(os, "sched_setaffinity", note)
    monkeypatch.setattr("clusterenv.wire.cores.current_core", lambda: UNKNOWN)
    for core in allowed:
        places.clear()
        move_to(core)
        assert places[0] == core
