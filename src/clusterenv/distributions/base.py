"""What every distribution can do."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from clusterenv.arrays import Array
from clusterenv.randomness import SlotRandom


class Distribution(Protocol):
    """A batch of distributions, one per row."""

    def sample(self, rng: SlotRandom) -> Any:
        """One action per row."""

    def mode(self) -> Any:
        """The most likely action of each row."""

    def log_prob(self, actions: Any) -> Array:
        """The log-probability of each row's action."""

    def divergence(self, newer: Any) -> Array:
        """How far ``newer`` is from this one, row by row: KL(this ‖ newer) if there is one."""

    def arrays(self) -> dict[str, Array]:
        """The arrays that distinguish rows, by name, with a row per slot; may be empty."""

    def with_arrays(self, arrays: dict[str, Array]) -> Self:
        """One of the same kind with these arrays."""


class ArrayFields:
    """Base of dataclasses whose rows differ in the fields that ``ARRAYS`` names."""

    ARRAYS: ClassVar[tuple[str, ...]]

    def arrays(self) -> dict[str, Array]:
        """The array fields."""
        return {name: getattr(self, name) for name in self.ARRAYS}

    def refuse_tensors(self) -> None:
        """TypeError if it holds tensors of torch, through which no gradient would flow."""
        if hasattr(getattr(self, self.ARRAYS[0]), "detach"):
            kind, fields = type(self).__name__, ", ".join(self.ARRAYS)
            raise TypeError(
                f"this {kind} holds tensors, and its own methods are for acting, by NumPy: for a "
                f"loss, make the distribution of torch.distributions from its {fields}"
            )

    def with_arrays(self, arrays: dict[str, Array]) -> Self:
        """One of the same kind with these arrays."""
        return dataclasses.replace(self, **arrays)  # type: ignore[type-var]


def per_row(value: Any, rows: Any) -> Any:
    """One number as an array with as many rows as ``rows``; anything else as it is."""
    if np.ndim(value):
        return value
    if hasattr(value, "expand"):  # a tensor, which keeps its device
        return value.expand(len(rows))
    return np.full(len(rows), value, np.float32) if np.isscalar(value) else value


def broadcast(value: Any, shaped: Any) -> Any:
    """``value`` in the shape of ``shaped``, as an array or a tensor."""
    if np.shape(value) == np.shape(shaped):
        return value
    # Not np.broadcast_to, which cannot take what JAX traces.
    return value.expand(shaped.shape) if hasattr(value, "expand") else value + 0 * shaped


def divergence_of_log_probs(behaviour: Array, newer: Array) -> Array:
    """Estimate KL(behaviour ‖ newer) from the log-probabilities of actions that were taken.

    With r the ratio of the two probabilities, the mean of r − 1 − ln r is the KL, and no term is
    negative.
    """
    log_ratio = np.asarray(newer, np.float64) - behaviour
    with np.errstate(over="ignore"):
        return np.asarray(np.expm1(log_ratio) - log_ratio)


def sum_rows(array: Array) -> Array:
    """One number per row."""
    return np.asarray(array.reshape(len(array), -1).sum(axis=-1))


def width(array: Array) -> int:
    """How many numbers a row has."""
    return int(np.prod(array.shape[1:], dtype=np.int64))
