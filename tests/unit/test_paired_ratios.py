"""Ratios of measurements taken in pairs, as the benchmarks report them."""

import importlib
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def ratio_of(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("paired").ratio_of


def test_a_drift_that_hits_both_sides_cancels_out(ratio_of):
    machine = np.array([1.0, 0.3, 0.9, 0.5, 2.0])
    ratio = ratio_of(100 * machine, 110 * machine)
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((1.1, 1.1, 1.1))


def test_one_disturbed_pair_moves_neither_median_nor_interval_far(ratio_of):
    after = np.linspace(0.98, 1.02, 15)
    after[3] = 0.1
    ratio = ratio_of(np.ones(15), after)
    assert 0.99 < ratio.low < ratio.median < ratio.high < 1.02


def test_the_interval_is_narrower_with_more_pairs(ratio_of):
    noise = np.random.default_rng(1).normal(1, 0.1, 400)
    few, many = ratio_of(np.ones(16), noise[:16]), ratio_of(np.ones(400), noise)
    assert many.high - many.low < (few.high - few.low) / 2
    assert many.low < 1 < many.high
