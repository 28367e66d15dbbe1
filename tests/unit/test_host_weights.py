"""When a host pulls: at first, for another policy, for an evaluation, or when its rule says so."""

import pytest

from clusterenv.host import weights as weights_module
from clusterenv.host.events import PullWanted
from clusterenv.host.weights import HostWeights, PulledWeights
from clusterenv.memory.weights import WeightStore
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import Act, Collect, Evaluate, Measured, Newest
from clusterenv.sync import (
    EVALUATION,
    FIRST,
    THRESHOLD,
    VERSION,
    AdaptiveSync,
    EveryNth,
    EveryVersion,
)

POLICY, OTHER = TakePolicy(1, b"policy", b"layout"), TakePolicy(2, b"other", b"layout")


class Listening:
    """A rule that never pulls, and keeps what it is told."""

    rows, measure, threshold = 64, "divergence", 0.25

    def __init__(self):
        self.heard = []

    def cause_to_pull(self, news):
        self.heard.append(news)


@pytest.fixture
def stores():
    stores = WeightStore.create(), WeightStore.create()
    yield stores
    for store in stores:
        store.close()


@pytest.fixture
def clock(monkeypatch):
    """The seconds that the host's clock shows."""
    now = [100.0]
    monkeypatch.setattr(weights_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def make_weights(stores):
    return lambda rule=None: HostWeights(rule or EveryVersion(), *stores, first_slot=8)


def collect(version=1, policy_id=1):
    return Collect(1, (0,), 5, Newest(policy_id, version))


def act():
    return Act(1, (0,), Newest(1, 1))


def evaluate():
    return Evaluate(1, (0,), (1,), 7, True, Newest(1, 1))


def hold(weights, version, policy=POLICY):
    """Have this version, as if it had been pulled to act with."""
    weights.learn(Newest(policy.policy_id, version))
    weights.pulls_for = FIRST
    weights.take(PulledWeights(policy, version, bytes([version]) * 8, weights.pulls_for, 8))


# Whether to pull.


@pytest.mark.parametrize("request_", [None, collect(), act()], ids=["news", "collect", "act"])
def test_nothing_is_pulled_before_anything_was_published(make_weights, request_):
    weights = make_weights()
    assert weights.wanted_for(request_) is None
    assert weights.pulls_for == ""


@pytest.mark.parametrize("request_", [None, collect(), act()], ids=["news", "collect", "act"])
@pytest.mark.parametrize(
    "rule", [EveryNth(5), AdaptiveSync(), Listening()], ids=lambda rule: type(rule).__name__
)
def test_the_first_version_is_pulled_whatever_the_rule(make_weights, rule, request_):
    weights = make_weights(rule)
    weights.learn(Newest(1, 3))
    assert weights.wanted_for(request_) == PullWanted(0, 0, FIRST, rule.threshold)
    assert weights.pulls_for == FIRST


def test_what_is_held_is_not_pulled_again(make_weights):
    weights = make_weights()
    hold(weights, 3)
    assert weights.wanted_for(collect()) is None


def test_a_newer_version_is_pulled_when_the_rule_says_so(make_weights):
    weights = make_weights(EveryNth(3))
    hold(weights, 3)
    weights.learn(Newest(1, 5))
    assert weights.wanted_for(collect()) is None
    weights.learn(Newest(1, 6))
    assert weights.wanted_for(collect()) == PullWanted(1, 3, VERSION, 0.0)


@pytest.mark.parametrize(
    "rule", [EveryNth(100), AdaptiveSync(), Listening()], ids=lambda rule: type(rule).__name__
)
def test_another_policy_is_pulled_whatever_the_rule(make_weights, rule):
    weights = make_weights(rule)
    hold(weights, 3)
    weights.learn(Newest(2, 4))
    assert weights.wanted_for(collect()) == PullWanted(1, 3, FIRST, rule.threshold)


def test_the_rule_hears_of_every_decision_even_where_it_has_no_say(make_weights):
    rule = Listening()
    weights = make_weights(rule)
    weights.learn(Newest(1, 3))
    weights.wanted_for(collect())
    assert [(news.held, news.newest) for news in rule.heard] == [(0, 3)]


# Ahead.


def ahead(version, policy_id=1):
    return Collect(1, (0,), 5, Newest(policy_id, version), ahead=True)


def test_what_was_asked_for_ahead_is_decided_by_what_was_newest_then(make_weights):
    weights = make_weights()
    hold(weights, 3)
    weights.learn(Newest(1, 5))
    assert weights.wanted_for(ahead(4)) == PullWanted(1, 3, VERSION, 0.0, version=4)
    weights.take(PulledWeights(POLICY, 4, b"4" * 8, weights.pulls_for, 8))
    assert weights.wanted_for(ahead(4)) is None
    assert weights.wanted_for(ahead(5)) == PullWanted(1, 4, VERSION, 0.0, version=5)


def test_a_worker_is_told_which_version_is_held_when_it_gets_a_request_ahead(make_weights):
    weights = make_weights(EveryNth(3))
    hold(weights, 3)
    assert weights.stamped(ahead(4)).newest == Newest(1, 3)
    assert weights.stamped(collect(4)) == collect(4)


# Evaluations.


def test_an_evaluation_plays_with_the_newest_version_whatever_the_rule(make_weights):
    weights = make_weights(EveryNth(100))
    hold(weights, 3)
    weights.learn(Newest(1, 4))
    assert weights.wanted_for(evaluate()) == PullWanted(1, 0, EVALUATION, 0.0)
    weights.take(PulledWeights(POLICY, 4, b"4" * 8, weights.pulls_for, 8))
    assert weights.wanted_for(evaluate()) is None
    weights.learn(Newest(1, 5))
    assert weights.wanted_for(evaluate()) == PullWanted(1, 4, EVALUATION, 0.0)


def test_what_an_evaluation_pulls_does_not_act(make_weights, stores):
    to_act_with, to_evaluate = stores
    weights = make_weights(EveryNth(100))
    hold(weights, 3)
    weights.learn(Newest(1, 4))
    weights.wanted_for(evaluate())
    weights.take(PulledWeights(POLICY, 4, b"4" * 8, weights.pulls_for, 8))
    assert to_act_with.take(1, 0) == (3, bytes([3]) * 8)
    assert to_evaluate.take(1, 0) == (4, b"4" * 8)
    assert weights.wanted_for(collect()) is None
    weights.learn(Newest(1, 103))
    assert weights.wanted_for(collect()) == PullWanted(1, 3, VERSION, 0.0)


def test_an_evaluation_does_not_need_what_acts(make_weights):
    weights = make_weights(EveryVersion())
    weights.learn(Newest(1, 1))
    assert weights.wanted_for(evaluate()).cause == EVALUATION
    weights.take(PulledWeights(POLICY, 1, b"1" * 8, weights.pulls_for, 8))
    # Nothing to act with is there yet.
    assert weights.wanted_for(collect()) == PullWanted(1, 0, FIRST, 0.0)


def test_another_policy_that_came_by_an_evaluation_has_nothing_to_act_with(make_weights):
    weights = make_weights(EveryNth(100))
    hold(weights, 3)
    weights.learn(Newest(2, 4))
    assert weights.wanted_for(evaluate()) == PullWanted(1, 0, EVALUATION, 0.0)
    weights.take(PulledWeights(OTHER, 4, b"4" * 8, weights.pulls_for, 8))
    assert weights.wanted_for(collect()) == PullWanted(2, 0, FIRST, 0.0)


def test_another_policy_has_to_be_pulled_for_an_evaluation_too(make_weights):
    weights = make_weights()
    weights.learn(Newest(1, 3))
    weights.wanted_for(evaluate())
    weights.take(PulledWeights(POLICY, 3, b"3" * 8, weights.pulls_for, 8))
    weights.learn(Newest(2, 4))
    weights.wanted_for(collect())
    weights.take(PulledWeights(OTHER, 4, b"4" * 8, weights.pulls_for, 8))
    assert weights.wanted_for(evaluate()) == PullWanted(2, 0, EVALUATION, 0.0)


# What has come.


def test_what_was_pulled_is_there_for_the_workers(make_weights, stores):
    weights = make_weights()
    weights.learn(Newest(1, 3))
    weights.wanted_for(collect())
    weights.take(PulledWeights(POLICY, 3, b"3" * 8, weights.pulls_for, 8))
    assert weights.policy is POLICY
    assert weights.pulls_for == ""
    assert stores[0].take(1, 0) == (3, b"3" * 8)


def test_more_may_come_than_was_known_of(make_weights):
    weights = make_weights()
    weights.learn(Newest(1, 3))
    weights.wanted_for(collect())
    weights.take(PulledWeights(POLICY, 5, b"5" * 8, weights.pulls_for, 8))
    # The announcement of what it has already.
    weights.learn(Newest(1, 4))
    assert weights.wanted_for(collect()) is None


def test_news_that_come_late_are_none(make_weights):
    rule = Listening()
    weights = make_weights(rule)
    hold(weights, 3)
    weights.learn(Newest(1, 9, Measured(3, 0.5, 0.0, 1.0)))
    weights.learn(Newest(1, 8, Measured(3, 0.4, 0.0, 1.0)))
    weights.wanted_for(collect())
    assert (rule.heard[-1].newest, rule.heard[-1].divergence) == (9, 0.5)


@pytest.mark.parametrize("cause", [VERSION, EVALUATION])
def test_weights_of_a_pull_that_was_given_up_are_not_taken(make_weights, stores, cause):
    weights = make_weights()
    weights.learn(Newest(1, 3))
    weights.take(PulledWeights(POLICY, 3, b"3" * 8, cause, 8))
    assert [store.take(1, 0) for store in stores] == [None, None]
    weights.wanted_for(collect())
    # They were wanted for something else.
    weights.take(PulledWeights(POLICY, 3, b"3" * 8, cause, 8))
    assert weights.pulls_for == FIRST
    assert weights.policy is None


# What the rule is told.


def news(weights, rule):
    weights.wanted_for(collect())
    return rule.heard[-1]


def test_before_any_measurement_nothing_is_known(make_weights):
    rule = Listening()
    weights = make_weights(rule)
    hold(weights, 1)
    weights.learn(Newest(1, 3))
    assert news(weights, rule).divergence is None


def test_what_was_measured_for_the_weights_that_act_counts_as_it_is(make_weights):
    rule = Listening()
    weights = make_weights(rule)
    hold(weights, 3)
    weights.learn(Newest(1, 5, Measured(3, 0.4, 0.1, 0.9)))
    told = news(weights, rule)
    measured = told.divergence, told.standard_error, told.effective_sample_size
    assert measured == (0.4, 0.1, 0.9)


def test_after_a_pull_the_drift_before_it_counts_until_there_is_a_measurement(make_weights):
    """In a stream the next fragment begins before what the new weights did has come back."""
    rule = Listening()
    weights = make_weights(rule)
    hold(weights, 3)
    measured = Measured(3, 0.4, 0.1, 0.9)
    weights.learn(Newest(1, 5, measured))
    hold(weights, 5)
    assert news(weights, rule).divergence == 0.0
    weights.learn(Newest(1, 8, measured))  # the same again, with newer versions
    told = news(weights, rule)
    assert told.divergence == pytest.approx(3 * 0.2)
    assert (told.standard_error, told.effective_sample_size) == (0.0, 1.0)
    weights.learn(Newest(1, 8, Measured(5, 0.01, 0.0, 1.0)))
    assert news(weights, rule).divergence == 0.01


def test_news_without_a_measurement_leave_the_last_one(make_weights):
    rule = Listening()
    weights = make_weights(rule)
    hold(weights, 3)
    weights.learn(Newest(1, 5, Measured(3, 0.4, 0.1, 0.9)))
    weights.learn(Newest(1, 6))
    told = news(weights, rule)
    assert (told.newest, told.divergence) == (6, 0.4)


def test_a_divergence_above_the_threshold_makes_it_pull(make_weights):
    weights = make_weights(AdaptiveSync(0.3, spread=0.0))
    hold(weights, 3)
    weights.learn(Newest(1, 4, Measured(3, 0.29, 0.0, 1.0)))
    assert weights.wanted_for(collect()) is None
    weights.learn(Newest(1, 5, Measured(3, 0.31, 0.0, 1.0)))
    assert weights.wanted_for(collect()) == PullWanted(1, 3, THRESHOLD, 0.3)


def test_the_rule_is_told_when_and_how_much_was_pulled_last(make_weights, clock):
    rule = Listening()
    weights = make_weights(rule)
    clock[0] = 107.0
    weights.learn(Newest(1, 1))
    weights.wanted_for(collect())
    weights.take(PulledWeights(POLICY, 1, b"1" * 8, weights.pulls_for, 123))
    clock[0] = 110.0
    weights.learn(Newest(1, 2))
    told = news(weights, rule)
    assert (told.time_s, told.pulled_at_s, told.pulled_bytes) == (110.0, 107.0, 123)
    assert told.first_slot == 8


def test_what_an_evaluation_pulled_does_not_make_the_weights_that_act_younger(make_weights, clock):
    rule = Listening()
    weights = make_weights(rule)
    hold(weights, 1)
    clock[0] = 150.0
    weights.learn(Newest(1, 2))
    weights.wanted_for(evaluate())
    weights.take(PulledWeights(POLICY, 2, b"2" * 8, weights.pulls_for, 99))
    told = news(weights, rule)
    assert (told.pulled_at_s, told.pulled_bytes) == (100.0, 8)


def test_what_could_not_be_kept_for_an_evaluation_leaves_later_weights_to_act_with(
    make_weights, stores, monkeypatch
):
    to_act_with, to_evaluate = stores
    weights = make_weights()
    hold(weights, 3)
    weights.learn(Newest(1, 4))
    weights.wanted_for(evaluate())
    with monkeypatch.context() as patch:
        patch.setattr(to_evaluate, "put", no_memory)
        with pytest.raises(OSError, match="no memory"):
            weights.take(PulledWeights(POLICY, 4, b"4" * 8, EVALUATION, 8))
    assert weights.pulls_for == ""
    assert weights.wanted_for(collect()) == PullWanted(1, 3, VERSION, 0.0)
    weights.take(PulledWeights(POLICY, 4, b"4" * 8, VERSION, 8))
    assert to_act_with.take(1, 0) == (4, b"4" * 8)
    assert to_evaluate.take(1, 0) is None


def no_memory(*_):
    raise OSError("no memory")
