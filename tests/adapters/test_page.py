"""The code of docs/howto/libraries.md runs, section by section, where its library is installed."""

import os
import pathlib
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.unit.test_docs import script_of

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "howto" / "libraries.md").read_text()
MODULES = {
    "TorchRL": "torchrl",
    "Stable-Baselines3": "stable_baselines3",
    "rl_games": "rl_games",
    "Tianshou": "tianshou",
    "dm_env": "dm_env",
    "Minari": "minari",
}


def sections():
    """Each section's code, at the lines that it has on the page."""
    parts = re.split(r"^(?=## )", PAGE, flags=re.MULTILINE)
    for number, part in enumerate(parts[1:], 1):
        before = "".join(parts[:number]).count("\n")
        yield part.splitlines()[0].removeprefix("## "), "\n" * before + script_of(part)


SCRIPTS = dict(sections())


def test_every_library_has_a_section_with_code():
    assert SCRIPTS.keys() == MODULES.keys()
    assert all(code.strip() for code in SCRIPTS.values())


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_code_of_a_section_runs(name, tmp_path):
    if find_spec(MODULES[name]) is None:
        pytest.skip(f"{name} is not installed here; make test or make test-adapters has it")
    script = tmp_path / "page.py"
    script.write_text(SCRIPTS[name])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MINARI_DATASETS_PATH": str(tmp_path)}
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, f"docs/howto/libraries.md (the page's lines):\n{done.stderr}"
