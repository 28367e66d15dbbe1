"""Rollouts and steps are what they were before workers got hosts, bit by bit."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Twenty seconds on two cores, but others may use them as well.
pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def same_rollouts(monkeypatch):
    """The script, as one beside it would import it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("same_rollouts")


@pytest.fixture
def has_older_commit(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    checkouts = importlib.import_module("checkouts")
    if not checkouts.has_commit(checkouts.BEFORE):
        pytest.skip(
            f"NOT COMPARED: commit {checkouts.BEFORE} is not in this clone's history; "
            "for the comparison: git fetch --unshallow"
        )


def compare(*options):
    """Its exit status, and what it printed."""
    command = [sys.executable, str(BENCHMARKS / "same_rollouts.py"), *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        try:
            printed, _ = process.communicate()
        except BaseException:
            # Killed, as `run` would do, it could not remove its worktree.
            process.terminate()
            raise
    return process.returncode, printed


@pytest.mark.usefixtures("has_older_commit")
def test_rollouts_and_steps_are_bit_identical_to_those_of_the_older_commit():
    status, printed = compare()
    assert status == 0, printed
    assert "same (" in printed


@pytest.mark.usefixtures("has_older_commit")
def test_another_draw_of_actions_is_found(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    randomness = tmp_path / "src" / "clusterenv" / "randomness.py"
    text = randomness.read_text()
    assert "0x94D049BB133111EB" in text
    randomness.write_text(text.replace("0x94D049BB133111EB", "0x94D049BB133111ED"))
    changed = "--after", str(tmp_path), "--worlds", "CartPole", "--layouts", "1 worker"
    status, printed = compare(*changed)
    assert status == 1, printed
    assert "DIFFERENT in MLP, rollout 1: observations" in printed


@pytest.mark.parametrize(
    ("after", "named"),
    [
        ({("step", "rewards"): "f8[2] ab", ("step", "infos"): "f8[2] cd"}, None),
        ({("step", "rewards"): "f8[2] ab", ("step", "infos"): "f8[2] ce"}, "step: infos"),
        ({("step", "rewards"): "f8[2] ab"}, "after there is none"),
        (
            {
                ("step", "rewards"): "f8[2] ab",
                ("step", "infos"): "f8[2] cd",
                ("step", "more"): "f8[2] ef",
            },
            "before there is none",
        ),
    ],
)
def test_the_first_difference_is_named(same_rollouts, after, named):
    before = {("step", "rewards"): "f8[2] ab", ("step", "infos"): "f8[2] cd"}
    difference = same_rollouts.first_difference(before, after)
    assert difference is None if named is None else named in difference
