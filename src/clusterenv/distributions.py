"""Distributions over actions, as plain arrays with a row per slot. A new one is one class.

Samples come from :class:`~clusterenv.randomness.SlotRandom`, so that they depend on slot and step
only. Each class names its array fields in ``ARRAYS``; they travel with fragments, so that the
head knows the distribution that acted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from clusterenv.randomness import SlotRandom
from clusterenv.wire.codec import Array

_LOG_2PI = float(np.log(2 * np.pi))
# atanh(±1) is infinite: keep squashed actions this far inside.
_SQUASH_MARGIN = 1e-6


class Distribution(Protocol):
    """A batch of distributions, one per row."""

    ARRAYS: ClassVar[tuple[str, ...]]

    def sample(self, rng: SlotRandom) -> Any:
        """One action per row."""

    def mode(self) -> Any:
        """The most likely action of each row."""

    def log_prob(self, actions: Any) -> Array:
        """The log-probability of each row's action."""


@dataclass(frozen=True)
class Categorical:
    """Over actions ``start`` … ``start + k − 1``, from logits of shape (rows, k).

    A masked action has the logit −inf.
    """

    logits: Array
    start: int = 0
    ARRAYS: ClassVar[tuple[str, ...]] = ("logits",)

    def log_probs(self) -> Array:
        """Normalised logits."""
        return _log_softmax(self.logits)

    def sample(self, rng: SlotRandom) -> Array:
        """One action per row, by inversion."""
        return _invert(np.exp(self.log_probs()), rng.uniform()) + self.start

    def mode(self) -> Array:
        """The most likely action of each row."""
        return np.asarray(self.logits.argmax(axis=-1) + self.start)

    def log_prob(self, actions: Array) -> Array:
        """The log-probability of each row's action."""
        indices = np.asarray(actions)[:, None] - self.start
        return np.take_along_axis(self.log_probs(), indices, axis=-1)[:, 0]


@dataclass(frozen=True)
class MultiCategorical:
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
            _invert(np.exp(factor.log_probs()), draws[:, index : index + 1])
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


@dataclass(frozen=True)
class Bernoulli:
    """Independent bits, from logits of shape (rows, …)."""

    logits: Array
    ARRAYS: ClassVar[tuple[str, ...]] = ("logits",)

    def sample(self, rng: SlotRandom) -> Array:
        """One array of bits per row."""
        flat = self.logits.reshape(len(self.logits), -1)
        bits = rng.uniform(flat.shape[1]) < np.exp(-np.logaddexp(0, -flat))
        return bits.reshape(self.logits.shape).astype(np.int8)

    def mode(self) -> Array:
        """The most likely bits of each row."""
        return np.asarray(self.logits > 0).astype(np.int8)

    def log_prob(self, actions: Array) -> Array:
        """The log-probability of each row's bits."""
        signs = 2 * np.asarray(actions).astype(self.logits.dtype) - 1
        return _sum_rows(-np.logaddexp(0, -signs * self.logits))


@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normals, (rows, …)."""

    mean: Array
    log_std: Array
    ARRAYS: ClassVar[tuple[str, ...]] = ("mean", "log_std")

    def sample(self, rng: SlotRandom) -> Array:
        """One action per row."""
        noise = rng.normal(_width(self.mean)).reshape(self.mean.shape)
        return np.asarray(self.mean + np.exp(self.log_std) * noise).astype(self.mean.dtype)

    def mode(self) -> Array:
        """The mean."""
        return self.mean

    def log_prob(self, actions: Array) -> Array:
        """The log-density of each row's action, summed over dimensions."""
        scaled = (actions - self.mean) * np.exp(-self.log_std)
        return _sum_rows(-0.5 * (scaled**2 + _LOG_2PI) - self.log_std)


@dataclass(frozen=True)
class SquashedGaussian:
    """A diagonal Gaussian through tanh, stretched to [low, high]."""

    mean: Array
    log_std: Array
    low: Array | float = -1.0
    high: Array | float = 1.0
    ARRAYS: ClassVar[tuple[str, ...]] = ("mean", "log_std")

    @property
    def before_squash(self) -> DiagonalGaussian:
        """The Gaussian inside."""
        return DiagonalGaussian(self.mean, self.log_std)

    def _stretch(self, squashed: Array) -> Array:
        half = (np.asarray(self.high) - np.asarray(self.low)) / 2
        return np.asarray(self.low + (squashed + 1) * half).astype(self.mean.dtype)

    def sample(self, rng: SlotRandom) -> Array:
        """One action per row."""
        return self._stretch(np.tanh(self.before_squash.sample(rng)))

    def mode(self) -> Array:
        """The squashed mean."""
        return self._stretch(np.tanh(self.mean))

    def log_prob(self, actions: Array) -> Array:
        """The log-density of each row's action."""
        half = (np.asarray(self.high) - np.asarray(self.low)) / 2
        limit = 1 - _SQUASH_MARGIN
        squashed = np.clip((actions - self.low) / half - 1, -limit, limit)
        correction = _sum_rows(np.log(half * (1 - squashed**2)) + np.zeros_like(self.mean))
        result: Array = self.before_squash.log_prob(np.arctanh(squashed)) - correction
        return result


@dataclass(frozen=True)
class Deterministic:
    """One action per row plus Gaussian exploration noise, kept within [low, high]."""

    action: Array
    noise: Array
    """Standard deviation, (rows,)."""
    low: Array | float = -np.inf
    high: Array | float = np.inf
    ARRAYS: ClassVar[tuple[str, ...]] = ("action", "noise")

    def sample(self, rng: SlotRandom) -> Array:
        """The action of each row with noise."""
        noise = rng.normal(_width(self.action)).reshape(self.action.shape)
        scale = self.noise.reshape(-1, *([1] * (self.action.ndim - 1)))
        noisy = np.clip(self.action + scale * noise, self.low, self.high)
        return np.asarray(noisy, self.action.dtype)

    def mode(self) -> Array:
        """The action without noise."""
        return self.action

    def log_prob(self, actions: Array) -> Array:
        """The log-density of the noise before it was cut to the bounds."""
        scale = self.noise.reshape(-1, *([1] * (self.action.ndim - 1)))
        smallest = np.finfo(self.action.dtype).tiny
        log_std = np.log(np.maximum(np.broadcast_to(scale, self.action.shape), smallest))
        return DiagonalGaussian(self.action, log_std).log_prob(actions)


@dataclass(frozen=True)
class EpsilonGreedy:
    """The best of k actions, or with probability ``epsilon`` any of them."""

    values: Array
    epsilon: Array
    """(rows,)."""
    ARRAYS: ClassVar[tuple[str, ...]] = ("values", "epsilon")

    def sample(self, rng: SlotRandom) -> Array:
        """One action per row."""
        explore, choice = rng.uniform(2).T
        anything = np.minimum(choice * self.values.shape[1], self.values.shape[1] - 1)
        return np.where(explore < self.epsilon, anything.astype(np.int64), self.mode())

    def mode(self) -> Array:
        """The best action of each row."""
        return np.asarray(self.values.argmax(axis=-1))

    def log_prob(self, actions: Array) -> Array:
        """The log-probability of each row's action."""
        uniform = self.epsilon / self.values.shape[1]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(uniform + (1 - self.epsilon) * (actions == self.mode())))


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _invert(probabilities: Array, draws: Array) -> Array:
    cumulative = np.cumsum(probabilities, axis=-1)
    index = (draws * cumulative[:, -1:] >= cumulative).sum(axis=-1)
    # Rounding up to the last sum itself would land beyond the last action.
    return np.asarray(np.minimum(index, probabilities.shape[-1] - 1))


def _width(array: Array) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64))


def _sum_rows(array: Array) -> Array:
    return np.asarray(array.reshape(len(array), -1).sum(axis=-1))
