"""The numbers of a run reach its logs and its progress line as they are."""

import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import clusterenv.logging
from clusterenv import Episodes, Fragment, Ledger
from clusterenv.logging import Progress, fragment_scalars, ledger_scalars
from clusterenv.logging.lines import NotebookLine, PlainLines, drawn_bar, is_in_notebook
from clusterenv.rollout import Finals


@dataclass
class Args:
    out: Path = Path("runs/x")
    learning_rate: float = 5e-4
    target_return: float = math.inf


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Kept:
    """A log of the user's own: a list of what came."""

    def __init__(self):
        self.points, self.opened, self.ends = [], [], []

    def open(self, hyperparameters, first_step):
        self.opened.append((hyperparameters, first_step))

    def scalars(self, step, values):
        self.points += [(step, name, value) for name, value in values.items()]

    def close(self, *, failed):
        self.ends.append(failed)


class Unreachable(Kept):
    def open(self, hyperparameters, first_step):
        raise ConnectionError("no such server")


def fragment(versions=(3, 5), returns=(1.5, -2.0), lengths=(7, 9)):
    """Four steps of two slots: an episode ends in slot 1, and in each step after that."""
    zeros, count = np.zeros((4, 2), np.float32), len(returns)
    places, columns = np.arange(count), np.arange(1, count + 1) % 2
    return Fragment(
        slots=np.array([0, 1]),
        versions=np.tile(versions, (4, 1)),
        observations=np.zeros((5, 2, 3), np.float32),
        actions=zeros,
        rewards=zeros,
        terminated=zeros.astype(bool),
        truncated=zeros.astype(bool),
        outputs={},
        distribution={},
        last_values=None,
        state=None,
        finals=Finals(places, columns, np.zeros((count, 3), np.float32), None),
        episodes=Episodes(columns, np.array(returns), np.array(lengths)),
    )


def ledger():
    ledger = Ledger()
    ledger.record_version(4, 1000)
    ledger.record_pull("host-0", 4, held=0, cause="first", num_bytes=500, threshold=0.1)
    ledger.count("Weights", 510)
    return ledger


# Names and numbers.


def test_each_ended_episode_and_the_version_that_acted_become_scalars():
    assert fragment_scalars(fragment(), newest=6) == [
        {"charts/episodic_return": 1.5, "charts/episodic_length": 7},
        {"charts/episodic_return": -2.0, "charts/episodic_length": 9},
        {"charts/version": 6, "charts/version_lag": 3},
    ]


def test_a_fragment_in_which_no_episode_ended_has_its_version_only():
    assert fragment_scalars(fragment(returns=(), lengths=()), newest=5) == [
        {"charts/version": 5, "charts/version_lag": 2}
    ]


def test_a_fragment_of_tensors_has_the_same_scalars():
    assert fragment_scalars(fragment().torch(), 6) == fragment_scalars(fragment(), 6)


def test_the_ledger_becomes_scalars():
    numbers = ledger_scalars(ledger())
    assert numbers["sync/pulls"] == 1
    assert numbers["sync/sync_bytes"] == 510
    assert numbers["sync/versions"] == 4
    assert numbers["sync/times_fewer_bytes"] == 1000 / 510


def test_lost_workers_and_all_bytes_of_the_socket_are_the_clusters_numbers():
    one = ledger()
    one.count("FragmentMade", 90)
    one.record_loss("host-0", "worker-1.0", (2, 3), 2, "killed by SIGKILL")
    one.record_loss("host-1", "", (4, 5), None, "its connection broke")
    numbers = ledger_scalars(one)
    assert numbers["cluster/losses"] == 2
    assert numbers["cluster/socket_bytes"] == 600


def test_without_a_socket_bytes_are_compared_with_nothing():
    one = Ledger()
    one.record_version(1, 1000)
    one.record_pull(
        "head", 1, held=0, cause="first", num_bytes=0, threshold=0.1, shares_memory=True
    )
    one.count_shared(1000)
    numbers = ledger_scalars(one)
    assert numbers["sync/shared_bytes"] == 1000
    assert "sync/times_fewer_bytes" not in numbers


def test_the_page_explains_every_number_of_the_ledger():
    one = ledger()
    one.record_latency(0.004)
    one.record_measurement(
        "host-0",
        held=4,
        newest=4,
        divergence=0.0,
        standard_error=0.0,
        effective_sample_size=1.0,
        realised=None,
    )
    page = (Path(__file__).parents[2] / "docs" / "howto" / "logging.md").read_text()
    missing = [name for name in ledger_scalars(one) if f"| `{name}` |" not in page]
    assert missing == []


# Progress.


def test_progress_gives_each_log_every_number_with_its_step():
    logs, clock = [Kept(), Kept()], Clock()
    with Progress(100, logs=logs, clock=clock) as progress:
        clock.now_s += 2
        progress.collected(fragment(), newest=6)
        progress.learned(learning_rate=0.1, value_loss=torch.tensor(0.5))
        progress.stepped(2, [])
        progress.scalars({"own/name": np.float32(3)})
    assert logs[0].points == logs[1].points
    assert logs[0].points == [
        (2, "charts/episodic_return", 1.5),
        (2, "charts/episodic_length", 7),
        (3, "charts/episodic_return", -2.0),
        (3, "charts/episodic_length", 9),
        (8, "charts/SPS", 4.0),
        (8, "charts/version", 6),
        (8, "charts/version_lag", 3),
        (8, "charts/mean_return", -0.25),
        (8, "charts/learning_rate", 0.1),
        (8, "losses/value_loss", 0.5),
        (10, "charts/SPS", 5.0),
        (10, "charts/version", 0),
        (10, "charts/version_lag", 0),
        (10, "charts/mean_return", -0.25),
        (10, "own/name", 3),
    ]
    assert all(type(value) is float for _, _, value in logs[0].points)
    assert progress.step == 10
    assert progress.curve == [(8, 2.0, -0.25), (10, 2.0, -0.25)]


def test_progress_counts_a_fragment_of_tensors():
    log = Kept()
    with Progress(100, logs=[log]) as progress:
        progress.collected(fragment().torch(), newest=5)
    assert progress.step == 8
    assert log.points[0] == (2, "charts/episodic_return", 1.5)


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, [30]), (3, [23, 26, 30]), (10, list(range(21, 31)))]
)
def test_each_episode_of_single_steps_has_a_step_of_its_own(count, expected):
    log = Kept()
    with Progress(100, logs=[log], first_step=20) as progress:
        progress.stepped(10, [(float(number), 1) for number in range(count)])
    points = [point for point in log.points if point[1] == "charts/episodic_return"]
    assert [step for step, *_ in points] == expected
    assert [value for *_, value in points] == list(range(count))


def test_the_mean_of_the_last_hundred_episodes_is_logged_once_there_is_one():
    log = Kept()
    with Progress(10_000, logs=[log]) as progress:
        progress.stepped(1, [])
        progress.stepped(200, [(0.0, 1)] * 100 + [(1.0, 1)] * 50)
    means = [point for point in log.points if point[1] == "charts/mean_return"]
    assert means == [(201, "charts/mean_return", 0.5)]


def test_a_target_is_reached_with_a_hundred_episodes():
    with Progress(10_000) as progress:
        assert math.isnan(progress.mean_return)
        progress.stepped(99, [(10.0, 1)] * 99)
        assert not progress.has_reached(10)
        progress.stepped(1, [(10.0, 1)])
        assert progress.has_reached(10)
        assert not progress.has_reached(10.5)


def test_a_run_that_goes_on_counts_from_its_first_step():
    log, clock = Kept(), Clock()
    with Progress(1000, logs=[log], first_step=500, clock=clock) as progress:
        clock.now_s += 1
        progress.stepped(20, [])
    assert log.opened == [({}, 500)]
    assert log.points[0] == (520, "charts/SPS", 20.0)


def test_logs_keep_the_fields_of_a_dataclass_or_the_items_of_a_mapping():
    logs = [Kept(), Kept()]
    for log, hyperparameters in zip(logs, [Args(), {"seed": 1}], strict=True):
        with Progress(1, logs=[log], hyperparameters=hyperparameters):
            pass
    assert logs[0].opened[0][0] == vars(Args())
    assert logs[1].opened[0][0] == {"seed": 1}


def test_hyperparameters_of_another_kind_are_refused_with_a_way_out():
    with pytest.raises(TypeError, match=r"not list: pass vars\(args\)"):
        Progress(1, hyperparameters=[1])


def test_logs_learn_whether_the_run_failed():
    log = Kept()
    with pytest.raises(ZeroDivisionError), Progress(1, logs=[log]):
        1 / 0
    with Progress(1, logs=[log]):
        pass
    assert log.ends == [True, False]


def test_a_log_that_cannot_be_opened_closes_those_before_it():
    first, second, third = Kept(), Unreachable(), Kept()
    with pytest.raises(ConnectionError), Progress(1, logs=[first, second, third]):
        pytest.fail("it was entered")
    assert first.ends == second.ends == [True]
    assert third.opened == third.ends == []


def test_a_log_that_cannot_be_closed_keeps_no_other_open():
    class Full(Kept):
        def close(self, *, failed):
            raise OSError("no space left")

    other = Kept()
    with pytest.raises(OSError, match="no space"), Progress(1, logs=[other, Full()]):
        pass
    assert len(other.ends) == 1


def test_progress_that_was_not_entered_or_was_left_says_so():
    progress = Progress(1)
    with pytest.raises(RuntimeError, match="`with Progress"):
        progress.learned(value_loss=1.0)
    with progress:
        pass
    with pytest.raises(RuntimeError, match="`with Progress"):
        progress.stepped(1, [])


# The line.


def test_a_file_or_pipe_gets_a_line_every_ten_seconds(capsys):
    clock = Clock()
    with Progress(100, "PPO", clock=clock) as progress:
        for _ in range(5):
            clock.now_s += 6
            progress.stepped(10, [(1.5, 7)], version=3, lag=1)
    assert capsys.readouterr().out.splitlines() == [
        "PPO         20 steps        2/s  return      1.5  version 3 lag 1",
        "PPO         40 steps        2/s  return      1.5  version 3 lag 1",
        "PPO         50 steps        2/s  return      1.5  version 3 lag 1",
    ]


def test_the_last_plain_line_is_printed_once_with_its_title(capsys):
    clock = Clock()
    line = PlainLines("PPO", clock)
    line.show(1, "one")
    assert capsys.readouterr().out == ""
    line.close()
    assert capsys.readouterr().out == "PPO one\n"
    clock.now_s += 11
    line.show(2, "two")
    line.close()
    assert capsys.readouterr().out == "PPO two\n"


class Cell:
    """Below a notebook's cell: what was displayed, and each change of it."""

    def __init__(self):
        self.texts = []

    def display(self, content, *, raw, display_id):
        assert raw
        assert display_id
        self.texts.append(content["text/plain"])
        return self

    def update(self, content, *, raw):
        self.texts.append(content["text/plain"])


def test_a_notebooks_line_changes_at_most_five_times_a_second_and_ends_with_the_last_state():
    cell, clock = Cell(), Clock()
    line = NotebookLine("PPO", 90, cell.display, clock)
    for step in range(10, 70, 10):
        clock.now_s += 0.125
        line.show(step, f"  {step} steps")
    clock.now_s += 3700
    line.show(75, "75 steps")
    line.show(90, "90 steps")
    line.close()
    assert [text.split()[2] for text in cell.texts[1:]] == ["20", "40", "60", "75", "90"]
    assert cell.texts[-1] == f"PPO {'━' * 30} 90 steps 1:01:40"


@pytest.mark.parametrize(("step", "full"), [(0, 0), (1, 0), (50, 15), (100, 30), (200, 30)])
def test_the_bar_is_as_full_as_the_run_is_done(step, full):
    assert drawn_bar(step, 100) == "━" * full + "─" * (30 - full)


def test_tests_do_not_run_in_a_notebook():
    assert not is_in_notebook()


# Packages that are missing, and names.


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [
        ("tensorboard", "TensorBoardLog", "tensorboard"),
        ("wandb", "WandbLog", "wandb"),
        ("mlflow", "MlflowLog", "mlflow"),
    ],
)
def test_a_log_whose_package_is_missing_says_how_to_install_it(package, name, extra):
    script = f"import sys; sys.modules[{package!r}] = None; from clusterenv.logging import {name}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {name} needs ")
    assert last.endswith(f": pip install 'clusterenv[{extra}]'")


def test_progress_alone_needs_no_optional_package():
    script = (
        "import sys; from clusterenv.logging import Progress\n"
        "with Progress(1) as progress: progress.stepped(1, [])\n"
        "print({'rich', 'torch', 'tensorboard', 'wandb', 'mlflow'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "set()"


def test_the_names_are_sorted_and_complete():
    names = clusterenv.logging.__all__
    assert names == sorted(names)
    assert set(names) == set(clusterenv.logging._MODULE_BY_NAME)
    assert set(names) <= set(dir(clusterenv.logging))
    with pytest.raises(AttributeError, match=r"'clusterenv.logging' has no attribute 'CsvLog'"):
        clusterenv.logging.CsvLog
