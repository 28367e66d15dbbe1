"""Every loss is told once, with what is known of it; a flood of them is counted."""

import logging

import pytest

from clusterenv.head.loss_reports import LossReports
from clusterenv.host.events import Lost
from clusterenv.restarts import explained
from clusterenv.sharing import in_words
from clusterenv.sync.ledger import Ledger

HOST = "host-1.0"


class Scene:
    def __init__(self, caplog):
        self.now, self.ledger, self._caplog = 0.0, Ledger(), caplog
        self.reports = LossReports(self.ledger, lambda: self.now)

    def lose(self, log="", reason="exit code 3", who="worker-2.0", **rest):
        obituary = f"{who} (pid 7) was lost: {reason} while the env of slot 4 was running"
        self.reports.note(HOST, Lost((4, 5), reason, obituary + log, (), who=who, slot=4, **rest))

    @property
    def told(self):
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def scene(caplog):
    with caplog.at_level(logging.WARNING, "clusterenv"):
        yield Scene(caplog)


def test_a_loss_is_told_with_host_worker_slot_and_the_end_of_its_log(scene):
    scene.lose("\nThe end of the log of worker-2.0:\nboom")
    (told,) = scene.told
    first, *log = told.splitlines()
    assert first.startswith("host-1.0: worker-2.0 (pid 7) was lost: exit code 3 while the env of")
    assert log == ["The end of the log of worker-2.0:", "boom"]


def test_a_loss_is_in_the_ledger(scene):
    scene.lose()
    (loss,) = scene.ledger.losses
    assert (loss.host, loss.worker, loss.slots, loss.slot) == (HOST, "worker-2.0", (4, 5), 4)
    assert scene.ledger.losses_by_reason == {"exit code 3": 1}
    assert scene.ledger.losses_by_host == {HOST: 1}


def test_a_lost_host_is_told_as_such(scene):
    scene.lose(who=HOST)
    assert scene.told[0].startswith("host-1.0 (pid 7) was lost")
    assert scene.ledger.losses[0].worker == ""


def test_what_was_told_before_is_not_told_again(scene):
    scene.lose(who="")
    assert scene.told == scene.ledger.losses == []


def test_what_becomes_an_error_is_recorded_and_not_told_twice(scene):
    scene.lose(error="it cannot be replaced")
    assert scene.told == []
    assert len(scene.ledger.losses) == 1


def test_many_losses_are_told_in_part_and_counted(scene):
    for _ in range(50):
        scene.lose()
    assert len(scene.told) == 10
    assert "envs.ledger.losses" in scene.told[-1]
    assert len(scene.ledger.losses) == 50
    scene.now = 61.0
    scene.lose()
    assert "(40 warnings before this one were left out)" in scene.told[-1]
    scene.lose()
    assert "left out" not in scene.told[-1]


def test_of_a_long_log_the_end_is_told(scene):
    scene.lose("\nThe end of the log:\n" + "\n".join(f"line {n}" + "x" * 9999 for n in range(999)))
    (told,) = scene.told
    assert "The end of the log" in told
    assert "line 998" in told
    assert len(told) < 20_000


def test_what_a_terminal_would_obey_is_not_told(scene):
    scene.lose("\nThe end of the log:\n\x1b[2Jgone")
    assert "\x1b" not in scene.told[0]


def test_an_env_that_spends_the_restarts_of_two_workers_is_to_blame(scene):
    assert [scene.reports.is_to_blame(slot) for slot in (3, 4, 3)] == [False, False, True]
    assert not any(scene.reports.is_to_blame(None) for _ in range(3))


@pytest.mark.parametrize("reason", ["killed by SIGKILL", "killed by SIGKILL on ssh host a"])
def test_a_kill_that_nobody_explains_may_be_the_kernels(reason):
    assert "for lack of memory" in explained(reason)


@pytest.mark.parametrize(
    "reason", ["exit code 3", "killed by SIGKILL: this machine ran out of memory meanwhile"]
)
def test_what_explains_itself_is_left_as_it_is(reason):
    assert explained(reason) == reason


@pytest.mark.parametrize(
    ("slots", "words"),
    [((3,), "slot 3"), ((4, 5, 6), "slots 4 to 6"), ((1, 3), "slots 1, 3"), ((), "no slots")],
)
def test_slots_are_named_in_few_words(slots, words):
    assert in_words(slots) == words


def test_what_a_terminal_would_obey_is_not_in_the_ledger(scene):
    scene.lose(reason="\x1b[2Jexit\rcode 3")
    assert scene.ledger.losses_by_reason == {"?[2Jexit?code 3": 1}
    assert scene.ledger.losses[0].reason == "?[2Jexit?code 3"
