"""What every policy can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from clusterenv.arrays import Array
from clusterenv.distributions import Distribution
from clusterenv.randomness import SlotRandom


@dataclass(frozen=True)
class Acted:
    """What a policy returns for a batch of observations; everything has a row per slot."""

    actions: Any
    distribution: Distribution | None = None
    """What the actions were drawn from."""
    outputs: dict[str, Array] = field(default_factory=dict)
    """Named arrays: ``log_prob``, ``value`` …"""
    state: Any = None
    """The next recurrent state: an array or a dict of arrays, or None."""


class Policy(Protocol):
    """A policy travels to the workers once by pickle; after that only its weights do.

    A recurrent policy gets the state that it returned last, with the rows of slots whose episode
    has ended set to zero; None stands for all zeros.
    """

    def act(self, observations: Any, state: Any, rng: SlotRandom | None) -> Acted:
        """Actions for a batch of observations: drawn from ``rng``, or the likeliest if None."""

    def weights(self) -> Mapping[str, Array]:
        """Everything that changes in training, as named arrays."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take these weights."""


def acts_on_device(policy: Policy) -> bool:
    """Whether it takes observations that are on an engine's device, such as JAX arrays."""
    return getattr(policy, "acts_on_device", False)


def draw(distribution: Distribution, rng: SlotRandom | None) -> tuple[Any, Array]:
    """Actions and their log-probabilities."""
    actions = distribution.mode() if rng is None else distribution.sample(rng)
    return actions, distribution.log_prob(actions)


def refuse_parts_at_head(outputs: Mapping[str, Array], parts: Sequence[str]) -> None:
    """ValueError if an output needs weights that stay at the head; in a copy they are all NaN."""
    for name, output in outputs.items():
        if np.isnan(output).any():
            raise ValueError(
                f"the policy's {name} is NaN. If it needs {', '.join(parts)}, which stays at the "
                "head (stays_at_head): return the distribution alone, and compute values with "
                "clusterenv.with_values, or let everything travel. Otherwise look at the "
                "observations that it acted on"
            )
