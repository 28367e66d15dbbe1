"""Random numbers that depend only on (seed, slot, step), never on which worker draws them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clusterenv.arrays import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BLOCK_STEPS = 64


def fresh_seed() -> int:
    """A random seed, for when the user gives none."""
    return int(np.random.SeedSequence().generate_state(1)[0])


def uniforms(seed: int, slots: Array, steps: Array, draws: int) -> Array:
    """Uniform numbers in [0, 1), shape (steps, slots, draws): a hash of their coordinates."""
    state = _mix(np.uint64(seed & 0xFFFFFFFFFFFFFFFF))
    state = _mix(state + slots.astype(np.uint64) * _GOLDEN)
    state = _mix(state[None, :] ^ (steps.astype(np.uint64) * _GOLDEN)[:, None])
    counters = np.arange(1, draws + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(state[:, :, None] + counters)
    result: Array = (bits >> np.uint64(11)) * (1.0 / (1 << 53))
    return result


def _mix(value: Array | np.uint64) -> Array:
    """The finaliser of SplitMix64: every input bit reaches every output bit."""
    mixed = np.atleast_1d(np.asarray(value, dtype=np.uint64)) + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Array = mixed ^ (mixed >> np.uint64(31))
    return result


class SlotRandom:
    """The random numbers of some slots, step by step; drawn in blocks, which is cheaper."""

    def __init__(self, seed: int, slots: Sequence[int]) -> None:
        self.seed = seed
        self._slots = np.asarray(slots)
        self._step = self._drawn = 0
        self._blocks: dict[tuple[int, int], tuple[int, Array]] = {}

    def go_to(self, step: int) -> None:
        """Draw for ``step`` from now on."""
        self._step, self._drawn = step, 0

    def uniform(self, draws: int = 1) -> Array:
        """Numbers in [0, 1) for this step, shape (slots, draws); different ones at each call."""
        block = self._step // _BLOCK_STEPS
        first, self._drawn = self._drawn, self._drawn + draws
        cached = self._blocks.get((first, draws))
        if cached is None or cached[0] != block:
            steps = np.arange(block * _BLOCK_STEPS, (block + 1) * _BLOCK_STEPS)
            every = uniforms(self.seed, self._slots, steps, first + draws)
            cached = block, every[:, :, first:]
            self._blocks[first, draws] = cached
        row: Array = cached[1][self._step % _BLOCK_STEPS]
        return row

    def normal(self, draws: int = 1) -> Array:
        """Standard normal numbers for this step, shape (slots, draws), by Box and Muller."""
        pairs = self.uniform(2 * draws)
        radius = np.sqrt(-2 * np.log1p(-pairs[:, :draws]))
        result: Array = radius * np.cos(2 * np.pi * pairs[:, draws:])
        return result
