"""Modules that came with a message, imported from memory like any other.

So they behave as on the head's own machine: one module of that name per process, with its state,
no matter who imports it and how often.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import zlib
from collections.abc import Iterable, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import msgspec


class SentModule(msgspec.Struct, array_like=True, frozen=True):
    """A module by value."""

    name: str
    path: str
    """Where it is on the head; empty for a folder without ``__init__.py``."""
    source: bytes
    is_package: bool


def encode_modules(modules: Sequence[SentModule]) -> bytes:
    """The modules as bytes."""
    return zlib.compress(msgspec.msgpack.encode(modules), 1) if modules else b""


def decode_modules(data: bytes) -> list[SentModule]:
    """What :func:`encode_modules` encoded."""
    if not data:
        return []
    return msgspec.msgpack.decode(zlib.decompress(data), type=list[SentModule])


class SentModules(MetaPathFinder, ExecutionLoader):
    """Finds modules that were sent, before local ones of the same name."""

    def __init__(self) -> None:
        self._modules: dict[str, SentModule] = {}

    def add(self, modules: Iterable[SentModule]) -> None:
        """Make these importable; a module that is known already stays as it is."""
        for module in modules:
            self._modules.setdefault(module.name, module)
        if self._modules and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module from its own file if that is here as well, otherwise from memory."""
        module = self._modules.get(fullname)
        if module is None:
            return None
        if _is_here(module):
            # Then the files beside it are here too.
            folder = [os.path.dirname(module.path)] if module.is_package else None
            return importlib.util.spec_from_file_location(
                fullname, module.path, submodule_search_locations=folder
            )
        here = PathFinder.find_spec(fullname, path) if module.is_package else None
        if here is not None and not module.path:
            return here
        spec = ModuleSpec(fullname, self, origin=module.path or None, is_package=module.is_package)
        spec.has_location = bool(module.path)
        if spec.submodule_search_locations is not None:
            folders = [os.path.dirname(module.path)] if module.path else []
            # A package that is installed here has what cannot be sent: its C extensions.
            folders += (here.submodule_search_locations or []) if here is not None else []
            spec.submodule_search_locations.extend(folders)
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        try:
            super().exec_module(module)
        except Exception as error:
            path = self._modules[module.__name__].path
            error.add_note(
                f"while importing {module.__name__!r}, which was sent from {path} on the head, "
                "without the files beside it"
            )
            raise

    def is_package(self, fullname: str) -> bool:
        """Whether the module has modules of its own."""
        return self._module(fullname).is_package

    def get_filename(self, fullname: str) -> str:
        """Where the module is on the head, for tracebacks."""
        return self._module(fullname).path or f"<{fullname}>"

    def get_source(self, fullname: str) -> str:
        """The module's source, for tracebacks and ``inspect``."""
        return importlib.util.decode_source(self._module(fullname).source)

    def _module(self, fullname: str) -> SentModule:
        try:
            return self._modules[fullname]
        except KeyError:
            raise ImportError(f"{fullname!r} was not sent", name=fullname) from None


def _is_here(module: SentModule) -> bool:
    try:
        return bool(module.path) and Path(module.path).read_bytes() == module.source
    except OSError:
        return False


SENT_MODULES = SentModules()
"""The modules sent to this process."""
