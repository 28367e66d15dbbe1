"""``--launcher``: a name, or a launcher of the user's own, as text."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from typing import Any

from clusterenv.construction import choose_launcher
from clusterenv.launchers.base import Launcher

HELP = (
    "local, in-process, or MODULE:NAME, which is a launcher, or gives one when it is called; with "
    "arguments where it takes some: clusterenv:SshLauncher(hosts=['a', 'b'])"
)


def launcher_from(text: str) -> Launcher:
    """The launcher that ``text`` names; ValueError if there is none."""
    if ":" not in text:
        return choose_launcher(text)
    module, _, expression = text.partition(":")
    # Unlike `python -m`, a console script does not look here.
    sys.path.insert(0, os.getcwd())
    try:
        return _evaluate(importlib.import_module(module), expression)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ValueError(f"--launcher {text!r}: {error}") from error
    finally:
        sys.path.remove(os.getcwd())


def _evaluate(module: Any, expression: str) -> Launcher:
    """A name of the module, called with literals if ``expression`` is a call."""
    tree = ast.parse(expression, mode="eval").body
    arguments: list[Any] = []
    keywords: dict[str, Any] = {}
    if isinstance(tree, ast.Call):
        arguments = [ast.literal_eval(argument) for argument in tree.args]
        keywords = {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords}
        tree = tree.func
    if not isinstance(tree, ast.Name):
        raise ValueError(f"--launcher: {expression!r} is no name, and no call with literals")
    found: Any = getattr(module, tree.id)
    if isinstance(found, type) or not hasattr(found, "start"):
        found = found(*arguments, **keywords)
    launcher: Launcher = found
    return launcher
