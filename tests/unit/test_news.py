"""What a worker knows of its own staleness when it decides whether to pull."""

from collections import deque
from dataclasses import fields

import pytest

from clusterenv.wire.messages import Measured
from clusterenv.worker.acting import Acting, Workplace


@pytest.fixture
def acting():
    others = {field.name for field in fields(Workplace)} - {"backlog", "slots"}
    return Acting(Workplace(backlog=deque(), slots=(0, 1), **dict.fromkeys(others)))


def test_before_any_measurement_nothing_is_known(acting):
    acting._learn(3, None)
    assert acting._news(1).divergence is None


def test_what_was_measured_for_the_weights_that_act_counts_as_it_is(acting):
    acting._learn(5, Measured(3, 0.4, 0.1, 0.9))
    news = acting._news(3)
    assert (news.divergence, news.standard_error, news.effective_sample_size) == (0.4, 0.1, 0.9)


def test_after_a_pull_the_drift_before_it_counts_until_there_is_a_measurement(acting):
    """In a stream the next fragment begins before what the new weights did has come back."""
    measured = Measured(3, 0.4, 0.1, 0.9)
    acting._learn(5, measured)
    assert acting._news(5).divergence == 0.0
    acting._learn(8, measured)  # the same again, with newer versions
    assert acting._news(5).divergence == pytest.approx(3 * 0.2)
    acting._learn(8, Measured(5, 0.01, 0.0, 1.0))
    assert acting._news(5).divergence == 0.01
