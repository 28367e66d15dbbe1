"""Installs the built package on every Python that is here, and tries it: ``make test-dist``.

Each row of the table is a bare virtual environment of its own, with the wheel, the source archive,
or the wheel and the oldest dependencies that it allows. Other Pythons may be given as arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parents[2] / "pyproject.toml").read_text())["project"]
OLDEST_MINOR = int(re.search(r"3\.(\d+)", PROJECT["requires-python"])[1])
TRIED = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
ASK = "import json, sys; print(json.dumps([*sys.version_info[:3]]))"
TIMEOUT_S = 600


class Case(NamedTuple):
    """What one row of the table tries."""

    python: str
    version: tuple[int, ...]
    what: str
    packages: list[str]


def pythons(given: list[str]) -> dict[tuple[int, ...], str]:
    """The newest of each minor version, by version."""
    names = [f"python3.{minor}" for minor in range(OLDEST_MINOR, OLDEST_MINOR + 10)]
    installed = sorted(Path.home().glob(".pyenv/versions/*/bin/python"))
    found = [*given, *filter(None, map(shutil.which, names)), *map(str, installed)]
    by_minor: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {}
    for python in found:
        asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
        version = tuple(json.loads(asked.stdout)) if asked.returncode == 0 else (0,)
        if version >= (3, OLDEST_MINOR):
            by_minor[version[:2]] = max(by_minor.get(version[:2], ((0,), "")), (version, python))
    return dict(sorted(by_minor.values()))


def cases(dist: Path, found: dict[tuple[int, ...], str]) -> Iterator[Case]:
    """Both archives on each Python; on the oldest also the oldest dependencies."""
    (wheel,), (source,) = list(dist.glob("*.whl")), list(dist.glob("*.tar.gz"))
    for version, python in found.items():
        yield Case(python, version, "wheel", [str(wheel)])
        yield Case(python, version, "sdist", [str(source)])
        if version[:2] == (3, OLDEST_MINOR):
            bounds = [bound.replace(">=", "==") for bound in PROJECT["dependencies"]]
            yield Case(python, version, "wheel, oldest dependencies", [str(wheel), *bounds])


def run(command: list[str | Path], folder: Path) -> tuple[bool, str]:
    """Whether it went well, and all that it printed; warnings of Python are shown."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**ours, "PYTHONWARNINGS": "always"},
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode == 0, done.stdout


def attempt(case: Case, folder: Path) -> tuple[list[str], str]:
    """The cells of its row, and what went wrong."""
    bin_folder = folder / "venv" / "bin"
    python = bin_folder / "python"
    run([case.python, "-m", "venv", "--without-pip", folder / "venv"], folder)
    pip = [sys.executable, "-W", "ignore", "-m", "pip", "--python", python]
    steps = {
        "install": [*pip, "install", "--quiet", *case.packages],
        "version": [bin_folder / "clusterenv", "--version"],
        "doctor": [bin_folder / "clusterenv", "doctor"],
        "runs": [python, HERE / "trial.py"],
    }
    cells: list[str] = []
    for name, command in steps.items():
        is_well, text = run(command, folder)
        is_well = is_well and (name == "install" or not warned(text))
        cells.append("ok" if is_well else "FAILED")
        if not is_well:
            return cells, f"{name} of {case.what} on {dotted(case.version)}:\n{text}"
    return cells, ""


def warned(text: str) -> list[str]:
    """The lines in which a Python warned of something."""
    return [line for line in text.splitlines() if re.search(r"\b\w+Warning: ", line)]


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dist", type=Path, help="the folder with a wheel and a source archive")
    parser.add_argument("pythons", nargs="*", help="interpreters to try besides those found")
    arguments = parser.parse_args()
    found, troubles = pythons(arguments.pythons), []
    print(f"{'Python':<10}{'package':<28}{'install':<9}{'version':<9}{'doctor':<9}{'runs':<9}")
    for case in cases(arguments.dist.resolve(), found):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            cells, trouble = attempt(case, Path(folder))
        row = f"{dotted(case.version):<10}{case.what:<28}" + "".join(f"{one:<9}" for one in cells)
        print(f"{row}{time.monotonic() - started:.0f} s", flush=True)
        troubles += [trouble] if trouble else []
    not_here = [
        one for one in TRIED if tuple(map(int, one.split("."))) not in {v[:2] for v in found}
    ]
    if not_here:
        print(f"not tried, for they are not here: {', '.join(not_here)}")
    sys.exit("\n\n".join(troubles) or None)


if __name__ == "__main__":
    main()
