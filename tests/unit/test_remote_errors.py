"""A worker's exception is raised as the type it had, if that is known here and harmless."""

import sys
import types

import gymnasium
import pytest

from clusterenv.errors import RemoteError, RemoteTraceback
from clusterenv.head.remote_errors import rebuild
from clusterenv.plain.values import pack
from clusterenv.protocol.replies import Raised


class Fussy(Exception):
    """Its arguments are not those of its constructor, as in many libraries."""

    def __init__(self, response):
        super().__init__(response.status)


class Broken(Exception):
    """Cannot even be printed."""

    def __str__(self):
        raise KeyError("no text")


class Outer:
    class Inner(Exception):
        """Its qualified name has two parts."""


def raised(module, name, *arguments, text=None, **rest):
    packed = pack(arguments, allow_pickle=False)
    text = str(arguments[0]) if text is None else text
    fields = {"slot": None, "arguments": packed, "text": text, "traceback": "Traceback: …", **rest}
    return Raised(request=1, module=module, name=name, **fields)


@pytest.mark.parametrize(
    ("module", "name", "kind"),
    [
        ("builtins", "ValueError", ValueError),
        ("gymnasium.error", "ResetNeeded", gymnasium.error.ResetNeeded),
        (__name__, "Outer.Inner", Outer.Inner),
    ],
)
def test_a_type_that_is_known_here_is_kept(module, name, kind):
    error = rebuild(raised(module, name, "bad luck"), "worker-0.0")
    assert type(error) is kind
    assert error.args == ("bad luck",)


def test_all_arguments_are_kept():
    error = rebuild(raised("builtins", "OSError", 2, "gone", text="[Errno 2] gone"), "worker-0.0")
    assert isinstance(error, FileNotFoundError)
    assert error.errno == 2


def test_the_remote_traceback_is_the_cause():
    error = rebuild(raised("builtins", "ValueError", "x", traceback="File env.py"), "worker-0.0")
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "File env.py" in str(error.__cause__)


def test_a_note_says_where_it_happened():
    message = raised("builtins", "ValueError", "x", slot=3, action="array([1])")
    error = rebuild(message, "worker-0.0 (host a, pid 7)")
    assert error.__notes__ == ["raised on worker-0.0 (host a, pid 7), slot 3, action array([1])"]


# Types that the head does not know, or will not raise.


def assert_is_remote_error(message, text):
    error = rebuild(message, "worker-0.0")
    assert type(error) is RemoteError
    assert str(error) == text
    assert isinstance(error.__cause__, RemoteTraceback)


def test_an_unknown_type_keeps_its_name_and_text():
    assert_is_remote_error(raised("no_such_module", "Odd", "hm"), "Odd: hm")


def test_nothing_is_imported_to_find_a_type(tmp_path, monkeypatch):
    (tmp_path / "importable_module.py").write_text("class Odd(Exception): pass")
    monkeypatch.syspath_prepend(tmp_path)
    assert_is_remote_error(raised("importable_module", "Odd", "hm"), "Odd: hm")
    assert "importable_module" not in sys.modules


def test_a_module_that_imports_its_parts_when_they_are_asked_for_is_not_asked(monkeypatch):
    asked = []
    lazy = types.ModuleType("lazy_package")
    lazy.__getattr__ = lambda name: asked.append(name) or types.ModuleType(name)
    monkeypatch.setitem(sys.modules, "lazy_package", lazy)
    assert_is_remote_error(raised("lazy_package", "heavy.Odd", "hm"), "heavy.Odd: hm")
    assert asked == []


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_what_would_end_the_head_is_not_rebuilt(name):
    assert_is_remote_error(raised("builtins", name, "bye"), f"{name}: bye")


@pytest.mark.parametrize("name", ["print", "int", "__doc__", "", "ValueError.__init__", "exec"])
def test_what_is_no_exception_is_not_called(name):
    assert_is_remote_error(raised("builtins", name, "1"), f"{name}: 1")


def test_an_exception_whose_arguments_could_not_travel_is_described():
    message = raised("builtins", "ValueError", "x", arguments=b"")
    assert_is_remote_error(message, "ValueError: x")


def test_an_exception_that_would_say_something_else_is_described():
    message = raised("builtins", "KeyError", "x", text="not the text of KeyError('x')")
    assert_is_remote_error(message, "KeyError: not the text of KeyError('x')")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("Fussy", ("404",)), ("Broken", ("x",)), ("UnicodeDecodeError", ("x",))],
)
def test_an_exception_that_cannot_be_made_again_is_described(name, arguments):
    module = "builtins" if name.startswith("U") else __name__
    assert_is_remote_error(raised(module, name, *arguments, text="hm"), f"{name}: hm")


@pytest.mark.parametrize("arguments", [b"\xff", pack(5, allow_pickle=False), b"\x00"])
def test_arguments_that_are_none_are_a_remote_error(arguments):
    message = raised("builtins", "ValueError", "x", arguments=arguments)
    assert_is_remote_error(message, "ValueError: x")


def test_a_pickle_in_the_arguments_is_not_opened():
    message = raised("builtins", "ValueError", "x", arguments=pack([print], allow_pickle=True))
    assert_is_remote_error(message, "ValueError: x")
