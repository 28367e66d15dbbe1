"""Ctrl-C takes effect at the end of a block, once, and as whoever handles it wants."""

import signal
import threading

import pytest

from clusterenv import interrupts
from clusterenv.interrupts import Uninterrupted


@pytest.fixture
def handled():
    """How often Ctrl-C was handled, by a handler that does not raise."""
    calls = []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append(signal.SIGINT))
    yield calls
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def raising(handled):
    """Ctrl-C raises KeyboardInterrupt, as it does by default."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def press():
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_takes_effect_at_the_end_of_the_block(raising):
    done = []
    with pytest.raises(KeyboardInterrupt), Uninterrupted(lambda: None):
        press()
        done.append("all of it")
    assert done == ["all of it"]


def test_ctrl_c_outside_takes_effect_at_once(raising):
    with Uninterrupted(lambda: None):
        pass
    with pytest.raises(KeyboardInterrupt):
        press()


def test_blocks_may_be_nested(handled):
    block = Uninterrupted(lambda: None)
    with block:
        with block:
            press()
        assert handled == []
    assert len(handled) == 1


def test_blocks_of_several_may_be_nested(handled):
    with Uninterrupted(lambda: None):
        with Uninterrupted(lambda: None):
            press()
        assert handled == []
    assert len(handled) == 1


def test_whoever_waits_within_is_woken(handled):
    woken = []
    with Uninterrupted(lambda: woken.append(True)):
        press()
        assert woken == [True]


def test_the_same_handler_is_there_afterwards(handled):
    before = signal.getsignal(signal.SIGINT)
    with Uninterrupted(lambda: None):
        press()
    assert signal.getsignal(signal.SIGINT) is before


def test_one_ctrl_c_is_handled_once(handled):
    block = Uninterrupted(lambda: None)
    with block:
        press()
    with block:
        pass
    assert len(handled) == 1


def test_an_impatient_ctrl_c_takes_effect_at_once(raising, monkeypatch):
    monkeypatch.setattr(interrupts, "_PATIENCE_S", -1.0)
    done = []
    with pytest.raises(KeyboardInterrupt), Uninterrupted(lambda: None):
        press()
        press()
        done.append("not even this")
    assert done == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("ignored", [signal.SIG_IGN])
def test_ctrl_c_that_is_ignored_stays_so(ignored, handled):
    signal.signal(signal.SIGINT, ignored)
    with Uninterrupted(lambda: None):
        assert signal.getsignal(signal.SIGINT) is ignored
        press()
    assert handled == []


def test_a_block_in_another_thread_leaves_ctrl_c_alone(raising):
    seen = []

    def run():
        with Uninterrupted(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
