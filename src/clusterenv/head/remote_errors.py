"""Raises a worker's exception again at the head, as the type it had there."""

from __future__ import annotations

import sys
from typing import Any

from clusterenv.errors import RemoteError, RemoteTraceback
from clusterenv.head.missing_modules import explain
from clusterenv.plain.values import unpack
from clusterenv.protocol.replies import Raised


def rebuild(raised: Raised, whereabouts: str) -> BaseException:
    """The exception to raise here, with the remote traceback as its cause."""
    error = _missing_module(raised, whereabouts) or _left_debugger(raised) or _same_type(raised)
    error = error or RemoteError(f"{raised.name}: {raised.text}")
    error.__cause__ = RemoteTraceback(raised.traceback)
    place = "" if raised.slot is None else f", slot {raised.slot}"
    action = f", action {raised.action}" if raised.action else ""
    policy = ", by the policy" if raised.by_policy else ""
    error.add_note(f"raised on {whereabouts}{place}{action}{policy}")
    return error


def _missing_module(raised: Raised, whereabouts: str) -> BaseException | None:
    if (raised.module, raised.name) != ("builtins", "ModuleNotFoundError"):
        return None
    explanation = explain(raised.text, whereabouts)
    return ModuleNotFoundError(explanation) if explanation else None


def _left_debugger(raised: Raised) -> BaseException | None:
    # Not as its own type: IPython says nothing about that one.
    if (raised.module, raised.name) != ("bdb", "BdbQuit"):
        return None
    return RemoteError(
        "a debugger was left, or found no keyboard: worker processes have none, so debug with "
        'launcher="in-process", in notebooks by `import pdb; pdb.set_trace()`'
    )


def _same_type(raised: Raised) -> BaseException | None:
    # Looked up among the imported modules only: a worker must not make the head import anything.
    kind: Any = sys.modules.get(raised.module)
    for part in raised.name.split("."):
        # Not getattr, which could let a module import its parts.
        kind = vars(kind).get(part) if hasattr(kind, "__dict__") else None
    if not (isinstance(kind, type) and issubclass(kind, Exception) and raised.arguments):
        return None
    try:
        arguments = unpack(raised.arguments, allow_pickle=False)
        error = kind(*arguments)
        return error if str(error) == raised.text else None
    except Exception:  # a foreign exception's constructor may raise anything
        return None
