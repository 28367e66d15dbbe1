"""Sync rules are pure decisions about versions."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.sync import FIRST, VERSION, EveryNth, EveryVersion, News

VERSIONS = st.integers(1, 10**9)


@given(VERSIONS, st.integers(1, 100))
def test_the_first_version_is_pulled_at_once(newest, n):
    assert EveryNth(n).cause_to_pull(News(held=0, newest=newest)) == FIRST


@pytest.mark.parametrize("n", [1, 3, 100])
def test_nothing_is_pulled_before_anything_is_published(n):
    assert EveryNth(n).cause_to_pull(News(held=0, newest=0)) is None


@given(VERSIONS, st.integers(1, 100))
def test_nothing_is_pulled_while_the_copy_is_the_newest(version, n):
    assert EveryNth(n).cause_to_pull(News(held=version, newest=version)) is None


@given(VERSIONS, st.integers(0, 200), st.integers(1, 100))
def test_a_worker_pulls_when_it_is_n_versions_behind(held, lag, n):
    news = News(held=held, newest=held + lag)
    assert news.lag == lag
    assert EveryNth(n).cause_to_pull(news) == (VERSION if lag >= n else None)


@given(VERSIONS, st.integers(0, 5))
def test_every_version_is_every_first(held, lag):
    news = News(held=held, newest=held + lag)
    assert EveryVersion().cause_to_pull(news) == EveryNth(1).cause_to_pull(news)


@pytest.mark.parametrize("n", [0, -1])
def test_n_below_one_is_refused(n):
    with pytest.raises(ValueError, match=rf"EveryNth\(n={n}\): n must be at least 1"):
        EveryNth(n)


@pytest.mark.parametrize("rule", [EveryNth(4), EveryVersion()])
def test_rules_travel(rule):
    assert pickle.loads(pickle.dumps(rule)) == rule
