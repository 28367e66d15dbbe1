"""`benchmarks/time_to_solve.py` spreads its runs over several evenings, and loses none."""

import argparse
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def solve(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("time_to_solve")


@pytest.fixture
def arguments(tmp_path):
    def make(seeds, systems=("clusterenv", "sb3"), limit_s=10.0):
        envs = ["CartPole-v1"]
        return SimpleNamespace(seeds=seeds, envs=envs, systems=systems, limit_s=limit_s)

    return make


class Trainer:
    """Does not train, but says what came of it, and counts."""

    def __init__(self, solve, outcomes=(), seconds=2.0):
        self._solve, self._outcomes, self._seconds = solve, dict(outcomes), seconds
        self.asked = []

    def __call__(self, name, env, seed, limit_s):
        self.asked.append((name, seed))
        outcome = self._outcomes.get((name, seed), "solved")
        curve = [(1.0, 500, 20.0), (self._seconds, 1000, 480.0)]
        return self._solve.Run(env, name, seed, outcome, curve, 3.0, limit_s)


def go_on(solve, folder, args, trainer, add=True):
    book = solve.Book(folder, "")
    if add:
        book.read()
    solve.run_all(args, book, trainer)
    return trainer.asked


def text_in(folder):
    (file,) = (folder / "time_to_solve").glob("*.md")
    return file.read_text()


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", [1, 2, 3]), ("2-4", [2, 3, 4]), ("1,5", [1, 5]), ("1-2,7", [1, 2, 7]), ("4-4", [4])],
)
def test_seeds_are_a_count_or_named(solve, text, seeds):
    assert solve.seeds_in(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "1-", "-3", "1,,2"])
def test_other_seeds_are_refused(solve, text):
    with pytest.raises(argparse.ArgumentTypeError, match="neither a count nor seeds"):
        solve.seeds_in(text)


def test_what_is_there_is_not_run_again(solve, arguments, tmp_path):
    asked = go_on(solve, tmp_path, arguments([1, 2]), Trainer(solve))
    assert asked == [("clusterenv", 1), ("sb3", 1), ("clusterenv", 2), ("sb3", 2)]
    more = arguments([1, 2, 3], ("clusterenv", "sb3", "rllib"))
    asked = go_on(solve, tmp_path, more, Trainer(solve))
    assert asked == [("rllib", 1), ("rllib", 2), ("clusterenv", 3), ("sb3", 3), ("rllib", 3)]
    assert go_on(solve, tmp_path, more, Trainer(solve)) == []


def test_without_add_the_record_begins_anew(solve, arguments, tmp_path):
    go_on(solve, tmp_path, arguments([1, 2]), Trainer(solve))
    asked = go_on(solve, tmp_path, arguments([1]), Trainer(solve), add=False)
    assert asked == [("clusterenv", 1), ("sb3", 1)]
    assert "| 1     | 1 of 1 |" in text_in(tmp_path)


def test_the_record_is_there_after_every_run(solve, arguments, tmp_path):
    trainer = Trainer(solve)

    def train(name, env, seed, limit_s):
        if (name, seed) == ("sb3", 2):
            raise KeyboardInterrupt
        return trainer(name, env, seed, limit_s)

    with pytest.raises(KeyboardInterrupt):
        solve.run_all(arguments([1, 2]), solve.Book(tmp_path, ""), train)
    assert go_on(solve, tmp_path, arguments([1, 2]), Trainer(solve)) == [("sb3", 2)]


def test_what_failed_or_was_given_up_sooner_is_run_again(solve, arguments, tmp_path):
    outcomes = {
        ("clusterenv", 1): "failed with status 1",
        ("sb3", 1): "given up",
        ("clusterenv", 2): "budget spent",
        ("sb3", 2): "not run: no .venv",
    }
    go_on(solve, tmp_path, arguments([1, 2]), Trainer(solve, outcomes))
    text = text_in(tmp_path)
    assert "not counted: CartPole-v1, seed 1, ClusterEnv" in text
    assert "failed with status 1" in text
    asked = go_on(solve, tmp_path, arguments([1, 2]), Trainer(solve))
    assert asked == [("clusterenv", 1), ("sb3", 2)]
    asked = go_on(solve, tmp_path, arguments([1, 2], limit_s=20.0), Trainer(solve))
    assert asked == [("sb3", 1)]


def test_each_row_says_which_seeds_it_has_and_is_compared_on_common_ones(
    solve, arguments, tmp_path
):
    go_on(solve, tmp_path, arguments([1, 2, 5], ("clusterenv",)), Trainer(solve))
    go_on(solve, tmp_path, arguments([2, 3], ("sb3",)), Trainer(solve, seconds=4.0))
    lines = [line for line in text_in(tmp_path).splitlines() if line.startswith("| CartPole")]
    ours, theirs = ([cell.strip() for cell in line.split("|")] for line in lines)
    assert (ours[3], ours[4], ours[-3], ours[-2]) == ("1-2, 5", "3 of 3", "1.00", "3")
    assert (theirs[3], theirs[4], theirs[-3], theirs[-2]) == ("2-3", "2 of 2", "2.00", "1")


SOLVERS = {
    "budget spent": "pass",
    "failed with status 3": "raise SystemExit(3)",
    "given up": 'print(\'{"seconds": 99, "steps": 1, "mean": 0, "solved": false}\')',
    "solved": 'print(\'noise\'); print(\'{"seconds": 1, "steps": 9, "mean": 9, "solved": true}\')',
    "failed: silent": "import time; time.sleep(60)",
}


@pytest.mark.parametrize("outcome", SOLVERS)
def test_how_a_solver_ends_is_told(solve, outcome, tmp_path, monkeypatch):
    (tmp_path / "solver.py").write_text(SOLVERS[outcome])
    system = solve.SYSTEMS["sb3"].__class__("label", "solver.py")
    monkeypatch.setitem(solve.SYSTEMS, "sb3", system)
    monkeypatch.setattr(solve, "SOLVERS", tmp_path)
    monkeypatch.setattr(solve, "SILENT_S", 1.0 if outcome == "failed: silent" else 60.0)
    assert system.python == Path(sys.executable)
    assert solve.train("sb3", "CartPole-v1", 1, limit_s=3.0).outcome == outcome
