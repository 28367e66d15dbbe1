"""Fragments in transit: named arrays of some slots, joined where that is cheaper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.protocol.fragment_infos import PREFIX as INFOS
from clusterenv.protocol.requests import Collect

# Names that begin with these have a row per slot or per episode; all others are [T, n, …].
_TALL = ("state/", "finals/", "last_values")

Kinds = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""For named arrays: the shape of one row, and the dtype."""


def kinds_of(arrays: dict[str, Array]) -> Kinds:
    """What must agree in fragments that are joined; infos need not."""
    return {
        name: (array.shape[1 if name.startswith(_TALL) else 2 :], array.dtype)
        for name, array in arrays.items()
        if not name.startswith(INFOS)
    }


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class FragmentPart:
    """Steps of some slots (ascending) by one version, as named arrays."""

    request: Collect
    slots: tuple[int, ...]
    version: int
    arrays: dict[str, Array]
    release: Callable[[], None] = field(default=_nothing, repr=False)
    """To be called when the arrays, which may be in shared memory, are no longer needed."""
    joined: tuple[tuple[int, Sequence[int]], ...] = ()
    """The numbers of the requests that it answers, each with its slots, if there are several."""

    @property
    def answers(self) -> tuple[tuple[int, Sequence[int]], ...]:
        """The numbers of the requests that it answers, each with its slots."""
        return self.joined or ((self.request.request, self.slots),)

    def __lt__(self, other: FragmentPart) -> bool:
        return self.request.request < other.request.request


def join_arrays(name: str, arrays: list[Array]) -> Array:
    """Join the arrays of this name of several parts; the result belongs to the caller."""
    if len(arrays) == 1:  # a fragment of a stream
        return arrays[0].copy()
    return np.concatenate(arrays, axis=0 if name.startswith(_TALL) else 1)


def join_parts(parts: Sequence[FragmentPart]) -> FragmentPart:
    """Join parts of one version, whose slots ascend, into one part in memory of its own."""
    first = parts[0]
    arrays = {
        name: join_arrays(name, [part.arrays[name] for part in parts])
        for name in first.arrays
        if not name.startswith(INFOS)
    }
    # Each worker's infos are read as they are; copied, since the parts are released.
    for name, array in (item for part in parts for item in part.arrays.items()):
        if name.startswith(INFOS):
            arrays[name] = array.copy()
    slots = tuple(slot for part in parts for slot in part.slots)
    for part in parts:
        part.release()
    return FragmentPart(first.request, slots, first.version, arrays)
