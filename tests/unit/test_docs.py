"""The documentation is true: its code runs, and it describes every public name."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

import clusterenv
from clusterenv import distributions

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Libraries that are not part of the dev extra, or not for every machine.
NEEDED = {
    "coming-from.md": ("envpool",),
    "howto/envs.md": ("envpool",),
    "howto/libraries.md": ("dm_env", "minari", "rl_games", "tianshou", "torchrl"),
    "howto/multi-agent.md": ("pettingzoo",),
}
COMMANDS_NEEDED = {"slurm.md": "sbatch"}
USE_THREADS = (
    "from clusterenv import ClusterEnv; "
    "ClusterEnv.__init__.__kwdefaults__['launcher'] = 'in-process'"
)
BLOCK = re.compile(r"^```(python|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script_of(page):
    """The page's code, each line with the number that it has on the page.

    Of a diff, what is left after the change. A block below ``<!-- not run: why -->`` is left out.
    """
    lines = [""] * (page.count("\n") + 1)
    for block in BLOCK.finditer(page):
        kind, code = block.groups()
        before = page[: block.start()]
        if before.rstrip().splitlines()[-1].startswith("<!-- not run: "):
            continue
        first = before.count("\n") + 1
        for number, line in enumerate(code.splitlines(), first):
            if kind == "python":
                lines[number] = line
            elif not line.startswith("-"):
                lines[number] = line[1:]
    return "\n".join(lines)


def pages_with_code():
    pages = {str(file.relative_to(DOCS)): file.read_text() for file in DOCS.rglob("*.md")}
    return sorted(name for name, page in pages.items() if BLOCK.search(page))


@pytest.mark.parametrize("name", sorted(pages_with_code()))
def test_code_on_the_page_runs(name, tmp_path):
    page, script = (DOCS / name).read_text(), tmp_path / "page.py"
    missing = [module for module in NEEDED.get(name, ()) if find_spec(module) is None]
    command = COMMANDS_NEEDED.get(name)
    if command is not None and shutil.which(command) is None:
        missing.append(command)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    # Each worker process would import PyTorch or JAX, for seconds. The first line is the title.
    title = USE_THREADS if re.search(r"^\+?import (torch|jax)\b", page, re.MULTILINE) else ""
    script.write_text(title + script_of(page))
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)]
    # More threads of torch than cores get in each other's way.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, f"docs/{name} (line numbers are the page's):\n{done.stderr}"


def test_code_keeps_its_line_numbers_and_diffs_are_applied():
    page = "text\n```python\na = 1\n```\n```diff\n-b = 2\n+b = 3\n c = a\n```\n"
    assert script_of(page).splitlines() == ["", "", "a = 1", "", "", "", "b = 3", "c = a", ""]


def test_code_that_cannot_run_is_left_out():
    page = "<!-- not run: needs a cluster -->\n```python\nboom()\n```\n"
    assert not script_of(page).strip()


def test_the_site_builds_without_a_warning(tmp_path):
    """Links between pages and to their headings included."""
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*command, DOCS, tmp_path / "site", "-d", tmp_path / "doctrees"],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    built = {path.relative_to(tmp_path / "site") for path in tmp_path.glob("site/**/*.html")}
    assert built >= {source.relative_to(DOCS).with_suffix(".html") for source in sources()}
    # Nothing of the machine that builds it is a default value.
    assert sys.executable not in (tmp_path / "site" / "api.html").read_text()


def sources():
    return (*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))


def test_the_api_reference_has_every_public_name():
    described = set(re.findall(r"^\.\. (?:auto\w+|data):: (\w+)$", api(), re.MULTILINE))
    assert set(clusterenv.__all__) <= described


def test_the_api_reference_has_every_adapter():
    described = re.findall(
        r"^\.\. auto\w+:: clusterenv\.adapters\.(\w+)\.\w+$", api(), re.MULTILINE
    )
    assert set(described) == adapter_modules()


def adapter_modules():
    """Those that a user imports: a module beside one whose name it begins with is a part of it."""
    names = {file.stem for file in (ROOT / "src/clusterenv/adapters").glob("*.py")}
    names -= {"__init__", "base"}
    return {name for name in names if not any(name.startswith(f"{other}_") for other in names)}


def test_the_api_reference_has_every_distribution():
    described = re.findall(r"^\.\. autoclass:: (\w+)$", api(), re.MULTILINE)
    not_classes_of_the_user = {"Distribution", "divergence_of_log_probs"}
    assert set(distributions.__all__) - not_classes_of_the_user <= set(described)


def api():
    return (DOCS / "api.md").read_text()


def test_names_that_pages_import_are_public():
    for file in (ROOT / "README.md", *DOCS.rglob("*.md")):
        lines = re.findall(
            r"^[+ ]?from clusterenv import ([\w, ]+)", file.read_text(), re.MULTILINE
        )
        imported = {name.strip() for line in lines for name in line.split(",")} - {""}
        assert imported <= {*clusterenv.__all__, "distributions"}, file.relative_to(ROOT)


def test_names_that_pages_link_to_are_in_the_api_reference():
    """Sphinx shows such a link as plain text where there is nothing to link to."""
    described = set(re.findall(r"^\.\. auto\w+:: (\w+)$", api(), re.MULTILINE))
    for file in DOCS.rglob("*.md"):
        named = re.findall(r"\{(?:class|func|exc)\}`[~\w.]*?(\w+)`", file.read_text())
        assert set(named) <= described, file.relative_to(ROOT)


def test_links_between_files_lead_somewhere():
    """Those of the README and CHANGELOG, which Sphinx does not see, and of the pages."""
    for file in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)", file.read_text()):
            if not re.match(r"[a-z]+:", target):
                assert (file.parent / target).exists(), f"{file.relative_to(ROOT)}: {target}"


def test_the_list_for_language_models_has_every_page():
    listed = set(re.findall(r"\]\((\S+)\.html\)", (DOCS / "llms.txt").read_text()))
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in sources()}
    assert listed == pages - {"index"}


def test_the_readme_starts_with_what_a_newcomer_needs():
    first_screen = (ROOT / "README.md").read_text().splitlines()[:40]
    for wanted in ("pip install", "make demo", "make test", "ClusterEnv("):
        assert any(wanted in line for line in first_screen), f"not on the first screen: {wanted}"


def test_messages_in_troubleshooting_are_those_of_the_source():
    source = "".join(
        path.read_text() for path in pathlib.Path(clusterenv.__file__).parent.rglob("*.py")
    )
    messages = re.findall(r"^### `(.*)`$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(messages) > 10
    for message in messages:
        assert message in source, f"no message has {message!r} any more"
