"""Checks of whole numbers that the user passes."""

from __future__ import annotations

from operator import index
from typing import Any


def check_count(name: str, value: Any, least: int = 1, advice: str = "") -> int:
    """``value`` if it is a whole number of at least ``least``; otherwise an error that says so."""
    more = f"; {advice}" if advice else ""
    count = _whole(name, value, f", at least {least}", more)
    if count < least:
        raise ValueError(f"{name}={value!r} must be at least {least}{more}")
    return count


def check_part(name: str, value: Any, whole: int, what: str) -> int:
    """``value`` if it is a whole number from 1 to ``whole``, which the error calls ``what``."""
    count = _whole(name, value, f" between 1 and {what}")
    if not 1 <= count <= whole:
        raise ValueError(f"{name}={value!r} must be between 1 and {what}")
    return count


def _whole(name: str, value: Any, bounds: str, more: str = "") -> int:
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    instead = f": pass {int(value)}" if isinstance(value, float) and value.is_integer() else ""
    raise TypeError(f"{name}={value!r} must be a whole number{bounds}{instead}{more}")
