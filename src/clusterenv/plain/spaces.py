"""Gymnasium spaces ⇄ plain values, and the array layout of a space.

A space is a tree of Dict and Tuple with *leaves*. An array leaf (Box, Discrete, MultiDiscrete,
MultiBinary) becomes one array with a row per slot. An object leaf (Text, Graph, Sequence, OneOf,
a custom space) becomes a tuple with one value per slot, as Gymnasium batches it.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from gymnasium import Space, spaces

from clusterenv.arrays import Array
from clusterenv.plain.values import dtype_of_plain_data

Path = tuple[str | int, ...]
_MOST_DIMENSIONS, _MOST_BITS = 64, 1 << 28
_LONGEST_TEXT, _LONGEST_BOUND = 1 << 24, 100_000
# For one value of a Box that is described by its shape and two numbers.
_MOST_BYTES = 1 << 31
# The bounds of a larger Box are views of one number each: as arrays they would repeatedly need four
# times the memory of an observation.
_LARGE_BYTES = 1 << 25


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
    """The leaf of a space whose values are one array; None for a Dict or Tuple, even with one."""
    leaf, *others = leaves_of(space) or (None,)
    return leaf if leaf is not None and leaf.is_array and not leaf.path and not others else None


def join_leaves(space: Space[Any], values: Sequence[Any]) -> Any:
    """The structure of ``space`` filled with ``values``, one per leaf."""
    return _join(space, iter(values))


def _join(space: Space[Any], remaining: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _join(child, remaining) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple([_join(child, remaining) for child in space.spaces])
    return next(remaining)


def rows_of(slots: Sequence[int], first: int = 0) -> slice | list[int]:
    """An index of the rows of ``slots`` (ascending), where row 0 is slot ``first``.

    It is a slice, which is cheaper, if possible.
    """
    if slots[-1] - slots[0] + 1 == len(slots):
        return slice(slots[0] - first, slots[-1] + 1 - first)
    return [slot - first for slot in slots]


def pick_rows(rows: Sequence[int], values: Any) -> Any:
    """These rows of an array, or these items of a list."""
    return values[list(rows)] if isinstance(values, np.ndarray) else [values[row] for row in rows]


# What a space is made of, as plain values: [kind, constructor arguments, random state].


def space_to_plain(space: Space[Any]) -> Any:
    """``space`` as a plain value; or itself if only pickle could carry it (a custom space)."""
    describe = _DESCRIBE.get(type(space))
    if describe is None:
        return space
    generator = getattr(space, "_np_random", None)
    state = None if generator is None else generator.bit_generator.state
    return ["space", type(space).__name__, describe(space), state]


def space_from_plain(plain: Any, *, trusted: bool = False) -> Space[Any]:
    """The space that :func:`space_to_plain` described.

    Its random state is taken only if the sender is ``trusted``: NumPy does not check what it
    loads, and a generator with a position out of range reads beyond its memory.
    """
    if isinstance(plain, Space):
        return plain
    match plain:
        case ["space", str(kind), dict(parts), state] if kind in _BUILD:
            space: Space[Any] = _BUILD[kind](parts, trusted)
        case _:
            raise ValueError(f"{plain!r:.80} does not describe a space")
    if trusted and state is not None:
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


def _many_from_plain(plains: list[Any], trusted: bool) -> list[Space[Any]]:
    return [space_from_plain(plain, trusted=trusted) for plain in plains]


_DESCRIBE: dict[type, Callable[[Any], dict[str, Any]]] = {
    spaces.Box: lambda s: {
        "shape": list(s.shape),
        "low": _in_short(s.low),
        "high": _in_short(s.high),
        "dtype": np.dtype(s.dtype).str,
        "bounded": (_in_short(s.bounded_below), _in_short(s.bounded_above)),
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


def _in_short(bounds: Array) -> Array:
    """``bounds`` as one number if all of them are the same, bit by bit."""
    if bounds.size == 0 or bounds.ndim == 0:
        return np.asarray(bounds)  # before Gymnasium 1.3 some are numpy scalars
    first = np.array(bounds[(0,) * bounds.ndim], bounds.dtype)
    if not any(bounds.strides):
        return first
    raw = np.ascontiguousarray(bounds).reshape(bounds.size, 1).view(np.uint8)
    return first if (raw == raw[0]).all() else bounds


def _build_box(parts: dict[str, Any], _: bool) -> Space[Any]:
    shape, dtype = _shape_of(parts["shape"]), dtype_of_plain_data(parts["dtype"])
    size = math.prod(shape) * dtype.itemsize
    if size > _MOST_BYTES:
        raise ValueError(f"a Box of {size} bytes; the most is {_MOST_BYTES}")
    given = parts["low"], parts["high"], *parts["bounded"]
    if not all(isinstance(array, np.ndarray) for array in given):
        raise ValueError("the bounds of a Box are arrays")
    if any(array.dtype != np.bool_ for array in parts["bounded"]):
        raise ValueError("a Box that does not say of each number whether it is bounded")
    low, high, *bounded = (np.broadcast_to(array, shape) for array in given)
    space = _large_box(low, high) if size > _LARGE_BYTES else spaces.Box(low, high, shape, dtype)
    # Whether an integer Box is bounded does not follow from its bounds.
    space.bounded_below, space.bounded_above = bounded
    if size <= _LARGE_BYTES:
        space.bounded_below, space.bounded_above = (array.copy() for array in bounded)
    space.low_repr, space.high_repr = (
        None if text is None else f"{text:.{_LONGEST_BOUND}}" for text in parts["text"]
    )
    return space


def _shape_of(sizes: Any) -> tuple[int, ...]:
    is_shape = isinstance(sizes, list) and len(sizes) <= _MOST_DIMENSIONS
    if not is_shape or not all(type(size) is int and 0 <= size <= _MOST_BYTES for size in sizes):
        raise ValueError(f"{sizes!r:.80} is no shape")
    return tuple(sizes)


def _large_box(low: Array, high: Array) -> spaces.Box:
    """A Box with exactly these bounds, which its constructor would copy."""
    space = spaces.Box(0, 1, (), low.dtype)
    space.low, space.high, space._shape = low, high, low.shape
    return space


def is_large(space: Space[Any]) -> TypeGuard[spaces.Box]:
    """Whether it is a Box whose bounds are views of one number each."""
    if type(space) is not spaces.Box or space.low.nbytes <= _LARGE_BYTES:
        return False
    return not any(space.low.strides)


def are_equal(space: Space[Any], other: Space[Any]) -> bool:
    """Like ``==``, which would take seconds for large ones."""
    if not (is_large(space) and is_large(other)):
        return bool(space == other)
    ends = [(box.low.flat[0], box.high.flat[0]) for box in (space, other) if box.low.size]
    alike = (space.shape, space.dtype) == (other.shape, other.dtype)
    return alike and len({*ends}) == 1


def batch_large(space: Space[Any], count: int) -> Space[Any] | None:
    """The space of ``count`` values of a large Box, with views as bounds; None for others."""
    if not is_large(space):
        return None
    shape = (count, *space.shape)
    views = [np.broadcast_to(array, shape) for array in (space.low, space.high)]
    batched = _large_box(*views)
    batched.bounded_below, batched.bounded_above = (
        np.broadcast_to(array, shape) for array in (space.bounded_below, space.bounded_above)
    )
    batched.low_repr, batched.high_repr = space.low_repr, space.high_repr
    batched._np_random = copy.deepcopy(space.np_random)
    return batched


def _build_discrete(parts: dict[str, Any], _: bool) -> Space[Any]:
    space = spaces.Discrete(parts["n"], start=parts["start"])
    dtype = dtype_of_plain_data(parts["dtype"])
    # The oldest Gymnasium that we support has no `dtype` argument.
    return space if space.dtype == dtype else spaces.Discrete(**{**parts, "dtype": dtype})


def _build_multi_discrete(parts: dict[str, Any], _: bool) -> Space[Any]:
    dtype = dtype_of_plain_data(parts["dtype"])
    return spaces.MultiDiscrete(parts["nvec"], dtype=dtype, start=parts["start"])


def _build_multi_binary(parts: dict[str, Any], _: bool) -> Space[Any]:
    sizes = parts["n"] if isinstance(parts["n"], list) else [parts["n"]]
    # The one space that can be larger than its description.
    if len(sizes) > _MOST_DIMENSIONS or math.prod(sizes) > _MOST_BITS:
        raise ValueError(f"a MultiBinary space of more than {_MOST_BITS} bits")
    return spaces.MultiBinary(parts["n"])


def _build_text(parts: dict[str, Any], _: bool) -> Space[Any]:
    if parts["max_length"] > _LONGEST_TEXT:
        raise ValueError(f"a Text space of more than {_LONGEST_TEXT} characters")
    return spaces.Text(**parts)


def _build_dict(parts: dict[str, Any], trusted: bool) -> Space[Any]:
    values = _many_from_plain(parts["spaces"], trusted)
    space = spaces.Dict(OrderedDict(zip(parts["keys"], values, strict=True)))
    if parts["sort_keys"] is not None:
        space.sort_keys = bool(parts["sort_keys"])
    return space


_BUILD: dict[str, Callable[[dict[str, Any], bool], Space[Any]]] = {
    "Box": _build_box,
    "Discrete": _build_discrete,
    "MultiDiscrete": _build_multi_discrete,
    "MultiBinary": _build_multi_binary,
    "Text": _build_text,
    "Dict": _build_dict,
    "Tuple": lambda p, trusted: spaces.Tuple(_many_from_plain(p["spaces"], trusted)),
    "OneOf": lambda p, trusted: spaces.OneOf(_many_from_plain(p["spaces"], trusted)),
    "Sequence": lambda p, trusted: spaces.Sequence(
        space_from_plain(p["space"], trusted=trusted), stack=bool(p["stack"])
    ),
    "Graph": lambda p, trusted: spaces.Graph(
        space_from_plain(p["node"], trusted=trusted),
        None if p["edge"] is None else space_from_plain(p["edge"], trusted=trusted),
    ),
}
