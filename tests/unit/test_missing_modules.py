"""A module that a worker lacks is explained with what is known of it here."""

import importlib
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version

import pytest

from clusterenv.head.missing_modules import explain
from clusterenv.head.remote_errors import rebuild
from clusterenv.plain.values import pack
from clusterenv.protocol.replies import Raised

WHO = "worker-1.0 (host node7, pid 4711)"


def no_module(name):
    return explain(f"No module named '{name}'", WHO)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


@pytest.mark.parametrize("name", ["zmq", "zmq.green"])
def test_an_installed_package_is_named_as_pip_knows_it(name):
    text = no_module(name)
    assert text.startswith(f"No module named {name!r} on {WHO}: ")
    assert f"`python -m pip install pyzmq=={version('pyzmq')}`" in text


def test_a_c_extension_of_the_users_cannot_be_sent(folder):
    path = folder / f"fast_physics{EXTENSION_SUFFIXES[0]}"
    path.write_bytes(b"")
    assert f"{path} is a C extension" in no_module("fast_physics")


def test_a_module_that_nothing_imports_by_its_name_was_not_sent(folder):
    (folder / "by_computed_name.py").write_text("")
    assert "Write `import by_computed_name` in the module" in no_module("by_computed_name")


@pytest.mark.parametrize(
    "text", ["No module named 'no_such_thing'", "else", "No module named '../x'"]
)
def test_what_is_not_here_either_is_not_explained(text):
    assert explain(text, WHO) == ""


def test_the_error_at_the_head_is_of_the_same_type_and_says_it():
    text = "No module named 'zmq'"
    arguments = pack((text,), allow_pickle=False)
    raised = Raised(0, None, "builtins", "ModuleNotFoundError", arguments, text, "Traceback …")
    error = rebuild(raised, WHO)
    assert type(error) is ModuleNotFoundError
    assert str(error) == no_module("zmq")
    assert error.__notes__ == [f"raised on {WHO}"]
