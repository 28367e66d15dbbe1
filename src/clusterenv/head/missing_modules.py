"""Explains why a module is present here and missing on a worker, and what to do."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec

from clusterenv.wire.user_modules import is_users_path, locate

_NO_MODULE = re.compile(r"No module named '([^\W\d]\w*(?:\.[^\W\d]\w*)*)'")


def explain(text: str, whereabouts: str) -> str:
    """What to do about a ModuleNotFoundError with this text; empty if we cannot add anything."""
    match = _NO_MODULE.search(text)
    if match is None:
        return ""
    # Looked up, not imported: a worker must not make the head import anything.
    name, spec = match[1], locate(match[1])
    if spec is None:
        return ""
    missing = f"No module named {name!r} on {whereabouts}"
    if spec.origin is not None and is_users_path(spec.origin):
        return f"{missing}: {_why_not_sent(name, spec)}"
    package = _distribution(name)
    return (
        f"{missing}: it belongs to {package}, which is installed here. Run `python -m pip install "
        f"{package}` there, with the Python that runs the worker, or start the workers in an "
        "environment that has it"
    )


def _why_not_sent(name: str, spec: ModuleSpec) -> str:
    if spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES)):
        return (
            f"{spec.origin} is a C extension, which cannot be sent to other machines. Build and "
            "install it there"
        )
    return (
        f"{spec.origin} was not sent, since nothing that was sent imports it by its name. Write "
        f"`import {name}` in the module of your env, or install it there"
    )


def _distribution(name: str) -> str:
    top = name.partition(".")[0]
    packages = metadata.packages_distributions().get(top)
    return f"{packages[0]}=={metadata.version(packages[0])}" if packages else top
