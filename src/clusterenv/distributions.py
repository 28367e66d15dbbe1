"""Distributions over actions, as plain arrays. A new one is one class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from clusterenv.randomness import SlotRandom
from clusterenv.wire.codec import Array


class Distribution(Protocol):
    """A batch of distributions, one per row."""

    def sample(self, rng: SlotRandom) -> Array:
        """One action per row."""

    def mode(self) -> Array:
        """The most likely action of each row."""

    def log_prob(self, actions: Array) -> Array:
        """The log-probability of each row's action."""


@dataclass(frozen=True)
class Categorical:
    """Over actions 0 … k−1, from unnormalised log-probabilities of shape (rows, k)."""

    logits: Array

    def _log_probs(self) -> Array:
        shifted = self.logits - self.logits.max(axis=-1, keepdims=True)
        result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return result

    def sample(self, rng: SlotRandom) -> Array:
        """One action per row."""
        cumulative = np.cumsum(np.exp(self._log_probs()), axis=-1)
        # Rounding may leave the last sum just below 1.
        cumulative[:, -1] = 1.0
        result: Array = (rng.uniform() >= cumulative).sum(axis=-1)
        return result

    def mode(self) -> Array:
        """The most likely action of each row."""
        result: Array = self.logits.argmax(axis=-1)
        return result

    def log_prob(self, actions: Array) -> Array:
        """The log-probability of each row's action."""
        return np.take_along_axis(self._log_probs(), actions[:, None], axis=-1)[:, 0]
