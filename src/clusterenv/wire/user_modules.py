"""Finds the user's own modules, and which of them a pickled object needs.

An installed package is expected on every machine. What is beside the script, in the current
directory or in a project under development is the user's own, and no other machine has it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import pickletools
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from clusterenv.wire.sent_modules import SentModule

_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD_LIBRARY = tuple(
    os.path.join(os.path.realpath(sysconfig.get_path(name)), "")
    for name in ("stdlib", "platstdlib")
)
# `pkg.module`, `pkg.module:Class` or `pkg.module:EnvId-v0`.
_NAME = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::\S*)?")
_MAX_NAME_LENGTH = 300


def is_users_path(path: str) -> bool:
    """Whether a file or folder is part of neither Python nor an installed package."""
    real = os.path.realpath(path)
    installed = _INSTALLED & {*Path(path).parts, *Path(real).parts}
    return not installed and not f"{real}{os.sep}".startswith(_STANDARD_LIBRARY)


def locate(name: str) -> ModuleSpec | None:
    """Where a module is, found without importing anything."""
    try:
        module = sys.modules.get(name)
        if module is not None:
            return module.__spec__ or _from_file(name, module.__file__)
        parent = name.rpartition(".")[0]
        if not parent:
            return importlib.util.find_spec(name)
        above = locate(parent)
        folders = None if above is None else above.submodule_search_locations
        return None if folders is None else PathFinder.find_spec(name, folders)
    except Exception:  # a foreign module or finder may raise anything
        return None


def _from_file(name: str, path: str | None) -> ModuleSpec | None:
    return None if path is None else importlib.util.spec_from_file_location(name, path)


def names_in_pickle(blob: bytes) -> set[str]:
    """Every string in a pickle; the names of its modules are among them.

    So are entry points, and the imports of functions that travel by value.
    """
    names: set[str] = set()
    try:
        for operation, argument, _ in pickletools.genops(blob):
            if isinstance(argument, str):
                is_old_form = operation.name == "GLOBAL"
                names.update(argument.split(" ") if is_old_form else [argument])
            elif isinstance(argument, bytes) and argument[:1] == b"\x80":
                names |= names_in_pickle(argument)  # a pickle within a pickle
    except Exception:  # it was not a pickle
        return names
    return names


class UserModules:
    """The user's modules as they were when first needed, so that all workers get the same."""

    def __init__(self) -> None:
        self._found: dict[str, SentModule] = {}
        self._names_by_module: dict[str, list[str]] = {}
        self._not_the_users: set[str] = set()
        self._looked_in: tuple[int, tuple[str, ...]] = (0, ())

    def needed_by(self, names: Iterable[str]) -> list[SentModule]:
        """The user's modules among ``names``, and the ones that those import in turn."""
        self._forget_misses()
        needed: dict[str, SentModule] = {}
        queue: list[str] = list(names)
        seen: set[str] = set()
        while queue:
            match = _NAME.fullmatch(queue.pop())
            if match is None or (name := match[1]) in seen:
                continue
            seen.add(name)
            if name == "__main__":
                queue += self._names_in_script()
            module = self.find(name)
            # A mere folder may have any name; it counts only as the parent of a module.
            if module is not None and module.path:
                needed |= self._with_parents(name)
                queue += self._names_in(module)
        return list(needed.values())

    def find(self, name: str) -> SentModule | None:
        """The module of this name, if it is the user's and has source code."""
        if name in self._not_the_users:
            return None
        if name not in self._found:
            is_ours = name.partition(".")[0] in ("clusterenv", "__main__")
            spec = None if is_ours else locate(name)
            module = None if spec is None else _read(name, spec)
            if module is None:
                self._not_the_users.add(name)
                return None
            self._found[name] = module
        return self._found[name]

    def _forget_misses(self) -> None:
        looked_in = len(sys.modules), tuple(map(str, sys.path))
        if looked_in != self._looked_in:
            self._not_the_users.clear()
            self._looked_in = looked_in

    def _with_parents(self, name: str) -> dict[str, SentModule]:
        parts = name.split(".")
        names = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        return {name: module for name in names if (module := self.find(name)) is not None}

    def _names_in(self, module: SentModule) -> list[str]:
        if module.name not in self._names_by_module:
            package = module.name if module.is_package else module.name.rpartition(".")[0]
            self._names_by_module[module.name] = list(names_in_source(module.source, package))
        names = self._names_by_module[module.name]
        parents = module.name.split(".")[:-1]
        names = [*names, *(".".join(parents[:length]) for length in range(1, len(parents) + 1))]
        if module.is_package:
            # What was imported here by a computed name will be imported there too.
            names += [name for name in list(sys.modules) if name.startswith(f"{module.name}.")]
        return names

    def _names_in_script(self) -> list[str]:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if script is None or not os.path.isfile(script) or not is_users_path(script):
            return []
        return list(names_in_source(Path(script).read_bytes(), ""))


def _read(name: str, spec: ModuleSpec) -> SentModule | None:
    folders = spec.submodule_search_locations
    origin = spec.origin if spec.has_location else None
    if origin is None:
        is_folder = folders is not None and any(is_users_path(folder) for folder in folders)
        return SentModule(name, "", b"", is_package=True) if is_folder else None
    if not is_users_path(origin):
        return None
    source = _source(name, spec, origin)
    if source is None:
        return None
    return SentModule(name, os.path.abspath(origin), source, is_package=folders is not None)


def _source(name: str, spec: ModuleSpec, origin: str) -> bytes | None:
    if origin.endswith(".py") and os.path.isfile(origin):
        return Path(origin).read_bytes()
    try:  # in a zip file, for example
        text: str | None = spec.loader.get_source(name)  # type: ignore[union-attr]
    except Exception:  # a C extension, or something else without source
        return None
    return None if text is None else text.encode()


def names_in_source(source: bytes, package: str) -> Iterator[str]:
    """The modules that a source imports anywhere, and the entry points that it names."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # the worker will report it, with the line
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from _names_imported_from(node, package)
            case ast.Constant(value=str(text)) if "." in text or ":" in text:
                if len(text) < _MAX_NAME_LENGTH and _NAME.fullmatch(text):
                    yield text


def _names_imported_from(node: ast.ImportFrom, package: str) -> Iterator[str]:
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        above = parts[: len(parts) - node.level + 1]
        base = ".".join(filter(None, [*above, base]))
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names)
