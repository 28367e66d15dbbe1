"""Distributions of torch, or of ours that hold tensors, as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import distributions as td

from clusterenv import distributions
from clusterenv.arrays import Array
from clusterenv.distributions import Distribution
from clusterenv.distributions.base import ArrayFields
from clusterenv.randomness import SlotRandom


def to_array(tensor: torch.Tensor) -> Array:
    """The numbers of a tensor, in its own memory where that is possible."""
    # numpy has no bfloat16.
    plain = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    array: Array = plain.numpy(force=True)
    return array


def to_plain_distribution(found: Any) -> Distribution:
    """Convert a distribution of torch's (or one of ours that holds tensors) to plain arrays."""
    match found:
        case ArrayFields():
            return _with_plain_fields(found)
        case td.Categorical() if found.logits.dim() == 3:
            rows, factors, size = found.logits.shape
            flat = to_array(found.logits.reshape(rows, factors * size))
            return distributions.MultiCategorical(flat, (size,) * factors)
        case td.Categorical() | td.OneHotCategorical():
            return distributions.Categorical(to_array(found.logits))
        case td.Independent():
            return to_plain_distribution(found.base_dist)
        case td.Normal():
            return distributions.DiagonalGaussian(to_array(found.loc), to_array(found.scale.log()))
        case td.Bernoulli():
            return distributions.Bernoulli(to_array(found.logits))
        case td.Distribution():
            return _Foreign(found)
        case list() if all(isinstance(part, td.Categorical) for part in found):
            sizes = tuple(part.logits.shape[-1] for part in found)
            logits = torch.cat([part.logits for part in found], dim=-1)
            return distributions.MultiCategorical(to_array(logits), sizes)
        case dict() | [td.Distribution(), *_]:
            return _to_joint(found)
        case distributions.Joint(parts=parts):
            return _to_joint(parts)
        case torch.Tensor():
            raise TypeError(
                "the policy's `distribution` returned a tensor; return a torch.distributions "
                "object, e.g. Categorical(logits=tensor) or Normal(mean, std), or for the values "
                "of actions clusterenv.distributions.EpsilonGreedy(tensor, epsilon)"
            )
    return _with_plain_fields(found)


def _with_plain_fields(found: Any) -> Distribution:
    fields = {
        name: to_array(field) if isinstance(field, torch.Tensor) else field
        for name, field in vars(found).items()
    }
    plain: Distribution = type(found)(**fields)
    return plain


def _to_joint(parts: Any) -> distributions.Joint:
    if isinstance(parts, Mapping):
        plain = {key: to_plain_distribution(part) for key, part in parts.items()}
        return distributions.Joint(plain)
    return distributions.Joint(tuple(to_plain_distribution(part) for part in parts))


class _Foreign:
    """A torch distribution that we have no arrays for; it draws with torch's own generator."""

    def __init__(self, inner: td.Distribution) -> None:
        self._inner = inner

    def arrays(self) -> dict[str, Array]:
        return {}

    def with_arrays(self, arrays: dict[str, Array]) -> _Foreign:
        return self

    def divergence(self, newer: _Foreign) -> Array:
        return to_array(td.kl_divergence(self._inner, newer._inner))

    def sample(self, rng: SlotRandom) -> Array:
        return to_array(self._inner.sample())

    def mode(self) -> Array:
        return to_array(_mode(self._inner))

    def log_prob(self, actions: Array) -> Array:
        device = _mode(self._inner).device
        log_prob = self._inner.log_prob(torch.from_numpy(actions).to(device))
        summed = to_array(log_prob.reshape(len(actions), -1).sum(-1))
        if np.isnan(summed).any():
            # Squashed actions that were rounded to their bound have a density of inf - inf.
            is_sound = np.isfinite(self.mode()).reshape(len(actions), -1).all(1)
            summed = np.where(np.isnan(summed) & is_sound, -np.inf, summed)
        return summed


def _mode(found: td.Distribution) -> torch.Tensor:
    """The mode; for transformed distributions, where torch has none, the base's, transformed."""
    if isinstance(found, td.TransformedDistribution):
        mode = _mode(found.base_dist)
        for transform in found.transforms:
            mode = transform(mode)
        return mode
    return _mode(found.base_dist) if isinstance(found, td.Independent) else found.mode
