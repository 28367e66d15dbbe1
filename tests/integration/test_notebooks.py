"""The notebooks of the documentation run in a real kernel, and show what is stored in them."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def shown_by(file):
    """For each cell, the kinds of its outputs: prints, pictures, values."""
    cells = json.loads(file.read_text())["cells"]
    return [[kind_of(output) for output in cell.get("outputs", [])] for cell in cells]


def kind_of(output):
    return output["output_type"], output.get("name"), sorted(output.get("data", {}))


@pytest.mark.parametrize("stored", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_runs_and_shows_what_is_stored(stored, tmp_path):
    command = [sys.executable, ROOT / "docs/notebooks/run.py", "--out", tmp_path, stored.stem]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert shown_by(tmp_path / stored.name) == shown_by(stored), "make notebooks"


@pytest.mark.parametrize("stored", NOTEBOOKS, ids=lambda file: file.stem)
def test_what_is_stored_is_small_and_names_no_path(stored):
    text = stored.read_text()
    assert len(text) < 100_000
    assert '"name": "stderr"' not in text
    for part in ("/home/", "/root/", "/tmp/", "/usr/", str(ROOT)):
        assert part not in text
