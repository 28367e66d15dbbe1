"""Divergences between distributions: exact where torch has them, else against sampling."""

import numpy as np
import pytest
import torch
from torch import distributions as td

from clusterenv.distributions import (
    Bernoulli,
    Categorical,
    Deterministic,
    DiagonalGaussian,
    EpsilonGreedy,
    Joint,
    MultiCategorical,
    SquashedGaussian,
    divergence_of_log_probs,
)
from clusterenv.randomness import SlotRandom

ROWS = 7
RNG = np.random.default_rng(5)


def normal(*shape, scale=1.0):
    return RNG.normal(0, scale, (ROWS, *shape)).astype(np.float32)


def torch_kl(mine, newer):
    found = td.kl_divergence(mine, newer)
    return found.reshape(ROWS, -1).sum(-1).numpy()


def tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


def test_categorical_kl_is_that_of_torch():
    a, b = normal(5), normal(5)
    expected = torch_kl(*(td.Categorical(logits=logits) for logits in tensors(a, b)))
    np.testing.assert_allclose(Categorical(a).kl(Categorical(b)), expected, rtol=1e-4)


def test_actions_that_both_mask_count_nothing():
    a, b = normal(5), normal(5)
    masked_a, masked_b = a.copy(), b.copy()
    masked_a[:, 2] = masked_b[:, 2] = -np.inf
    without = [np.delete(logits, 2, axis=1) for logits in (a, b)]
    np.testing.assert_allclose(
        Categorical(masked_a).kl(Categorical(masked_b)),
        Categorical(without[0]).kl(Categorical(without[1])),
        rtol=1e-5,
    )


def test_an_action_that_became_impossible_is_infinitely_far():
    a = normal(3)
    b = a.copy()
    b[:, 0] = -np.inf
    assert np.isinf(Categorical(a).kl(Categorical(b))).all()
    assert np.isfinite(Categorical(b).kl(Categorical(a))).all()


def test_multi_categorical_kl_is_the_sum_over_its_factors():
    sizes, a, b = (2, 3, 4), normal(9), normal(9)
    cuts = np.cumsum(sizes)[:-1]
    expected = sum(
        Categorical(x).kl(Categorical(y))
        for x, y in zip(np.split(a, cuts, 1), np.split(b, cuts, 1), strict=True)
    )
    found = MultiCategorical(a, sizes).kl(MultiCategorical(b, sizes))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_bernoulli_kl_is_that_of_torch(shape):
    a, b = normal(*shape), normal(*shape)
    expected = torch_kl(*(td.Bernoulli(logits=logits) for logits in tensors(a, b)))
    np.testing.assert_allclose(Bernoulli(a).kl(Bernoulli(b)), expected, rtol=1e-4)


def test_certain_bits_have_no_divergence_from_themselves():
    certain = Bernoulli(np.array([[np.inf, -np.inf, 200.0]], np.float32))
    np.testing.assert_allclose(certain.kl(certain), [0.0])


def test_gaussian_kl_is_that_of_torch_and_a_squash_does_not_change_it():
    arrays = normal(3), normal(3, scale=0.3), normal(3), normal(3, scale=0.3)
    mean_a, log_a, mean_b, log_b = tensors(*arrays)
    expected = torch_kl(td.Normal(mean_a, log_a.exp()), td.Normal(mean_b, log_b.exp()))
    for kind in (DiagonalGaussian, SquashedGaussian):
        np.testing.assert_allclose(kind(*arrays[:2]).kl(kind(*arrays[2:])), expected, rtol=1e-4)


def test_the_kl_of_squashed_gaussians_is_what_samples_say():
    mine = SquashedGaussian(np.full((20_000, 2), 0.3), np.full((20_000, 2), -0.5), -2, 3)
    newer = SquashedGaussian(np.full((20_000, 2), 0.1), np.full((20_000, 2), -0.4), -2, 3)
    actions = mine.sample(SlotRandom(1, range(20_000)))
    sampled = (mine.log_prob(actions) - newer.log_prob(actions)).mean()
    assert sampled == pytest.approx(mine.kl(newer)[0], rel=0.1)


def test_deterministic_actions_are_compared_within_their_noise():
    a, b = normal(2), normal(2)
    noise = np.full(ROWS, 0.5, np.float32)
    found = Deterministic(a, noise).kl(Deterministic(b, noise))
    np.testing.assert_allclose(found, ((a - b) ** 2).sum(1) / (2 * 0.25), rtol=1e-5)


def test_epsilon_greedy_is_compared_by_total_variation():
    values = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    newer = np.array([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0]])
    epsilon = np.array([0.2, 0.2])
    found = EpsilonGreedy(values, epsilon).divergence(EpsilonGreedy(newer, epsilon))
    np.testing.assert_allclose(found, [0.8, 0.0])


def test_another_epsilon_is_a_difference_too():
    values = np.array([[1.0, 0.0]])
    before, after = (EpsilonGreedy(values, np.array([epsilon])) for epsilon in (1.0, 0.0))
    np.testing.assert_allclose(before.total_variation(after), [0.5])


def test_jensen_shannon_is_symmetric_and_bounded():
    a, b = Categorical(normal(4, scale=5.0)), Categorical(normal(4, scale=5.0))
    np.testing.assert_allclose(a.jensen_shannon(b), b.jensen_shannon(a), rtol=1e-5)
    assert (a.jensen_shannon(b) <= np.log(2)).all()
    bits = Bernoulli(normal(1)), Bernoulli(normal(1))
    both = [Categorical(np.concatenate([x.logits, 0 * x.logits], 1)) for x in bits]
    np.testing.assert_allclose(
        bits[0].jensen_shannon(bits[1]), both[0].jensen_shannon(both[1]), rtol=1e-4, atol=1e-7
    )


def test_total_variation_of_categoricals_is_half_the_difference():
    a, b = Categorical(np.log([[0.5, 0.5]])), Categorical(np.log([[0.9, 0.1]]))
    np.testing.assert_allclose(a.total_variation(b), [0.4], rtol=1e-6)


def joint():
    return Joint({"gear": Categorical(normal(3)), "wheel": DiagonalGaussian(normal(2), normal(2))})


def test_a_joint_distribution_adds_up_its_parts():
    a, b = joint(), joint()
    expected = a.parts["gear"].kl(b.parts["gear"]) + a.parts["wheel"].kl(b.parts["wheel"])
    np.testing.assert_allclose(a.divergence(b), expected, rtol=1e-6)
    actions = a.sample(SlotRandom(0, range(ROWS)))
    expected = sum(a.parts[part].log_prob(actions[part]) for part in actions)
    np.testing.assert_allclose(a.log_prob(actions), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "one",
    [
        Categorical(normal(3), start=2),
        MultiCategorical(normal(5), (2, 3)),
        EpsilonGreedy(normal(3), np.full(ROWS, 0.1)),
        SquashedGaussian(normal(2), normal(2), -3, 4),
        Joint((Categorical(normal(3)), Bernoulli(normal(2)))),
        joint(),
    ],
)
def test_arrays_are_all_that_tells_rows_apart(one):
    other = one.with_arrays({name: array[::-1].copy() for name, array in one.arrays().items()})
    again = other.with_arrays({name: array[::-1].copy() for name, array in other.arrays().items()})
    np.testing.assert_allclose(one.divergence(again), 0, atol=1e-7)
    assert one.divergence(other).max() > 0


def test_log_probs_alone_estimate_the_kl():
    rows = 50_000
    mine = Categorical(np.tile(normal(4)[:1], (rows, 1)))
    newer = Categorical(np.tile(normal(4)[:1], (rows, 1)))
    actions = mine.sample(SlotRandom(3, range(rows)))
    each = divergence_of_log_probs(mine.log_prob(actions), newer.log_prob(actions))
    assert (each >= 0).all()
    assert each.mean() == pytest.approx(mine.kl(newer)[0], rel=0.1)
