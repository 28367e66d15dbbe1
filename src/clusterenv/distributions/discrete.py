"""Distributions over finitely many actions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from clusterenv.arrays import Array
from clusterenv.distributions.base import ArrayFields, per_row, sum_rows
from clusterenv.randomness import SlotRandom


@dataclass(frozen=True)
class Categorical(ArrayFields):
    """Over actions ``start`` … ``start + k − 1``, from logits of shape (rows, k).

    A masked action has the logit −inf.
    """

    logits: Array
    start: int = 0
    ARRAYS: ClassVar[tuple[str, ...]] = ("logits",)

    @cached_property
    def _shifted(self) -> Array:
        """Logits with a maximum of 0, so that no exponential overflows."""
        self.refuse_tensors()
        return np.asarray(self.logits - np.maximum.reduce(self.logits, axis=-1, keepdims=True))

    @cached_property
    def _cumulative(self) -> Array:
        """Cumulative probabilities, times a constant that is in the last column."""
        return np.exp(self._shifted).cumsum(axis=-1)

    @cached_property
    def log_probs(self) -> Array:
        """Normalised logits."""
        return np.asarray(self._shifted - np.log(self._cumulative[:, -1:]))

    def sample(self, rng: SlotRandom) -> Array:
        """One action per row, by inversion."""
        return self._invert(rng.uniform())

    def _invert(self, draws: Array) -> Array:
        cumulative = self._cumulative
        # A draw is less than 1, so its product with the last sum is less than that sum.
        index = (draws * cumulative[:, -1:] < cumulative).argmax(axis=-1)
        return np.asarray(index + self.start if self.start else index)

    def mode(self) -> Array:
        """The most likely action of each row."""
        return np.asarray(self.logits.argmax(axis=-1) + self.start)

    def log_prob(self, actions: Array) -> Array:
        """The log-probability of each row's action."""
        chosen: Array = self.log_probs[np.arange(len(actions)), np.asarray(actions) - self.start]
        return chosen

    def kl(self, newer: Categorical) -> Array:
        """KL(this ‖ newer); infinite where an action became impossible."""
        return _kl(self.log_probs, newer.log_probs)

    divergence = kl

    def total_variation(self, newer: Categorical) -> Array:
        """Half the sum of the differences in probability."""
        return _total_variation(np.exp(self.log_probs), np.exp(newer.log_probs))

    def jensen_shannon(self, newer: Categorical) -> Array:
        """The mean KL of both to their mixture, at most ln 2."""
        mine, others = self.log_probs, newer.log_probs
        mixture = np.logaddexp(mine, others) - np.log(2)
        return (_kl(mine, mixture) + _kl(others, mixture)) / 2


@dataclass(frozen=True)
class MultiCategorical(ArrayFields):
    """Several independent Categoricals per row: ``logits`` holds one group of ``sizes[i]`` each."""

    logits: Array
    sizes: tuple[int, ...]
    ARRAYS: ClassVar[tuple[str, ...]] = ("logits",)

    def factors(self) -> list[Categorical]:
        """The Categorical of each factor."""
        cuts = np.cumsum(self.sizes)[:-1]
        return [Categorical(part) for part in np.split(self.logits, cuts, axis=-1)]

    def sample(self, rng: SlotRandom) -> Array:
        """One action per row: an array with a column per factor."""
        draws = rng.uniform(len(self.sizes))
        columns = [
            factor._invert(draws[:, index : index + 1])
            for index, factor in enumerate(self.factors())
        ]
        return np.stack(columns, axis=-1)

    def mode(self) -> Array:
        """The most likely action of each row."""
        return np.stack([factor.mode() for factor in self.factors()], axis=-1)

    def log_prob(self, actions: Array) -> Array:
        """The log-probability of each row's action, summed over the factors."""
        columns = np.moveaxis(np.asarray(actions), -1, 0)
        parts = [f.log_prob(column) for f, column in zip(self.factors(), columns, strict=True)]
        return np.asarray(np.sum(parts, axis=0))

    def kl(self, newer: MultiCategorical) -> Array:
        """KL(this ‖ newer), summed over the factors."""
        pairs = zip(self.factors(), newer.factors(), strict=True)
        return np.asarray(np.sum([mine.kl(others) for mine, others in pairs], axis=0))

    divergence = kl

    def jensen_shannon(self, newer: MultiCategorical) -> Array:
        """The sum over the factors."""
        pairs = zip(self.factors(), newer.factors(), strict=True)
        return np.asarray(np.sum([mine.jensen_shannon(others) for mine, others in pairs], axis=0))


@dataclass(frozen=True)
class Bernoulli(ArrayFields):
    """Independent bits, from logits of shape (rows, …)."""

    logits: Array
    ARRAYS: ClassVar[tuple[str, ...]] = ("logits",)

    def sample(self, rng: SlotRandom) -> Array:
        """One array of bits per row."""
        flat = self.logits.reshape(len(self.logits), -1)
        bits = rng.uniform(flat.shape[1]) < np.exp(_log_sigmoid(flat))
        return bits.reshape(self.logits.shape).astype(np.int8)

    def mode(self) -> Array:
        """The most likely bits of each row."""
        return np.asarray(self.logits > 0).astype(np.int8)

    def log_prob(self, actions: Array) -> Array:
        """The log-probability of each row's bits."""
        self.refuse_tensors()
        signs = 2 * np.asarray(actions).astype(self.logits.dtype) - 1
        return sum_rows(_log_sigmoid(signs * self.logits))

    def kl(self, newer: Bernoulli) -> Array:
        """KL(this ‖ newer), summed over the bits."""
        return sum_rows(_kl(self._both(), newer._both()))

    divergence = kl

    def jensen_shannon(self, newer: Bernoulli) -> Array:
        """The sum over the bits."""
        mine, others = self._both(), newer._both()
        mixture = np.logaddexp(mine, others) - np.log(2)
        return sum_rows((_kl(mine, mixture) + _kl(others, mixture)) / 2)

    def _both(self) -> Array:
        """The log-probabilities of 1 and of 0, along a last axis."""
        return np.stack([_log_sigmoid(self.logits), _log_sigmoid(-self.logits)], axis=-1)


@dataclass(frozen=True)
class EpsilonGreedy(ArrayFields):
    """The best of k actions or, with probability ``epsilon``, any of them.

    A masked action has the value −inf.
    """

    values: Array
    """(rows, k)."""
    epsilon: Any
    """(rows,), or one number for all rows."""
    ARRAYS: ClassVar[tuple[str, ...]] = ("values", "epsilon")

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", per_row(self.epsilon, self.values))

    def sample(self, rng: SlotRandom) -> Array:
        """One action per row."""
        explore, choice = rng.uniform(2).T
        counts = self._allowed.sum(axis=-1)
        rank = np.minimum(choice * counts, counts - 1).astype(np.int64)
        anything = (self._allowed.cumsum(axis=-1) > rank[:, None]).argmax(axis=-1)
        return np.where(explore < self.epsilon, anything, self.mode())

    @cached_property
    def _allowed(self) -> Array:
        return ~np.isneginf(self.values)

    def mode(self) -> Array:
        """The best action of each row."""
        return np.asarray(self.values.argmax(axis=-1))

    def log_prob(self, actions: Array) -> Array:
        """The log-probability of each row's action."""
        self.refuse_tensors()
        chosen = self.probabilities()[np.arange(len(actions)), actions]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(chosen))

    def probabilities(self) -> Array:
        """The probability of each action, (rows, k)."""
        epsilon = np.asarray(self.epsilon)[:, None]
        counts = self._allowed.sum(axis=-1, keepdims=True, dtype=epsilon.dtype)
        is_best = np.arange(self.values.shape[1]) == self.mode()[:, None]
        return np.asarray(epsilon / np.maximum(1, counts) * self._allowed + (1 - epsilon) * is_best)

    def total_variation(self, newer: EpsilonGreedy) -> Array:
        """1 − ε where the best action has changed, else 0 (if ε is the same)."""
        return _total_variation(self.probabilities(), newer.probabilities())

    # A greedy choice that flips has an infinite KL as epsilon goes to 0.
    divergence = total_variation


def _kl(log_p: Array, log_q: Array) -> Array:
    """Σ p (log p − log q) over the last axis; terms that are impossible under p count as 0."""
    with np.errstate(invalid="ignore"):
        terms = np.where(np.isneginf(log_p), 0.0, np.exp(log_p) * (log_p - log_q))
    return np.asarray(terms.sum(axis=-1))


def _total_variation(p: Array, q: Array) -> Array:
    return np.asarray(np.abs(p - q).sum(axis=-1) / 2)


def _log_sigmoid(logits: Array) -> Array:
    return np.asarray(-np.logaddexp(0, -logits))
