"""Each distribution against torch's own, and its samples against its probabilities."""

from dataclasses import replace

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
    MultiCategorical,
    SquashedGaussian,
)
from clusterenv.randomness import SlotRandom

ROWS = 6
MANY = 40_000


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def tensor(array):
    return torch.from_numpy(np.asarray(array, np.float64))


def draw(distribution, rows=ROWS):
    return distribution.sample(SlotRandom(3, range(rows)))


def repeated(distribution):
    """The same row for many slots."""
    rows = [np.repeat(getattr(distribution, name), MANY, axis=0) for name in distribution.ARRAYS]
    return replace(distribution, **dict(zip(distribution.ARRAYS, rows, strict=True)))


def draw_many(distribution):
    """Samples of one row, as that of many slots."""
    return draw(repeated(distribution), MANY)


def gaussian(dtype, *shape):
    mean, log_std = (numbers(ROWS, *(shape or (3,)), dtype=dtype, seed=seed) for seed in (1, 2))
    return DiagonalGaussian(mean, log_std / 2)


def squashed(dtype):
    inside = gaussian(dtype)
    low, high = np.array([-2.0, 0.0, 1.0], dtype), np.array([2.0, 5.0, 1.5], dtype)
    return SquashedGaussian(inside.mean, inside.log_std, low, high)


KINDS = {
    "categorical": lambda dtype: Categorical(numbers(ROWS, 4, dtype=dtype)),
    "categorical from -2": lambda dtype: Categorical(numbers(ROWS, 4, dtype=dtype), start=-2),
    "multi-categorical": lambda dtype: MultiCategorical(numbers(ROWS, 9, dtype=dtype), (2, 3, 4)),
    "bernoulli": lambda dtype: Bernoulli(numbers(ROWS, 2, 3, dtype=dtype)),
    "bernoulli of one bit": lambda dtype: Bernoulli(numbers(ROWS, dtype=dtype)),
    "gaussian": gaussian,
    "gaussian matrix": lambda dtype: gaussian(dtype, 2, 2),
    "squashed": squashed,
    "deterministic": lambda dtype: Deterministic(
        numbers(ROWS, 3, dtype=dtype), np.linspace(0.1, 2.0, ROWS).astype(dtype)
    ),
    "epsilon-greedy": lambda dtype: EpsilonGreedy(
        numbers(ROWS, 4, dtype=dtype), np.linspace(0.1, 1.0, ROWS).astype(dtype)
    ),
}


def torchs_own(distribution):
    """A torch distribution of the same kind, or several for the factors of an action."""
    match distribution:
        case Categorical(logits=logits):
            return td.Categorical(logits=tensor(logits))
        case MultiCategorical(logits=logits, sizes=sizes):
            return [td.Categorical(logits=part) for part in tensor(logits).split(sizes, -1)]
        case Bernoulli(logits=logits):
            return td.Bernoulli(logits=tensor(logits))
        case DiagonalGaussian(mean=mean, log_std=log_std):
            return td.Normal(tensor(mean), tensor(log_std).exp())
        case SquashedGaussian(low=low, high=high):
            half = (tensor(high) - tensor(low)) / 2
            stretch = td.AffineTransform(tensor(low) + half, half)
            inside = torchs_own(distribution.before_squash)
            return td.TransformedDistribution(inside, [td.TanhTransform(), stretch])
        case Deterministic(action=action, noise=noise):
            return td.Normal(tensor(action), tensor(noise)[:, None])
        case EpsilonGreedy(values=values, epsilon=epsilon):
            probs = np.repeat(epsilon[:, None] / 4, 4, axis=1).astype(np.float64)
            probs[np.arange(ROWS), values.argmax(-1)] += 1 - epsilon
            return td.Categorical(probs=tensor(probs))


def torchs_log_prob(distribution, actions):
    own = torchs_own(distribution)
    if isinstance(own, list):
        columns = torch.from_numpy(actions).unbind(-1)
        return sum(part.log_prob(column) for part, column in zip(own, columns, strict=True))
    actions = actions - distribution.start if isinstance(distribution, Categorical) else actions
    log_prob = own.log_prob(tensor(actions))
    return log_prob.reshape(ROWS, -1).sum(-1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_are_torchs(kind, dtype):
    distribution = KINDS[kind](dtype)
    for actions in (draw(distribution), distribution.mode()):
        log_prob = distribution.log_prob(actions)
        assert log_prob.shape == (ROWS,)
        assert np.issubdtype(log_prob.dtype, np.floating)
        expected = torchs_log_prob(distribution, actions).numpy()
        assert np.allclose(log_prob, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_actions_have_the_shape_and_dtype_of_the_action_space(kind, dtype):
    distribution = KINDS[kind](dtype)
    discrete = {Categorical: np.int64, MultiCategorical: np.int64, EpsilonGreedy: np.int64}
    shapes = {Categorical: (), EpsilonGreedy: (), MultiCategorical: (3,)}
    first = getattr(distribution, distribution.ARRAYS[0])
    expected = ROWS, *shapes.get(type(distribution), first.shape[1:])
    for actions in (draw(distribution), distribution.mode()):
        assert actions.shape == expected
        kind_of = discrete.get(type(distribution), np.int8 if "bernoulli" in kind else dtype)
        assert actions.dtype == kind_of


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_named(kind):
    distribution = KINDS[kind](np.float32)
    assert distribution.ARRAYS
    assert all(len(getattr(distribution, name)) == ROWS for name in distribution.ARRAYS)


LOGITS = np.log([[0.5, 0.05, 0.3, 0.15]])


def frequencies(samples, count):
    return np.bincount(samples, minlength=count) / len(samples)


def test_categories_come_as_often_as_they_should():
    assert np.allclose(frequencies(draw_many(Categorical(LOGITS)), 4), np.exp(LOGITS[0]), atol=0.01)
    shifted = draw_many(Categorical(LOGITS, start=5))
    assert np.allclose(frequencies(shifted - 5, 4), np.exp(LOGITS[0]), atol=0.01)


def test_logits_need_not_be_normalised():
    moved = Categorical(LOGITS + 300.0)
    assert np.array_equal(draw_many(moved), draw_many(Categorical(LOGITS)))
    assert np.allclose(moved.log_probs, LOGITS)


def test_masked_actions_never_come():
    for masked in ([0], [3], [1, 2], [0, 1, 3]):
        logits = LOGITS.copy()
        logits[0, masked] = -np.inf
        distribution = Categorical(logits)
        samples = draw_many(distribution)
        assert not np.isin(samples, masked).any()
        assert distribution.mode()[0] not in masked
        assert (distribution.log_prob(np.array(masked[:1])) == -np.inf).all()
        allowed = np.exp(logits[0]) / np.exp(logits[0]).sum()
        assert np.allclose(frequencies(samples, 4), allowed, atol=0.01)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_least_and_the_greatest_draw_land_on_actions_that_are_possible(dtype):
    logits = np.random.default_rng(0).normal(size=(1000, 5)).astype(dtype)
    logits[:, [0, -1]] = -np.inf
    for draw, action in [(0.0, 1), (np.nextafter(1.0, 0.0), 3)]:
        assert (Categorical(logits)._invert(np.full((1000, 1), draw)) == action).all()


def test_factors_are_independent_and_each_comes_as_often_as_it_should():
    samples = draw_many(MultiCategorical(np.concatenate([LOGITS, LOGITS[:, ::-1]], axis=1), (4, 4)))
    joint = np.zeros((4, 4))
    np.add.at(joint, tuple(samples.T), 1 / MANY)
    assert np.allclose(joint, np.outer(np.exp(LOGITS[0]), np.exp(LOGITS[0, ::-1])), atol=0.01)


def test_bits_come_as_often_as_they_should_and_independently():
    chances = np.array([[0.9, 0.2, 0.5]])
    bits = draw_many(Bernoulli(np.log(chances / (1 - chances))))
    assert np.allclose(bits.mean(0), chances[0], atol=0.01)
    assert np.allclose(np.corrcoef(bits.T), np.eye(3), atol=0.02)


def test_certain_bits_and_actions_are_drawn_without_a_warning():
    logits = np.array([[-800.0, 800.0, -np.inf, np.inf]])
    bits = Bernoulli(logits)
    assert (draw_many(bits) == [0, 1, 0, 1]).all()
    assert bits.log_prob(np.array([[0, 1, 0, 1]])) == pytest.approx(0.0)
    assert (draw_many(Categorical(np.array([[-800.0, 800.0]]))) == 1).all()


def test_gaussian_samples_have_their_mean_deviation_and_no_correlation():
    mean, std = np.array([[1.0, -2.0, 0.0]]), np.array([[0.5, 2.0, 1.0]])
    samples = draw_many(DiagonalGaussian(mean, np.log(std)))
    assert np.allclose(samples.mean(0), mean[0], atol=0.05)
    assert np.allclose(samples.std(0), std[0], rtol=0.03)
    assert np.allclose(np.corrcoef(samples.T), np.eye(3), atol=0.02)
    standard = (samples - mean) / std
    assert np.allclose((standard < 1).mean(0), 0.8413, atol=0.01)
    assert np.allclose((standard**4).mean(0), 3.0, atol=0.2)


def test_squashed_samples_stay_inside_and_are_the_squashed_gaussian():
    plain, bounded = gaussian(np.float64), squashed(np.float64)
    bounded = replace(bounded, mean=plain.mean, log_std=plain.log_std)
    half = (bounded.high - bounded.low) / 2
    expected = bounded.low + (np.tanh(draw(plain)) + 1) * half
    assert np.allclose(draw(bounded), expected)
    assert np.allclose(bounded.mode(), bounded.low + (np.tanh(plain.mean) + 1) * half)
    wide = SquashedGaussian(np.zeros((1, 1)), np.full((1, 1), 3.0), -2.0, 3.0)
    samples = draw_many(wide)
    assert samples.min() >= -2.0
    assert samples.max() <= 3.0
    assert np.isfinite(repeated(wide).log_prob(samples)).all()


def test_exploration_noise_is_added_and_cut_to_the_bounds():
    distribution = Deterministic(np.array([[0.5, -0.5]]), np.array([0.3]), -1.0, 0.6)
    samples = draw_many(distribution)
    assert samples.min() == -1.0
    assert samples.max() == 0.6
    assert np.median(samples, axis=0) == pytest.approx([0.5, -0.5], abs=0.02)
    assert np.array_equal(distribution.mode(), distribution.action)


def test_without_noise_the_action_is_certain():
    distribution = Deterministic(np.array([[0.5, -0.5]]), np.array([0.0]))
    assert (draw_many(distribution) == distribution.action).all()
    assert not np.isnan(distribution.log_prob(distribution.action)).any()


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_epsilon_greedy_explores_as_often_as_it_should(epsilon):
    distribution = EpsilonGreedy(np.array([[0.0, 2.0, 1.0, -1.0]]), np.array([epsilon]))
    expected = np.full(4, epsilon / 4)
    expected[1] += 1 - epsilon
    assert np.allclose(frequencies(draw_many(distribution), 4), expected, atol=0.01)
    assert distribution.mode() == [1]
    actions = np.arange(4).repeat(MANY // 4)
    with np.errstate(divide="ignore"):
        assert np.allclose(repeated(distribution).log_prob(actions), np.log(expected)[actions])


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_epsilon_greedy_never_takes_a_masked_action(epsilon):
    distribution = EpsilonGreedy(np.array([[-np.inf, 2.0, -np.inf, -1.0]]), np.array([epsilon]))
    expected = np.array([0, 1 - epsilon / 2, 0, epsilon / 2])
    assert np.allclose(distribution.probabilities(), expected)
    assert np.allclose(frequencies(draw_many(distribution), 4), expected, atol=0.01)
    assert np.isneginf(distribution.log_prob(np.array([0])))


def test_epsilon_greedy_keeps_the_dtype_of_its_epsilon():
    distribution = EpsilonGreedy(np.zeros((3, 4), np.float32), 0.25)
    assert distribution.log_prob(np.zeros(3, int)).dtype == np.float32


@pytest.mark.parametrize("kind", [DiagonalGaussian, SquashedGaussian])
@pytest.mark.parametrize(
    "log_std", [-0.5, np.full(2, -0.5), torch.full((2,), -0.5), torch.nn.Parameter(torch.zeros(()))]
)
def test_one_log_std_stands_for_all_rows(kind, log_std):
    mean = torch.zeros(3, 2) if isinstance(log_std, torch.Tensor) else np.zeros((3, 2))
    found = kind(mean, log_std)
    assert found.arrays()["log_std"].shape == (3, 2)
    assert (found.log_std == log_std).all()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Categorical, ("logits",)),
        (Bernoulli, ("logits",)),
        (DiagonalGaussian, ("mean", "log_std")),
        (SquashedGaussian, ("mean", "log_std")),
        (EpsilonGreedy, ("values", "epsilon")),
    ],
)
def test_tensors_have_no_log_prob_here_since_no_gradient_would_flow(kind, fields):
    found = kind(*[torch.zeros(3, 2, requires_grad=True) for _ in fields])
    with pytest.raises(TypeError, match=f"torch.distributions from its {', '.join(fields)}"):
        found.log_prob(np.zeros((3, 2), int))


@pytest.mark.parametrize("one", [0.25, np.float32(0.25), torch.tensor(0.25)])
def test_one_number_stands_for_all_rows(one):
    values = np.zeros((3, 4), np.float32)
    assert np.asarray(EpsilonGreedy(values, one).epsilon).tolist() == [0.25] * 3
    assert np.asarray(Deterministic(values, one).noise).tolist() == [0.25] * 3
