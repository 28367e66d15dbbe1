"""Policies by NumPy alone, for vectors and for images: workers start without torch.

Both sides of a comparison of two checkouts use them.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from either_side import public

Categorical = public("Categorical", "distributions")
NumpyPolicy = public("NumpyPolicy", "policies.numpy")
EVERY_PIXEL = 12


def policy_for(space: Any, num_actions: int) -> Any:
    """A linear policy on a few pixels of images, else an actor of two layers with 64 units."""
    rng = np.random.default_rng(0)
    if len(space.shape) > 1:
        return _pixel_policy(space, num_actions, rng)
    sizes = [space.shape[0], 64, 64, num_actions]
    weights = {"critic": _layer(rng, sizes[0], 1)}
    for place, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights[f"{2 * place}.weight"] = _layer(rng, inputs, outputs)
        weights[f"{2 * place}.bias"] = np.zeros(outputs, np.float32)
    return NumpyPolicy(distribution_of, weights, value_of)


def distribution_of(weights: Any, observations: Any) -> Any:
    """Two layers of tanh and one without."""
    values = observations
    for layer in (0, 2, 4):
        values = values @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        values = np.tanh(values) if layer < 4 else values
    return Categorical(values)


def value_of(weights: Any, observations: Any) -> np.ndarray:
    """A linear critic."""
    return np.asarray(observations @ weights["critic"].T)


def _pixel_policy(space: Any, num_actions: int, rng: np.random.Generator) -> Any:
    inputs = _few_pixels(np.zeros((1, *space.shape), space.dtype)).size
    weights = {"actor": _layer(rng, inputs, num_actions), "critic": _layer(rng, inputs, 1)}
    return NumpyPolicy(_distribution_of_pixels, weights, _value_of_pixels)


def _few_pixels(images: Any) -> np.ndarray:
    few = images[..., ::EVERY_PIXEL, ::EVERY_PIXEL]
    return few.reshape(len(images), -1) / np.float32(255)


def _distribution_of_pixels(weights: Any, images: Any) -> Any:
    return Categorical(_few_pixels(images) @ weights["actor"].T)


def _value_of_pixels(weights: Any, images: Any) -> np.ndarray:
    return np.asarray(_few_pixels(images) @ weights["critic"].T)


def _layer(rng: np.random.Generator, inputs: int, outputs: int) -> np.ndarray:
    return rng.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)
