"""The wheel has what it needs and nothing else, and what is said about it is true."""

import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = {"cloudpickle", "gymnasium", "msgspec", "numpy", "pyzmq"}
WHERE = "import clusterenv; print(clusterenv.__file__, clusterenv.__version__)"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of the source, without network."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    copytree(ROOT / "src", tree / "src", ignore=ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, tree)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    done = subprocess.run(
        [*build, "--wheel-dir", folder, tree], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def is_ours(path):
    return path.is_file() and "__pycache__" not in path.parts


def test_it_has_every_file_of_the_package_and_no_other(unpacked):
    source, packed = ROOT / "src" / "clusterenv", unpacked / "clusterenv"
    wanted = {path.relative_to(source) for path in source.rglob("*") if is_ours(path)}
    assert {Path("py.typed"), Path("tools/view/page/view.html")} <= wanted
    assert {path.relative_to(packed) for path in packed.rglob("*") if is_ours(path)} == wanted
    version = PROJECT["version"]
    assert {path.name for path in unpacked.iterdir()} == {
        "clusterenv",
        f"clusterenv-{version}.dist-info",
    }


def test_the_license_travels_with_it(unpacked, metadata):
    (license_file,) = unpacked.glob("*.dist-info/licenses/LICENSE")
    assert license_file.read_text() == (ROOT / "LICENSE").read_text()
    assert metadata["License-Expression"] == "MIT"


def test_it_asks_for_five_packages_and_the_rest_are_extras(metadata):
    core = [one for one in metadata.get_all("Requires-Dist") if "extra ==" not in one]
    assert sorted(core) == sorted(PROJECT["dependencies"])
    assert {one.partition(">=")[0] for one in core} == CORE
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])


def test_no_address_is_given_that_does_not_exist(metadata):
    assert metadata.get_all("Project-URL") is None
    assert metadata["Home-page"] is None


def test_the_readme_is_its_description(metadata):
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True).decode() == (ROOT / "README.md").read_text()


def test_it_runs_from_where_it_was_unpacked(unpacked):
    def python(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            env={"PYTHONPATH": str(unpacked)},
            cwd=unpacked,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    version = PROJECT["version"]
    assert python("-c", WHERE) == f"{unpacked / 'clusterenv' / '__init__.py'} {version}\n"
    assert python("-m", "clusterenv", "--version") == f"clusterenv {version}\n"


def test_the_command_is_the_one_that_is_declared(unpacked):
    (entry_points,) = unpacked.glob("*.dist-info/entry_points.txt")
    assert entry_points.read_text() == (
        "[console_scripts]\nclusterenv = clusterenv.tools.main:main\n"
    )
