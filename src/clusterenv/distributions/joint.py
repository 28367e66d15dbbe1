"""Independent parts, for action spaces that are tuples or dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.distributions.base import Distribution
from clusterenv.randomness import SlotRandom


@dataclass(frozen=True)
class Joint:
    """A distribution per part of the action space: a tuple of them, or a dict."""

    parts: tuple[Distribution, ...] | Mapping[str, Distribution]

    def sample(self, rng: SlotRandom) -> Any:
        """One action of each part."""
        return self._rebuild([part.sample(rng) for part in self._named().values()])

    def mode(self) -> Any:
        """The most likely action of each part."""
        return self._rebuild([part.mode() for part in self._named().values()])

    def log_prob(self, actions: Any) -> Array:
        """The sum over the parts."""
        keys = self.parts if isinstance(self.parts, Mapping) else range(len(self.parts))
        chosen = [actions[key] for key in keys]
        pairs = zip(self._named().values(), chosen, strict=True)
        return np.asarray(np.sum([part.log_prob(action) for part, action in pairs], axis=0))

    def divergence(self, newer: Joint) -> Array:
        """The sum over the parts."""
        pairs = zip(self._named().values(), newer._named().values(), strict=True)
        return np.asarray(np.sum([mine.divergence(others) for mine, others in pairs], axis=0))

    def arrays(self) -> dict[str, Array]:
        """The arrays of all parts, with the part in the name."""
        return {
            f"{part}.{name}": array
            for part, distribution in self._named().items()
            for name, array in distribution.arrays().items()
        }

    def with_arrays(self, arrays: dict[str, Array]) -> Joint:
        """One of the same kind with these arrays."""
        return Joint(
            self._rebuild(
                [
                    distribution.with_arrays(
                        {name: arrays[f"{part}.{name}"] for name in distribution.arrays()}
                    )
                    for part, distribution in self._named().items()
                ]
            )
        )

    def _named(self) -> dict[str, Distribution]:
        if isinstance(self.parts, Mapping):
            return dict(self.parts)
        return {str(index): part for index, part in enumerate(self.parts)}

    def _rebuild(self, values: list[Any]) -> Any:
        if isinstance(self.parts, Mapping):
            return dict(zip(self.parts, values, strict=True))
        return tuple(values)
