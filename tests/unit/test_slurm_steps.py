"""Steps of an allocation: who finds no room in it is told at once, or as soon as Slurm shows it."""

import pytest

from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.slurm import steps as slurm_steps
from clusterenv.launchers.slurm.allocation import Allocation
from clusterenv.launchers.slurm.commands import SlurmError
from clusterenv.launchers.slurm.steps import SlurmSteps
from clusterenv.launchers.slurm.text import JobRequest

CORES = "SLURM_JOB_CPUS_PER_NODE"


@pytest.mark.parametrize(
    ("nodes", "cores", "room"),
    [
        ("4(x2)", 4, 2),
        ("4(x2)", 3, 2),
        ("4(x2),8", 4, 4),
        ("4(x2),8", None, 3),
        ("16", 1, 16),
        ("2", 3, 0),
    ],
)
def test_an_allocation_has_room_for_whole_steps_on_each_node(nodes, cores, room):
    allocation = Allocation.of({CORES: nodes})
    assert allocation.room(cores) == room
    assert allocation.refusal(room, cores) == ""
    assert allocation.refusal(room + 1, cores) != ""


@pytest.mark.parametrize(
    ("nodes", "steps", "cores", "words"),
    [
        (
            "4(x2)", 4, 4, "the allocation has 2 nodes (8 cores): no room for 4 steps of 4 cores; "
            "ask for more, or give the launcher nodes=2",
        ),
        (
            "1", 2, None, "the allocation has 1 node (1 core): no room for 2 steps of a whole node "
            "each; ask for more, or give the launcher nodes=1",
        ),
        (
            "4(x2)", 1, 8, "the allocation has 2 nodes of at most 4 cores: no room for a step of 8 "
            "cores; ask for more, or give the launcher a smaller cpus_per_node=",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_what_there_is_and_what_to_do(nodes, steps, cores, words):
    assert Allocation.of({CORES: nodes}).refusal(steps, cores) == words


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({}, ()),
        ({CORES: "many"}, ()),
        ({CORES: "1"}, ("--overlap",)),
        ({CORES: "1"}, ("--het-group=1",)),
        ({CORES: "1", "SLURM_OVERCOMMIT": "1"}, ()),
    ],
)
def test_what_nobody_can_count_is_left_to_slurm(environment, options):
    assert Allocation.of(environment, options).refusal(99, 4) == ""


class Sleeping(SlurmSteps):
    """Whose srun sleeps until its standard input is closed."""

    def command(self, host):
        return ["cat"]


@pytest.fixture
def allocated(monkeypatch):
    """As in an allocation of two nodes with four cores each."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv(CORES, "4(x2)")
    monkeypatch.setattr(slurm_steps, "_PATIENCE_S", 0.0)


@pytest.fixture
def shown(monkeypatch, allocated):
    """The names of the steps that Slurm shows; None while it does not answer."""
    names = {"names": []}

    def steps_of(job):
        assert job == "77"
        if names["names"] is None:
            raise SlurmError("squeue: Unable to contact slurm controller")
        return [(f"77.{number}", name) for number, name in enumerate(names["names"])]

    monkeypatch.setattr(slurm_steps, "steps_of", steps_of)
    return names


@pytest.fixture
def launch(shown, tmp_path):
    opened = []

    def launch(*hosts, **request):
        steps = Sleeping(JobRequest(**request), {}, tmp_path)
        opened.append((steps, hosts))
        steps.start([Order(host, b"") for host in hosts])
        return steps

    yield launch
    for steps, hosts in opened:
        steps.stop(hosts)
        assert steps.status() == {}


def test_hosts_for_which_the_allocation_has_no_room_end_at_once_and_the_others_run(launch):
    steps = launch("a", "b", "c", "d", cpus_per_node=4)
    status = steps.status()
    assert sorted(host for host, one in status.items() if one.ended) == ["c", "d"]
    assert status["d"].is_queued
    assert status["d"].reason.startswith("the allocation has 2 nodes (8 cores): no room for 4")
    assert steps.logs("d") == ""


def test_a_replacement_is_left_to_slurm(launch):
    steps = launch("a.0", "b.0")
    steps.stop(["a.0"])
    steps.start([Order("a.1", b"")])
    assert not steps.status()["a.1"].ended
    steps.stop(["a.1"])


def test_a_step_that_slurm_does_not_show_waits_for_room(launch, shown):
    shown["names"] = ["a"]
    steps = launch("a", "b")
    status = steps.status()
    assert status["a"] == Status(False, "srun runs it in job 77")
    words = "its step waits for room in job 77, see: squeue --me -s"
    assert status["b"] == Status(False, words, is_queued=True)
    shown["names"] = ["a", "b"]
    assert steps.status()["b"] == Status(False, "srun runs it in job 77")


def test_while_slurm_is_silent_no_step_is_said_to_wait(launch, shown):
    shown["names"] = None
    assert not launch("a").status()["a"].is_queued


def test_a_step_that_was_shown_is_not_asked_for_again(launch, shown):
    shown["names"] = ["a"]
    steps = launch("a")
    steps.status()
    shown["names"] = []
    assert not steps.status()["a"].is_queued
