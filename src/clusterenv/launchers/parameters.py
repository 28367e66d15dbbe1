"""Checks of launchers' parameters, with errors that say what is valid."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

Init = TypeVar("Init", bound=Callable[..., None])


def names_valid_parameters(init: Init) -> Init:
    """Let an ``__init__`` answer an unknown keyword with the list of those that it knows."""
    valid = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(self: object, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in valid:
                raise TypeError(_unknown(type(self).__name__, name, valid))
        init(self, *args, **kwargs)

    return cast(Init, checked)


def _unknown(launcher: str, name: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(name, valid, 1)
    meant = f" (did you mean {close[0]}=?)" if close else ""
    return f"{launcher} has no parameter {name}={meant}; it takes: {', '.join(valid)}"


def check_environment(environment: Mapping[str, str] | None) -> dict[str, str]:
    """A copy, if names and values are text; otherwise an error that says so."""
    for name, value in (environment or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                f"environment={{{name!r}: {value!r}}}: names and values must be text, as in "
                f"{{{str(name)!r}: {str(value)!r}}}"
            )
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(
                f"environment={{{name!r}: …}}: a variable's name must not be empty or contain '='; "
                "neither name nor value may contain NUL"
            )
        if name == "PYTHONHASHSEED":
            raise ValueError(
                f"environment={{{name!r}: {value!r}}}: all workers of a run have the head's; set "
                f"it where the head runs: export {name}={value}"
            )
    return dict(environment or {})
