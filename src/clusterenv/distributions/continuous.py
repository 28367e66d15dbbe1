"""Distributions over vectors of real numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from clusterenv.arrays import Array
from clusterenv.distributions.base import ArrayFields, broadcast, per_row, sum_rows, width
from clusterenv.randomness import SlotRandom

_LOG_2PI = float(np.log(2 * np.pi))
# atanh(±1) is infinite, so squashed actions are kept this far inside.
_SQUASH_MARGIN = 1e-6


@dataclass(frozen=True)
class DiagonalGaussian(ArrayFields):
    """Independent normals, (rows, …); ``log_std`` is broadcast to the shape of ``mean``.

    Samples go to the env as they are: clip them with a wrapper such as Gymnasium's ``ClipAction``,
    or take a :class:`SquashedGaussian`.
    """

    mean: Array
    log_std: Array
    ARRAYS: ClassVar[tuple[str, ...]] = ("mean", "log_std")

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_std", broadcast(self.log_std, self.mean))

    def sample(self, rng: SlotRandom) -> Array:
        """One action per row."""
        noise = rng.normal(width(self.mean)).reshape(self.mean.shape)
        return np.asarray(self.mean + np.exp(self.log_std) * noise).astype(self.mean.dtype)

    def mode(self) -> Array:
        """The mean."""
        return self.mean

    def log_prob(self, actions: Array) -> Array:
        """The log-density of each row's action, summed over dimensions."""
        self.refuse_tensors()
        scaled = (actions - self.mean) * np.exp(-self.log_std)
        return sum_rows(-0.5 * (scaled**2 + _LOG_2PI) - self.log_std)

    def kl(self, newer: DiagonalGaussian) -> Array:
        """KL(this ‖ newer), summed over dimensions."""
        grown = newer.log_std - self.log_std
        moved = (self.mean - newer.mean) * np.exp(-newer.log_std)
        return sum_rows(grown + (np.exp(-2 * grown) + moved**2 - 1) / 2)

    divergence = kl


@dataclass(frozen=True)
class SquashedGaussian(ArrayFields):
    """A diagonal Gaussian through tanh, stretched to [low, high]."""

    mean: Array
    log_std: Array
    low: Array | float = -1.0
    high: Array | float = 1.0
    ARRAYS: ClassVar[tuple[str, ...]] = ("mean", "log_std")

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_std", broadcast(self.log_std, self.mean))

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
        self.refuse_tensors()
        half = (np.asarray(self.high) - np.asarray(self.low)) / 2
        limit = 1 - _SQUASH_MARGIN
        squashed = np.clip((actions - self.low) / half - 1, -limit, limit)
        correction = sum_rows(np.log(half * (1 - squashed**2)) + np.zeros_like(self.mean))
        result: Array = self.before_squash.log_prob(np.arctanh(squashed)) - correction
        return result

    def kl(self, newer: SquashedGaussian) -> Array:
        """KL(this ‖ newer), which a squash common to both does not change."""
        return self.before_squash.kl(newer.before_squash)

    divergence = kl


@dataclass(frozen=True)
class Deterministic(ArrayFields):
    """One action per row plus Gaussian exploration noise, kept within [low, high]."""

    action: Array
    noise: Any
    """Standard deviation: (rows,), or one number for all rows."""
    low: Array | float = -np.inf
    high: Array | float = np.inf
    ARRAYS: ClassVar[tuple[str, ...]] = ("action", "noise")

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", per_row(self.noise, self.action))

    def sample(self, rng: SlotRandom) -> Array:
        """The action of each row with noise."""
        noise = rng.normal(width(self.action)).reshape(self.action.shape)
        scale = self.noise.reshape(-1, *([1] * (self.action.ndim - 1)))
        noisy = np.clip(self.action + scale * noise, self.low, self.high)
        return np.asarray(noisy, self.action.dtype)

    def mode(self) -> Array:
        """The action without noise."""
        return self.action

    def log_prob(self, actions: Array) -> Array:
        """The log-density of the noise before it was clipped to the bounds."""
        return DiagonalGaussian(self.action, self._log_noise()).log_prob(actions)

    def kl(self, newer: Deterministic) -> Array:
        """Σ Δ² / 2σ², with σ the noise of this one: how far actions moved relative to the noise."""
        moved = (newer.action - self.action).astype(np.float64) * np.exp(-self._log_noise())
        return sum_rows(moved**2 / 2)

    divergence = kl

    def _log_noise(self) -> Array:
        scale = self.noise.reshape(-1, *([1] * (self.action.ndim - 1)))
        smallest = np.finfo(self.action.dtype).tiny
        return np.asarray(np.log(np.maximum(np.broadcast_to(scale, self.action.shape), smallest)))
