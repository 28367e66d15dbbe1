"""Converts nested dicts, lists and tuples of arrays to named arrays and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clusterenv.arrays import Array


def named_weights(tree: Any) -> dict[str, Array]:
    """Every array by its path: ``{"layers": [{"bias": b}]}`` → ``{"layers/0/bias": b}``."""
    named: dict[str, Array] = {}
    for name, array in _leaves(tree, ""):
        if name in named:
            raise ValueError(f"two weights are called {name!r}: rename one of them")
        named[name] = array
    return named


def tree_like(tree: Any, named: Mapping[str, Array]) -> Any:
    """A tree of the same form, with the arrays of ``named``."""
    own = named_weights(tree).keys()
    if own != named.keys():
        raise ValueError(
            "these weights belong to another policy: unexpected "
            f"{sorted(named.keys() - own)}, missing {sorted(own - named.keys())}"
        )
    return _filled(tree, named, "")


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Array]]:
    children = _children(tree)
    if children is not None:
        for key, child in children:
            yield from _leaves(child, _join(path, key))
    elif tree is not None:
        array = np.asarray(tree)
        if array.dtype.kind not in "biufc":
            raise TypeError(
                f"weights must be arrays of numbers, in dicts, lists and tuples; {path!r} is a "
                f"{type(tree).__name__}"
            )
        yield path, array


def _filled(tree: Any, named: Mapping[str, Array], path: str) -> Any:
    children = _children(tree)
    if children is None:
        return None if tree is None else named[path]
    filled = {key: _filled(child, named, _join(path, key)) for key, child in children}
    if isinstance(tree, Mapping):
        return filled
    # A named tuple takes its items one by one.
    return type(tree)(*filled.values()) if hasattr(tree, "_fields") else type(tree)(filled.values())


def _children(tree: Any) -> list[tuple[Any, Any]] | None:
    """The items of a dict, list or tuple with their keys; None for all else."""
    if isinstance(tree, Mapping):
        return list(tree.items())
    if not isinstance(tree, list | tuple):
        return None
    return list(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)
