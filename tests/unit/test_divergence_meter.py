"""The head measures how far the newest policy is from what acted, on rows of each host."""

import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.distributions import Categorical, divergence_of_log_probs
from clusterenv.head.divergence import DivergenceMeter
from clusterenv.head.publisher import Publication
from clusterenv.policies.base import Acted
from clusterenv.policies.copy import Snapshot, encode_layout
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import Collect, Newest

STEPS = 6
OBSERVATIONS, ACTIONS = spaces.Box(-9.0, 9.0, (2,)), spaces.Discrete(3)
num_forward_passes = [0]


class Linear:
    """Logits that are linear in the observation."""

    def __init__(self, seed=0):
        self.w = np.random.default_rng(seed).normal(size=(2, 3))

    def act(self, observations, state, rng):
        num_forward_passes[0] += 1
        return Acted(None, self.distribution(observations))

    def distribution(self, observations):
        return Categorical(observations @ self.w)

    def weights(self):
        return {"w": self.w}

    def load(self, weights):
        self.w = weights["w"]


class Recurrent(Linear):
    """Adds what it has seen so far in its episode."""

    def act(self, observations, state, rng):
        state = np.zeros((len(observations), 2)) if state is None else state
        state = state + observations
        return Acted(None, self.distribution(state), state=state)


class Silent(Linear):
    """Does not say what it draws from."""

    def act(self, observations, state, rng):
        return Acted(None)


def publication(policy, version, policy_id=1, since=1):
    snapshot = Snapshot(policy.weights())
    take = TakePolicy(policy_id, pickle.dumps(policy), encode_layout(snapshot.layout))
    return Publication(version, take, snapshot, since)


def make_meter(rows=1000, measure="divergence", **options):
    rule = SimpleNamespace(rows=rows, measure=measure)
    return DivergenceMeter(rule, OBSERVATIONS, ACTIONS, **options)


def fragment(policy, slots, version=1, seed=0, with_distribution=True):
    """What a copy of ``policy`` collects in these slots."""
    rng = np.random.default_rng([seed, *slots])
    count = len(slots)
    observations = rng.normal(size=(STEPS + 1, count, 2))
    actions = rng.integers(0, 3, (STEPS, count))
    acted = [policy.distribution(row) for row in observations[:STEPS]]
    arrays = {
        "observations/0": observations,
        "actions/0": actions,
        "rewards": np.zeros((STEPS, count)),
        "terminated": np.zeros((STEPS, count), bool),
        "truncated": np.zeros((STEPS, count), bool),
        "outputs/log_prob": np.stack(
            [one.log_prob(row) for one, row in zip(acted, actions, strict=True)]
        ),
    }
    if with_distribution:
        arrays["distribution/logits"] = np.stack([one.logits for one in acted])
    request = Collect(1, tuple(slots), STEPS, Newest(1, version))
    return FragmentPart(request, tuple(slots), version, arrays)


def each_of(part, newest):
    """The divergence of every row."""
    found = [
        Categorical(logits).kl(newest.distribution(observations))
        for logits, observations in zip(
            part.arrays["distribution/logits"], part.arrays["observations/0"][:STEPS], strict=True
        )
    ]
    return np.concatenate(found)


OLD, NEW, NEWER = Linear(1), Linear(2), Linear(3)


# One host.


def test_the_divergence_is_the_mean_over_the_rows_that_the_copy_acted_on():
    meter, part = make_meter(), fragment(OLD, (0, 1))
    meter.note_fragment("host-0.0", 2, part)
    (survey,) = meter.measure(publication(NEW, 2), sparingly=False).values()
    each = each_of(part, NEW)
    assert survey.measured.held == 1
    assert survey.measured.divergence == pytest.approx(each.mean())
    assert survey.measured.standard_error == pytest.approx(each.std() / math.sqrt(len(each)))
    assert survey.realised is None
    assert meter.latest("host-0.0") == survey.measured


def test_the_same_weights_are_no_distance_away():
    meter = make_meter()
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1)))
    (survey,) = meter.measure(publication(OLD, 2), sparingly=False).values()
    assert survey.measured.divergence == pytest.approx(0.0, abs=1e-12)
    assert survey.measured.effective_sample_size == pytest.approx(1.0)


def test_rows_that_another_policy_would_not_have_chosen_are_worth_less():
    meter = make_meter()
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1)))
    (survey,) = meter.measure(publication(NEW, 2), sparingly=False).values()
    assert 0 < survey.measured.effective_sample_size < 0.9


def test_without_the_distribution_log_probabilities_tell_the_distance():
    meter, part = make_meter(), fragment(OLD, (0, 1), with_distribution=False)
    meter.note_fragment("host-0.0", 2, part)
    (survey,) = meter.measure(publication(NEW, 2), sparingly=False).values()
    arrays = part.arrays
    flat = arrays["observations/0"][:STEPS].reshape(-1, 2)
    newer = NEW.distribution(flat).log_prob(arrays["actions/0"].reshape(-1))
    expected = divergence_of_log_probs(arrays["outputs/log_prob"].reshape(-1), newer)
    assert survey.measured.divergence == pytest.approx(expected.mean())


def test_another_measure_is_a_method_of_the_distributions():
    meter, part = make_meter(measure="total_variation"), fragment(OLD, (0, 1))
    meter.note_fragment("host-0.0", 2, part)
    (survey,) = meter.measure(publication(NEW, 2), sparingly=False).values()
    flat = part.arrays["observations/0"][:STEPS].reshape(-1, 2)
    expected = OLD.distribution(flat).total_variation(NEW.distribution(flat))
    assert survey.measured.divergence == pytest.approx(expected.mean())


def test_of_a_host_from_which_nothing_came_back_nothing_is_known():
    meter = make_meter()
    assert meter.latest("host-0.0") is None
    assert meter.measure(publication(NEW, 2), sparingly=False) == {}


def test_fragments_without_log_probabilities_are_of_no_use():
    meter, part = make_meter(), fragment(OLD, (0, 1))
    del part.arrays["outputs/log_prob"]
    meter.note_fragment("host-0.0", 2, part)
    assert meter.measure(publication(NEW, 2), sparingly=False) == {}


def test_a_policy_that_does_not_say_what_it_drew_from_cannot_be_compared():
    meter = make_meter()
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1)))
    with pytest.raises(TypeError, match=r"AdaptiveSync needs the distribution .* from act\(\)"):
        meter.measure(publication(Silent(2), 2), sparingly=False)


# Several parts of one host.


def test_rows_of_all_parts_of_a_host_count_together():
    meter, first, second = make_meter(), fragment(OLD, (0, 1)), fragment(OLD, (2, 3))
    for part in (first, second):
        meter.note_fragment("host-0.0", 4, part)
    surveys = meter.measure(publication(NEW, 2), sparingly=False)
    assert surveys.keys() == {"host-0.0"}
    each = np.concatenate([each_of(part, NEW) for part in (first, second)])
    assert surveys["host-0.0"].measured.divergence == pytest.approx(each.mean())


@given(st.integers(1, 5), st.integers(2, 64))
def test_each_part_gives_rows_in_proportion_to_its_slots(num_others, wanted):
    meter, num_slots = make_meter(rows=wanted), 1 + num_others
    parts = [fragment(OLD, (0,)), fragment(OLD, tuple(range(1, num_slots)))]
    for part in parts:
        meter.note_fragment("host-0.0", num_slots, part)
    rows = meter._entries["host-0.0"].parts
    for part in parts:
        share = max(1, wanted * len(part.slots) // num_slots)
        assert len(rows[part.slots[0]].log_prob) == min(share, STEPS * len(part.slots))


def test_rows_come_from_everywhere_in_a_fragment_and_are_always_the_same():
    meter, other, part = make_meter(rows=6), make_meter(rows=6), fragment(OLD, (0, 1, 2))
    for one in (meter, other):
        one.note_fragment("host-0.0", 3, part)
    found, again = (one._entries["host-0.0"].rows.observations[0] for one in (meter, other))
    np.testing.assert_array_equal(found, again)
    all_rows = part.arrays["observations/0"]
    steps = {t for row in found for t in range(STEPS) if (all_rows[t] == row).all(axis=1).any()}
    assert len(found) == 6
    assert len(steps) >= 3


def test_a_newer_fragment_of_the_same_slots_takes_the_place_of_the_last():
    meter, first = make_meter(), fragment(OLD, (0, 1), seed=1)
    second, third = fragment(OLD, (2, 3)), fragment(OLD, (0, 1), seed=3)
    for part in (first, second, third):
        meter.note_fragment("host-0.0", 4, part)
    (survey,) = meter.measure(publication(NEW, 2), sparingly=False).values()
    each = np.concatenate([each_of(part, NEW) for part in (second, third)])
    assert survey.measured.divergence == pytest.approx(each.mean())


def test_only_rows_of_the_version_that_acts_now_count():
    meter, newer = make_meter(), fragment(NEW, (2, 3), version=2)
    meter.note_fragment("host-0.0", 4, fragment(OLD, (0, 1), version=1))
    meter.note_fragment("host-0.0", 4, newer)
    (survey,) = meter.measure(publication(NEWER, 3), sparingly=False).values()
    assert survey.measured.held == 2
    assert survey.measured.divergence == pytest.approx(each_of(newer, NEWER).mean())


# Several hosts.


def test_hosts_are_measured_apart_but_in_one_forward_pass():
    meter, parts = (
        make_meter(),
        {"host-0.0": fragment(OLD, (0, 1)), "host-1.0": fragment(NEW, (2,))},
    )
    for host, part in parts.items():
        meter.note_fragment(host, 2, part)
    num_forward_passes[0] = 0
    surveys = meter.measure(publication(NEWER, 2), sparingly=False)
    assert num_forward_passes == [1]
    for host, part in parts.items():
        expected = each_of(part, NEWER).mean()
        assert surveys[host].measured.divergence == pytest.approx(expected)
        assert meter.latest(host) == surveys[host].measured


def test_a_host_that_is_gone_is_not_measured_any_more():
    meter = make_meter()
    for number in range(2):
        meter.note_fragment(f"host-{number}.0", 2, fragment(OLD, (0, 1)))
    meter.forget("host-0.0")
    meter.forget("never-there")
    assert meter.measure(publication(NEW, 2), sparingly=False).keys() == {"host-1.0"}
    assert meter.latest("host-0.0") is None


def test_hosts_that_hold_different_versions_are_measured_against_the_same_newest():
    meter = make_meter()
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1), version=1))
    meter.note_fragment("host-1.0", 2, fragment(NEW, (2, 3), version=2))
    surveys = meter.measure(publication(NEW, 3), sparingly=False)
    assert [surveys[host].measured.held for host in ("host-0.0", "host-1.0")] == [1, 2]
    assert surveys["host-0.0"].measured.divergence > 0.01
    assert surveys["host-1.0"].measured.divergence == pytest.approx(0.0, abs=1e-12)


# When it is due.


def test_nothing_is_measured_twice_for_one_version():
    meter = make_meter()
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1)))
    assert meter.measure(publication(NEW, 2), sparingly=False)
    assert meter.measure(publication(NEW, 2), sparingly=False) == {}
    assert meter.measure(publication(NEWER, 3), sparingly=False)


def test_a_copy_that_is_the_newest_is_not_measured():
    meter = make_meter()
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1), version=2))
    assert meter.measure(publication(OLD, 2), sparingly=False) == {}


def test_sparingly_it_is_measured_whenever_the_lag_has_doubled():
    meter = make_meter()
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1), version=1))
    due = [
        version - 1
        for version in range(2, 40)
        if meter.measure(publication(NEW, version), sparingly=True)
    ]
    assert due == [1, 2, 4, 8, 16, 32]


def test_another_policy_altogether_is_infinitely_far():
    meter = make_meter()
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1), version=1))
    newest = publication(Linear(5), 2, policy_id=2, since=2)
    assert meter.measure(newest, sparingly=False) == {}
    measured = meter.latest("host-0.0")
    assert (measured.held, measured.divergence) == (1, math.inf)


def test_rows_of_another_policy_are_measured_with_that_policy():
    meter = make_meter()
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1), version=1))
    meter.measure(publication(NEW, 2), sparingly=False)
    part = fragment(NEW, (0, 1), version=3)
    meter.note_fragment("host-0.0", 2, part)
    newest = publication(NEWER, 4, policy_id=2, since=3)
    (survey,) = meter.measure(newest, sparingly=False).values()
    assert survey.measured.divergence == pytest.approx(each_of(part, NEWER).mean())


def test_new_rows_of_a_copy_that_was_behind_tell_what_the_last_decision_led_to():
    meter, late = make_meter(), fragment(OLD, (0, 1), version=1, seed=9)
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1), version=1))
    meter.measure(publication(NEW, 2), sparingly=False)
    # Version 1 went on to act, though version 2 was there.
    meter.note_fragment("host-0.0", 2, late)
    (survey,) = meter.measure(publication(NEWER, 3), sparingly=False).values()
    assert survey.realised == pytest.approx(each_of(late, NEW).mean())
    assert survey.measured.divergence == pytest.approx(each_of(late, NEWER).mean())


def test_what_is_measured_again_on_the_same_rows_led_to_nothing_new():
    meter = make_meter()
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1), version=1))
    meter.measure(publication(NEW, 2), sparingly=False)
    (survey,) = meter.measure(publication(NEWER, 3), sparingly=False).values()
    assert survey.realised is None


# Steps.


def note_step(meter, policy, slots, version=1, host="host-0.0"):
    rng = np.random.default_rng([7, *slots])
    observations, actions = rng.normal(size=(len(slots), 2)), rng.integers(0, 3, len(slots))
    log_prob = policy.distribution(observations).log_prob(actions)
    acted = {"log_prob": log_prob, "version": np.full(len(slots), version)}
    meter.note_step(host, slots[0], [observations], [actions], acted)
    newer = NEW.distribution(observations).log_prob(actions)
    return divergence_of_log_probs(log_prob, newer)


def test_steps_of_all_workers_of_a_host_count_together():
    meter = make_meter()
    each = [note_step(meter, OLD, slots) for slots in [(0, 1), (2, 3, 4)]]
    (survey,) = meter.measure(publication(NEW, 2), sparingly=False).values()
    assert survey.measured.divergence == pytest.approx(np.concatenate(each).mean())


def test_what_was_measured_stays_while_steps_go_on_with_the_same_version():
    meter = make_meter()
    note_step(meter, OLD, (0, 1))
    meter.measure(publication(NEW, 2), sparingly=False)
    measured = meter.latest("host-0.0")
    note_step(meter, OLD, (0, 1))
    assert meter.latest("host-0.0") is measured
    assert meter.measure(publication(NEW, 2), sparingly=False) == {}


def test_a_step_of_a_newer_version_begins_anew():
    meter = make_meter()
    note_step(meter, OLD, (0, 1))
    meter.measure(publication(NEW, 2), sparingly=False)
    note_step(meter, NEW, (0, 1), version=2)
    assert meter.latest("host-0.0") is None
    (survey,) = meter.measure(publication(NEWER, 3), sparingly=False).values()
    assert survey.measured.held == 2


def test_steps_without_log_probabilities_are_of_no_use():
    meter = make_meter()
    acted = {"version": np.ones(2, int)}
    meter.note_step("host-0.0", 0, [np.zeros((2, 2))], [np.zeros(2, int)], acted)
    assert meter.measure(publication(NEW, 2), sparingly=False) == {}


@pytest.mark.parametrize("hosts", [("host-0.0", "host-0.0"), ("host-0.0", "host-1.0")], ids=str)
def test_rows_of_fragments_and_rows_of_steps_can_be_measured_together(hosts):
    # A rollout, and then steps with the same version, before all slots have been stepped.
    meter = make_meter()
    meter.note_fragment(hosts[0], 2, fragment(OLD, (0, 1)))
    note_step(meter, OLD, (2, 3), host=hosts[1])
    surveys = meter.measure(publication(NEW, 2), sparingly=False)
    assert surveys.keys() == set(hosts)
    assert all(survey.measured.divergence > 0 for survey in surveys.values())


# Recurrent policies.


def recurrent_fragment(policy, slots, ended=(), version=1):
    """As :func:`fragment`, with a state; episodes end at these (step, column)."""
    part = fragment(policy, slots, version)
    arrays, state = part.arrays, np.full((len(slots), 2), 0.5)
    arrays["state/"] = state
    for step, column in ended:
        arrays["terminated"][step, column] = True
    logits, states = [], state
    for step in range(STEPS):
        states = states + arrays["observations/0"][step]
        logits.append(policy.distribution(states).logits)
        states = np.where(arrays["terminated"][step][:, None], 0.0, states)
    arrays["distribution/logits"] = np.stack(logits)
    log_probs = [Categorical(row).log_prob(a) for row, a in zip(logits, arrays["actions/0"])]
    arrays["outputs/log_prob"] = np.stack(log_probs)
    return part


@pytest.mark.parametrize("ended", [[], [(2, 0), (2, 1), (4, 1)]], ids=str)
def test_a_recurrent_policy_is_unrolled_from_where_it_was(ended):
    meter, policy = make_meter(), Recurrent(1)
    meter.note_fragment("host-0.0", 2, recurrent_fragment(policy, (0, 1), ended))
    (survey,) = meter.measure(publication(policy, 2), sparingly=False).values()
    # With the same weights, only the right state gives what it gave there.
    assert survey.measured.divergence == pytest.approx(0.0, abs=1e-9)
    (survey,) = meter.measure(publication(Recurrent(2), 3), sparingly=False).values()
    assert survey.measured.divergence > 0.01


@pytest.mark.parametrize("order", [[(0, 1), (2, 3)], [(2, 3), (0, 1), (2, 3)]], ids=str)
def test_of_sequences_those_of_the_latest_part_count(order):
    meter, policy = make_meter(), Recurrent(1)
    for slots in order:
        meter.note_fragment("host-0.0", 4, recurrent_fragment(policy, slots))
    surveys = meter.measure(publication(Recurrent(2), 2), sparingly=False)
    other = make_meter()
    other.note_fragment("host-0.0", 4, recurrent_fragment(policy, (2, 3)))
    expected = other.measure(publication(Recurrent(2), 2), sparingly=False)
    assert surveys == expected


def test_a_single_step_of_a_recurrent_policy_tells_nothing():
    meter = make_meter()
    note_step(meter, OLD, (0, 1))
    assert meter.measure(publication(Recurrent(2), 2), sparingly=False) == {}
    assert meter.latest("host-0.0") is None


# Rows that nothing can be measured on.


class Court:
    """Keeps whom the meter accuses."""

    def __init__(self, believes=True):
        self.believes, self.accused = believes, []

    def __call__(self, host, policy_id, error):
        self.accused.append((host, policy_id))
        return self.believes


def changed(name, change):
    part = fragment(OLD, (2, 3))
    part.arrays[name] = change(part.arrays[name])
    return part


USELESS = {
    "actions that there are none of": changed("actions/0", lambda a: np.full_like(a, 99)),
    "actions that are no numbers": changed("actions/0", lambda a: a.astype("<U3")),
    "parameters of another shape": changed("distribution/logits", lambda a: a[..., :2]),
    "parameters that are times": changed("distribution/logits", lambda a: a.astype("<M8[s]")),
    "log-probabilities of another shape": changed(
        "outputs/log_prob", lambda a: np.stack([a, a], -1)
    ),
}


@pytest.mark.parametrize("part", USELESS.values(), ids=USELESS)
def test_a_host_whose_rows_are_useless_is_accused_and_the_others_are_measured(part):
    court = Court()
    meter = make_meter(accuse=court)
    meter.note_fragment("host-0.0", 2, honest := fragment(OLD, (0, 1)))
    meter.note_fragment("host-1.0", 2, part)
    found = meter.measure(publication(NEW, 2), sparingly=False)
    assert court.accused == [("host-1.0", 1)]
    assert list(found) == ["host-0.0"]
    assert found["host-0.0"].measured.divergence == pytest.approx(each_of(honest, NEW).mean())
    # Once is enough.
    meter.measure(publication(NEWER, 3), sparingly=False)
    assert court.accused == [("host-1.0", 1)]


@pytest.mark.parametrize("part", USELESS.values(), ids=USELESS)
def test_where_it_is_nobodys_fault_the_user_is_told(part):
    meter = make_meter(accuse=Court(believes=False))
    meter.note_fragment("host-1.0", 2, part)
    with pytest.raises((IndexError, ValueError, TypeError)):
        meter.measure(publication(NEW, 2), sparingly=False)


def test_a_policy_that_does_not_say_what_it_drew_from_is_no_hosts_fault():
    court = Court()
    meter = make_meter(accuse=court)
    meter.note_fragment("host-0.0", 2, fragment(OLD, (0, 1)))
    with pytest.raises(TypeError, match="the distribution that actions are drawn from"):
        meter.measure(publication(Silent(), 2), sparingly=False)
    assert court.accused == []


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e308])
def test_numbers_that_are_none_give_no_warning(number):
    meter = make_meter()
    part = changed("distribution/logits", lambda array: np.full_like(array, number))
    part.arrays["outputs/log_prob"] = np.full_like(part.arrays["outputs/log_prob"], number)
    meter.note_fragment("host-1.0", 2, part)
    assert "host-1.0" in meter.measure(publication(NEW, 2), sparingly=False)
