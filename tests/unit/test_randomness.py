"""Numbers that depend on seed, slot and step only, and look random in every direction."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.randomness import SlotRandom, fresh_seed, uniforms

BLOCK = 64  # steps that are drawn together


def series(seed, slots, steps, draws=1):
    rng = SlotRandom(seed, slots)
    rows = []
    for step in steps:
        rng.go_to(step)
        rows.append(rng.uniform(draws).copy())
    return np.array(rows)


def test_numbers_are_uniform():
    numbers = uniforms(0, np.arange(100), np.arange(1000), 2).ravel()
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=100, range=(0.0, 1.0))
    expected = len(numbers) / 100
    # Chi-squared with 99 degrees of freedom is below 160 in 9,999 of 10,000 cases.
    assert ((counts - expected) ** 2 / expected).sum() < 160


@pytest.mark.parametrize("bit", range(20))
def test_each_bit_is_as_often_one_as_zero(bit):
    numbers = uniforms(5, np.arange(64), np.arange(64), 4).ravel()
    ones = (np.floor(numbers * 2 ** (bit + 1)).astype(np.int64) & 1).mean()
    assert ones == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("axis", ["step", "slot", "draw", "seed"])
def test_neighbours_are_not_correlated(axis):
    seeds = np.stack([uniforms(seed, np.arange(50), np.arange(50), 4) for seed in range(50)])
    place = ["seed", "step", "slot", "draw"].index(axis)
    moved = np.moveaxis(seeds, place, 0)
    assert np.corrcoef(moved[:-1].ravel(), moved[1:].ravel())[0, 1] == pytest.approx(0, abs=0.01)


def test_no_two_coordinates_share_a_number():
    seeds = [uniforms(seed, np.arange(40), np.arange(40), 3) for seed in range(10)]
    assert np.unique(seeds).size == np.size(seeds)


@given(st.integers(0, 2**63), st.lists(st.integers(0, 10**6), min_size=1, max_size=8, unique=True))
def test_a_slots_numbers_do_not_depend_on_the_slots_beside_it(seed, slots):
    together = series(seed, slots, [0, 1, 70], draws=2)
    for column, slot in enumerate(slots):
        assert np.array_equal(together[:, column], series(seed, [slot], [0, 1, 70], draws=2)[:, 0])


@given(st.integers(0, 2**40), st.integers(1, 5))
def test_a_steps_numbers_do_not_depend_on_the_steps_before(step, draws):
    alone = series(9, [3, 4], [step], draws)[0]
    assert np.array_equal(series(9, [3, 4], [0, step + 1, step], draws)[-1], alone)
    assert np.array_equal(uniforms(9, np.array([3, 4]), np.array([step]), draws)[0], alone)


def test_blocks_join_without_a_seam():
    steps = range(3 * BLOCK + 5)
    expected = uniforms(1, np.array([0, 7]), np.arange(len(steps)), 3)
    assert np.array_equal(series(1, [0, 7], steps, draws=3), expected)
    assert np.array_equal(series(1, [0, 7], reversed(steps), draws=3), expected[::-1])


def test_another_number_of_draws_may_be_asked_for_at_any_step():
    rng = SlotRandom(4, [0, 1])
    for step in (BLOCK - 1, BLOCK, BLOCK + 1):
        rng.go_to(step)
        for draws in (1, 3, 1, 2):
            assert rng.uniform(draws).shape == (2, draws)
            assert rng.normal(draws).shape == (2, draws)


def test_what_is_drawn_twice_in_one_step_is_independent():
    """An action of two parts takes a draw for each; the same number would tie them together."""
    rng = SlotRandom(8, range(10_000))
    rng.go_to(3)
    one, other = rng.uniform(), rng.uniform()
    assert np.corrcoef(one.ravel(), other.ravel())[0, 1] == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63, 2**64 - 1, -1])
def test_every_seed_gives_numbers_of_its_own(seed):
    numbers = uniforms(seed, np.arange(4), np.arange(4), 1)
    assert not np.isin(numbers, uniforms(seed + 1, np.arange(4), np.arange(4), 1)).any()
    assert np.array_equal(numbers, uniforms(seed, np.arange(4), np.arange(4), 1))


def test_normal_numbers_are_normal_and_finite():
    rng = SlotRandom(2, range(2000))
    numbers = []
    for step in range(50):
        rng.go_to(step)
        numbers.append(rng.normal(2))
    flat = np.concatenate(numbers).ravel()
    assert np.isfinite(flat).all()
    assert flat.mean() == pytest.approx(0, abs=0.01)
    assert flat.std() == pytest.approx(1, abs=0.01)
    for bound, chance in ((-2, 0.0228), (-1, 0.1587), (0.5, 0.6915), (1.5, 0.9332)):
        assert (flat < bound).mean() == pytest.approx(chance, abs=0.005)
    pairs = np.concatenate(numbers)
    assert np.corrcoef(pairs.T)[0, 1] == pytest.approx(0, abs=0.01)


def test_fresh_seeds_differ():
    assert len({fresh_seed() for _ in range(20)}) == 20
