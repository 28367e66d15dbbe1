"""Gymnasium spaces ⇄ plain values, and the array layout of a space.

A space is a tree of Dict and Tuple with *leaves*. An array leaf (Box, Discrete, MultiDiscrete,
MultiBinary) becomes one array with a row per slot. An object leaf (Text, Graph, Sequence, OneOf,
a custom space) becomes a tuple with one value per slot, as Gymnasium batches it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

Path = tuple[str | int, ...]
_MOST_DIMENSIONS, _MOST_BITS = 64, 1 << 28


@dataclass(frozen=True)
class Leaf:
    """One leaf of a space; ``dtype`` is None for an object leaf."""

    path: Path
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]

    @property
    def is_array(self) -> bool:
        """Whether the leaf is batched as one array."""
        return self.dtype is not None

    def of(self, value: Any) -> Any:
        """The part of ``value`` that belongs to this leaf."""
        for key in self.path:
            value = value[key]
        return value


def leaves_of(space: Space[Any], path: Path = ()) -> tuple[Leaf, ...]:
    """The leaves of ``space``, in Gymnasium's own order."""
    if isinstance(space, spaces.Dict):
        children: Sequence[tuple[str | int, Space[Any]]] = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        children = list(enumerate(space.spaces))
    elif isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        return (Leaf(path, np.dtype(space.dtype), tuple(space.shape or ())),)
    else:
        return (Leaf(path, None, ()),)
    return tuple(leaf for key, child in children for leaf in leaves_of(child, (*path, key)))


def single_array_leaf(space: Space[Any]) -> Leaf | None:
    """The leaf of a space whose values are one array; None for a Dict or Tuple, even of one."""
    leaf, *others = leaves_of(space) or (None,)
    return leaf if leaf is not None and leaf.is_array and not leaf.path and not others else None


def join_leaves(space: Space[Any], values: Sequence[Any]) -> Any:
    """The structure of ``space`` with ``values``, one per leaf, in its places."""
    return _join(space, iter(values))


def _join(space: Space[Any], remaining: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _join(child, remaining) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple([_join(child, remaining) for child in space.spaces])
    return next(remaining)


def rows_of(slots: Sequence[int], first: int = 0) -> slice | list[int]:
    """An index of the rows of ``slots`` (ascending), where row 0 is slot ``first``.

    A slice, which is cheaper, where it can be.
    """
    if slots[-1] - slots[0] + 1 == len(slots):
        return slice(slots[0] - first, slots[-1] + 1 - first)
    return [slot - first for slot in slots]


def pick_rows(rows: Sequence[int], values: Any) -> Any:
    """Those rows of an array, or those items of a list."""
    return values[list(rows)] if isinstance(values, np.ndarray) else [values[row] for row in rows]


# What a space is made of, as plain values: [kind, constructor arguments, random state].


def space_to_plain(space: Space[Any]) -> Any:
    """``space`` as a plain value, or itself where only pickle could carry it (a custom space)."""
    describe = _DESCRIBE.get(type(space))
    if describe is None:
        return space
    generator = getattr(space, "_np_random", None)
    state = None if generator is None else generator.bit_generator.state
    return ["space", type(space).__name__, describe(space), state]


def space_from_plain(plain: Any) -> Space[Any]:
    """The space that :func:`space_to_plain` described."""
    if isinstance(plain, Space):
        return plain
    match plain:
        case ["space", str(kind), dict(parts), state] if kind in _BUILD:
            space: Space[Any] = _BUILD[kind](parts)
        case _:
            raise ValueError(f"{plain!r:.80} does not describe a space")
    if state is not None:
        bits = _BIT_GENERATORS[state["bit_generator"]]()
        bits.state = state
        space._np_random = np.random.Generator(bits)
    return space


_BIT_GENERATORS: dict[str, Callable[[], Any]] = {
    "PCG64": np.random.PCG64,
    "PCG64DXSM": np.random.PCG64DXSM,
    "MT19937": np.random.MT19937,
    "Philox": np.random.Philox,
    "SFC64": np.random.SFC64,
}


def _many_to_plain(children: Sequence[Space[Any]]) -> list[Any]:
    return [space_to_plain(child) for child in children]


def _many_from_plain(plains: list[Any]) -> list[Space[Any]]:
    return [space_from_plain(plain) for plain in plains]


_DESCRIBE: dict[type, Callable[[Any], dict[str, Any]]] = {
    spaces.Box: lambda s: {
        "low": s.low,
        "high": s.high,
        "dtype": np.dtype(s.dtype).str,
        "bounded": (s.bounded_below, s.bounded_above),
        "text": (s.low_repr, s.high_repr),
    },
    spaces.Discrete: lambda s: {"n": s.n, "start": s.start, "dtype": np.dtype(s.dtype).str},
    spaces.MultiDiscrete: lambda s: {
        "nvec": s.nvec,
        "start": s.start,
        "dtype": np.dtype(s.dtype).str,
    },
    spaces.MultiBinary: lambda s: {"n": s.n if isinstance(s.n, int) else list(s.n)},
    spaces.Text: lambda s: {
        "min_length": s.min_length,
        "max_length": s.max_length,
        "charset": "".join(s.character_list),
    },
    spaces.Dict: lambda s: {
        "keys": list(s.spaces),
        "spaces": _many_to_plain(list(s.spaces.values())),
        "sort_keys": getattr(s, "sort_keys", None),
    },
    spaces.Tuple: lambda s: {"spaces": _many_to_plain(s.spaces)},
    spaces.OneOf: lambda s: {"spaces": _many_to_plain(s.spaces)},
    spaces.Sequence: lambda s: {"space": space_to_plain(s.feature_space), "stack": s.stack},
    spaces.Graph: lambda s: {
        "node": space_to_plain(s.node_space),
        "edge": None if s.edge_space is None else space_to_plain(s.edge_space),
    },
}


def _build_box(parts: dict[str, Any]) -> Space[Any]:
    low, high = parts["low"], parts["high"]
    space = spaces.Box(low, high, shape=low.shape, dtype=np.dtype(parts["dtype"]))
    # An unbounded integer Box cannot be told from its bounds.
    space.bounded_below, space.bounded_above = parts["bounded"]
    space.low_repr, space.high_repr = parts["text"]
    return space


def _build_discrete(parts: dict[str, Any]) -> Space[Any]:
    space = spaces.Discrete(parts["n"], start=parts["start"])
    dtype = np.dtype(parts["dtype"])
    # The `dtype` argument is younger than the oldest Gymnasium that we support.
    return space if space.dtype == dtype else spaces.Discrete(**{**parts, "dtype": dtype})


def _build_multi_binary(parts: dict[str, Any]) -> Space[Any]:
    sizes = parts["n"] if isinstance(parts["n"], list) else [parts["n"]]
    # The one space that is not as large as what describes it.
    if len(sizes) > _MOST_DIMENSIONS or math.prod(sizes) > _MOST_BITS:
        raise ValueError(f"a MultiBinary space of more than {_MOST_BITS} bits")
    return spaces.MultiBinary(parts["n"])


def _build_dict(parts: dict[str, Any]) -> Space[Any]:
    children = OrderedDict(zip(parts["keys"], _many_from_plain(parts["spaces"]), strict=True))
    space = spaces.Dict(children)
    if parts["sort_keys"] is not None:
        space.sort_keys = parts["sort_keys"]
    return space


_BUILD: dict[str, Callable[[dict[str, Any]], Space[Any]]] = {
    "Box": _build_box,
    "Discrete": _build_discrete,
    "MultiDiscrete": lambda p: spaces.MultiDiscrete(
        p["nvec"], dtype=np.dtype(p["dtype"]), start=p["start"]
    ),
    "MultiBinary": _build_multi_binary,
    "Text": lambda p: spaces.Text(**p),
    "Dict": _build_dict,
    "Tuple": lambda p: spaces.Tuple(_many_from_plain(p["spaces"])),
    "OneOf": lambda p: spaces.OneOf(_many_from_plain(p["spaces"])),
    "Sequence": lambda p: spaces.Sequence(space_from_plain(p["space"]), stack=p["stack"]),
    "Graph": lambda p: spaces.Graph(
        space_from_plain(p["node"]),
        None if p["edge"] is None else space_from_plain(p["edge"]),
    ),
}
