"""AdaptiveSync is a pure decision; budgets move its threshold."""

import math
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.sync import (
    AGE,
    FIRST,
    LAG,
    THRESHOLD,
    AdaptiveSync,
    BytesPerSecond,
    EffectiveSampleSize,
    News,
    PullRate,
)


def news(held=5, newest=6, divergence=0.0, error=0.0, **more):
    return News(held, newest, divergence, error, **more)


def test_the_first_version_is_pulled_at_once():
    assert AdaptiveSync().cause_to_pull(News(0, 3)) == FIRST


@given(st.floats(0, 1e6), st.integers(1, 100))
def test_nothing_is_pulled_while_the_copy_is_the_newest(divergence, version):
    rule = AdaptiveSync(0.0, max_lag=1)
    old = news(version, version, divergence, time_s=1e9)
    assert rule.cause_to_pull(old) is None


@pytest.mark.parametrize(
    ("divergence", "error", "cause"),
    [
        (0.09, 0.0, None),
        (0.11, 0.0, THRESHOLD),
        (0.09, 0.01, THRESHOLD),  # the upper end of what it may be
        (math.inf, 0.0, THRESHOLD),
        (math.nan, 0.0, THRESHOLD),
        (None, 0.0, None),
    ],
)
def test_the_threshold_is_for_the_upper_end_of_the_estimate(divergence, error, cause):
    rule = AdaptiveSync(0.1, spread=0.0)
    assert rule.cause_to_pull(news(divergence=divergence, error=error)) == cause


def test_lag_and_age_pull_whatever_the_divergence_says():
    rule = AdaptiveSync(1e9, max_lag=4, max_age_s=10.0)
    assert rule.cause_to_pull(news(newest=8)) is None
    assert rule.cause_to_pull(news(newest=9)) == LAG
    assert rule.cause_to_pull(news(time_s=20.0, pulled_at_s=11.0)) is None
    assert rule.cause_to_pull(news(time_s=20.0, pulled_at_s=10.0)) == AGE


def decisions(rule, drift, versions, **more):
    """Pulled or not, for a copy whose divergence grows by ``drift(version)`` per version."""
    held, divergence, pulled = 1, 0.0, []
    for newest in range(2, versions + 2):
        divergence += drift(newest)
        size = math.exp(-divergence)
        cause = rule.cause_to_pull(
            news(
                held,
                newest,
                divergence,
                time_s=float(newest),
                pulled_at_s=float(held),
                effective_sample_size=size,
                **more,
            )
        )
        pulled.append((cause is not None, size))
        if cause is not None:
            held, divergence = newest, 0.0
    return pulled


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
@pytest.mark.parametrize("start", [1e-4, 10.0])
def test_a_pull_rate_is_kept_whatever_the_threshold_was(share, start):
    rng = np.random.default_rng(0)
    rule = AdaptiveSync(start, max_lag=1000, budget=PullRate(share))
    drifts = rng.exponential(0.01, 5000)
    pulled = decisions(rule, lambda version: drifts[version], 2000)
    assert np.mean([p for p, _ in pulled[500:]]) == pytest.approx(share, abs=0.02)


def test_a_rate_is_kept_when_learning_slows_down():
    rule = AdaptiveSync(0.1, max_lag=1000, budget=PullRate(0.1))
    pulled = decisions(rule, lambda version: 0.1 / version, 3000)
    assert np.mean([p for p, _ in pulled[1000:]]) == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("start", [0.02, 0.1, 0.5])
def test_a_rate_is_kept_over_a_whole_short_run(start):
    """What was pulled too often, or not often enough, before the threshold fits is made up for."""
    rng = np.random.default_rng(1)
    drifts = 0.02 * rng.exponential(1.0, 400) * np.linspace(1, 0.2, 400)
    rule = AdaptiveSync(start, max_lag=1000, budget=PullRate(0.1))
    pulled = decisions(rule, lambda version: drifts[version], 300)
    assert np.mean([p for p, _ in pulled]) == pytest.approx(0.1, abs=0.02)


def test_an_impossible_rate_is_not_held_against_later_versions():
    """max_lag=4 pulls a quarter; once nothing drifts less than that, the rate is back soon."""
    rule = AdaptiveSync(0.1, max_lag=4, budget=PullRate(0.1))
    decisions(rule, lambda version: 0.01, 2000)
    rule.max_lag = 1000
    pulled = decisions(rule, lambda version: 0.01, 2000)
    assert np.mean([p for p, _ in pulled[1000:]]) == pytest.approx(0.1, abs=0.02)


def test_a_budget_of_bytes_is_kept():
    # A version per second, 100 bytes per pull, 20 bytes per second: every fifth version.
    rule = AdaptiveSync(0.1, max_lag=1000, budget=BytesPerSecond(20))
    pulled = decisions(rule, lambda version: 0.01, 2000, pulled_bytes=100)
    assert np.mean([p for p, _ in pulled[500:]]) == pytest.approx(0.2, abs=0.03)


def test_an_effective_sample_size_is_kept():
    rule = AdaptiveSync(1e-3, max_lag=1000, budget=EffectiveSampleSize(0.9))
    pulled = decisions(rule, lambda version: 0.01, 3000)
    used = [1.0 if p else size for p, size in pulled[1000:]]
    assert np.mean(used) == pytest.approx(0.9, abs=0.02)


def test_workers_do_not_pull_as_a_herd():
    rules = [AdaptiveSync(0.1, max_lag=1000, spread=0.3) for _ in range(8)]
    when = [
        [p for p, _ in decisions(rule, lambda version: 0.011, 300, first_slot=slot)]
        for slot, rule in enumerate(rules)
    ]
    together = np.sum(when, axis=0)[100:]
    assert together.max() < 8
    assert np.mean(when) == pytest.approx(0.1, abs=0.03)


def test_the_same_worker_decides_the_same_way_again():
    runs = [decisions(AdaptiveSync(0.05), lambda version: 0.01, 200) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_rule_travels():
    rule = AdaptiveSync(0.2, 7, budget=PullRate(0.5))
    assert pickle.loads(pickle.dumps(rule)) == rule


@pytest.mark.parametrize(
    "bad",
    [{"threshold": -1}, {"max_lag": 0}, {"max_age_s": 0}, {"rows": 1}, {"spread": 1.0}],
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        AdaptiveSync(**bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PullRate(0.0),
        lambda: PullRate(1.1),
        lambda: BytesPerSecond(0),
        lambda: EffectiveSampleSize(1.0),
    ],
)
def test_budgets_that_make_no_sense_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_taking_off_the_cap_warns():
    with pytest.warns(UserWarning, match="max_lag=None.*freezes"):
        AdaptiveSync(max_lag=None)


def test_a_threshold_that_a_clipped_loss_never_reaches_warns():
    with pytest.warns(UserWarning, match="decoupled_loss"):
        AdaptiveSync.for_ppo(0.05, clip=0.2, decoupled=False)


def test_settings_that_work_together_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert AdaptiveSync.for_ppo().threshold == 0.1
        assert AdaptiveSync.for_ppo(decoupled=False).threshold < 0.2**2 / 4
        assert AdaptiveSync.for_off_policy().max_lag == 256
