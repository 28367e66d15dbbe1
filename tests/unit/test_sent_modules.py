"""Modules that were sent are imported like any other."""

import importlib
import inspect
import sys
import traceback

import pytest

from clusterenv.surroundings import settle
from clusterenv.wire.sent_modules import SentModule, SentModules, decode_modules, encode_modules


@pytest.fixture
def sent():
    """Make modules known; all is undone at the end."""
    known, finders = set(sys.modules), list(sys.meta_path)
    finder = SentModules()

    def add(**sources):
        finder.add(
            SentModule(
                name.replace("___", "."),
                f"/head/{name.replace('___', '/')}.py",
                source.encode(),
                is_package=source.startswith("# package"),
            )
            for name, source in sources.items()
        )

    yield add
    sys.meta_path[:] = finders
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_modules_survive_the_wire():
    modules = [SentModule("a.b", "/x/a/b.py", "é".encode(), is_package=False)]
    assert decode_modules(encode_modules(modules)) == modules
    assert decode_modules(encode_modules([])) == []


def test_circles_and_packages_are_imported_and_state_is_shared(sent):
    sent(
        sent_a="import sent_b\nSTATE = []\ndef f():\n    return sent_b.STATE_OF_A()",
        sent_b="import sent_a\ndef STATE_OF_A():\n    return sent_a.STATE",
        sent_pkg="# package\nfrom .leaf import VALUE",
        sent_pkg___leaf="VALUE = 7",
    )
    sent_a = importlib.import_module("sent_a")
    assert sent_a.f() is sent_a.STATE
    assert importlib.import_module("sent_pkg").VALUE == 7


def test_tracebacks_and_inspect_show_the_source(sent):
    sent(sent_c="def fails():\n    raise RuntimeError('oh')  # here\n")
    sent_c = importlib.import_module("sent_c")
    assert "# here" in inspect.getsource(sent_c.fails)
    with pytest.raises(RuntimeError) as raised:
        sent_c.fails()
    assert "/head/sent_c.py" in "".join(traceback.format_exception(raised.value))


def test_the_first_version_of_a_module_stays(sent):
    sent(sent_d="V = 1")
    sent(sent_d="V = 2")
    assert importlib.import_module("sent_d").V == 1


def test_a_module_that_fails_is_named(sent):
    sent(sent_e="1 / 0")
    with pytest.raises(ZeroDivisionError) as raised:
        importlib.import_module("sent_e")
    (note,) = raised.value.__notes__
    assert note.startswith("while importing 'sent_e', which was sent from /head/sent_e.py")


def test_a_file_that_is_here_too_is_used_unless_it_differs(sent, tmp_path):
    path = tmp_path / "sent_f.py"
    path.write_text("V = 1")
    finder = SentModules()
    finder.add(
        [
            SentModule("sent_f", str(path), b"V = 1", is_package=False),
            SentModule("sent_g", str(path), b"V = 2", is_package=False),
        ]
    )
    assert type(importlib.import_module("sent_f").__loader__).__name__ == "SourceFileLoader"
    assert importlib.import_module("sent_g").V == 2


def test_a_package_that_is_installed_here_lends_what_could_not_be_sent(sent, tmp_path, monkeypatch):
    (tmp_path / "sent_h").mkdir()
    (tmp_path / "sent_h" / "__init__.py").write_text("V = 'old'")
    (tmp_path / "sent_h" / "native.py").write_text("V = 'here'")
    monkeypatch.syspath_prepend(str(tmp_path))
    sent(sent_h="# package\nV = 'new'\nfrom sent_h import native")
    sent_h = importlib.import_module("sent_h")
    assert (sent_h.V, sent_h.native.V) == ("new", "here")


def test_a_folder_without_init_can_be_a_parent(sent):
    finder = SentModules()
    finder.add(
        [
            SentModule("sent_i", "", b"", is_package=True),
            SentModule("sent_i.leaf", "/head/sent_i/leaf.py", b"V = 1", is_package=False),
        ]
    )
    assert importlib.import_module("sent_i.leaf").V == 1


def test_a_worker_looks_only_where_there_is_something(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/own"])
    settle((str(tmp_path), "/no/such/folder", "/own"), "")
    assert sys.path == [str(tmp_path), "/own"]


def test_a_worker_works_where_the_head_does_if_it_can(tmp_path, monkeypatch):
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(tmp_path)
    settle((), "/no/such/folder")
    assert tmp_path.samefile(".")
    settle((), str(there))
    assert there.samefile(".")
