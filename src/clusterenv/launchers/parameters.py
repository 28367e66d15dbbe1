"""What is said to whoever gives a launcher a parameter that makes no sense."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex, TypeVar, cast

Init = TypeVar("Init", bound=Callable[..., None])


def names_valid_parameters(init: Init) -> Init:
    """An ``__init__`` that answers a name which it does not know with those that it knows."""
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


def check_count(name: str, value: Any, least: int = 1, advice: str = "") -> int:
    """The value, if it is a whole number that is not less; an error that says so otherwise."""
    more = f"; {advice}" if advice else ""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a whole number, at least {least}{more}")
    count = operator.index(value)
    if count < least:
        raise ValueError(f"{name}={value!r} must be at least {least}{more}")
    return count


def check_environment(environment: Mapping[str, str] | None) -> dict[str, str]:
    """A copy, if names and values are text; an error that says so otherwise."""
    for name, value in (environment or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                f"environment={{{name!r}: {value!r}}}: names and values must be text, as in "
                f"{{{str(name)!r}: {str(value)!r}}}"
            )
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"environment={{{name!r}: …}}: that is no name of a variable")
    return dict(environment or {})
