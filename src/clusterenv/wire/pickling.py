"""Pickles what travels to the workers, and says what is wrong if that fails."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CellType
from typing import Any

import cloudpickle

from clusterenv.errors import CannotPickleError


def pickle_for_workers(value: Any) -> bytes:
    """``value`` as bytes; CannotPickleError names the part that cannot travel."""
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        culprit = next(_culprits(value, "", depth=6), None)
        what = f"{culprit} cannot be sent to the workers" if culprit else "it cannot be pickled"
        raise CannotPickleError(
            f"{_name(value)}: {what} ({error}). Create such objects inside the env or the "
            "function that makes it, so that they come to be on the worker"
        ) from error


def _culprits(value: Any, path: str, depth: int) -> Iterator[str]:
    """The innermost parts of ``value`` that cannot be pickled, by their paths."""
    if depth == 0 or _can_pickle(value):
        return
    found = False
    for label, part in _parts(value):
        for culprit in _culprits(part, f"{path}{label}", depth - 1):
            found = True
            yield culprit
    if not found:
        yield f"{path or _name(value)} ({_name(value)})"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if inspect.isfunction(value):
        try:
            variables = inspect.getclosurevars(value)
        except ValueError:  # a variable of the closure has no value
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            filled = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
            variables = inspect.ClosureVars(filled, {}, {}, set())
        for kind, names in (("variable", variables.nonlocals), ("global", variables.globals)):
            for name, part in names.items():
                yield f" {kind} {name!r} of {value.__qualname__}", part
    elif isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", part
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif hasattr(value, "__dict__") and not inspect.isclass(value) and not inspect.ismodule(value):
        for name, part in vars(value).items():
            yield f".{name}", part


def _can_pickle(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _name(value: Any) -> str:
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}"
