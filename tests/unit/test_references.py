"""What a docstring refers to exists, and is found where it says."""

import ast
import importlib
import re
import subprocess
import sys

import pytest

from tests.unit.test_house import MODULES

_REFERENCE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):`~?([\w.]+)(?:\(\))?`")


def found(owner, path):
    """Whether these names lead from ``owner`` to something."""
    for name in path:
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def strings_in(tree):
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def attributes_set_in(tree):
    """Of ``self``."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {n.attr for n in nodes if isinstance(n.value, ast.Name) and n.value.id == "self"}


def resolves(name, module, tree):
    path = name.split(".")
    if path[0] in ("clusterenv", "gymnasium"):
        for length in range(len(path), 0, -1):
            try:
                owner = importlib.import_module(".".join(path[:length]))
            except ModuleNotFoundError:
                continue
            return found(owner, path[length:])
    own = [one for one in vars(module).values() if isinstance(one, type)]
    is_there = found(module, path) or any(found(one, path) for one in own)
    return is_there or (len(path) == 1 and name in attributes_set_in(tree))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_what_a_docstring_refers_to_exists(module):
    full = f"clusterenv.{module}" if module else "clusterenv"
    try:
        imported = importlib.import_module(full.removesuffix(".__init__"))
    except ImportError as error:
        pytest.skip(f"`make test-adapters` has what it needs: {error}")
    with open(imported.__file__) as file:
        tree = ast.parse(file.read())
    names = {name for text in strings_in(tree) for name in _REFERENCE.findall(text)}
    missing = {name for name in names if not resolves(name, imported, tree)}
    assert not missing


def test_distributions_are_found_without_importing_them_first():
    script = "import clusterenv; clusterenv.distributions.Categorical; print(dir(clusterenv))"
    printed = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    assert "'distributions'" in printed
