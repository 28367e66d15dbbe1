"""A bell wakes whoever polls it, however often it was rung."""

import os
import select

import pytest

from clusterenv.bell import Bell, clear, ring


@pytest.fixture(params=["eventfd", "pipe", "hands over"])
def bell(request, monkeypatch):
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd", raising=False)
    elif not hasattr(os, "eventfd"):
        pytest.skip("this system has no eventfd")
    bell = Bell(hands_over=request.param == "hands over")
    yield bell
    bell.close()


def is_ringing(bell):
    return bool(select.select([bell.fd], [], [], 0)[0])


def test_a_new_bell_is_silent(bell):
    assert not is_ringing(bell)


def test_a_rung_bell_rings_until_it_is_cleared(bell):
    bell.ring()
    assert is_ringing(bell)
    assert is_ringing(bell)
    bell.clear()
    assert not is_ringing(bell)


@pytest.mark.parametrize("rings", [2, 100, 20_000])
def test_clearing_once_forgets_every_ring(bell, rings):
    for _ in range(rings):
        bell.ring()
    bell.clear()
    assert not is_ringing(bell)


def test_clearing_a_silent_bell_does_not_wait(bell):
    bell.clear()
    assert not is_ringing(bell)


def test_a_bell_is_rung_through_its_descriptors_alone(bell):
    ring(bell.ring_fd)
    assert is_ringing(bell)
    clear(bell.fd)
    assert not is_ringing(bell)


def test_closing_gives_every_descriptor_back(bell):
    other = Bell()
    descriptors = {other.fd, other.ring_fd}
    other.close()
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
