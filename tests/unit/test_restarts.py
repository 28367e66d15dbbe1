"""How often what is in one place may be replaced, at which rate and after which pauses."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusterenv.restarts import FORGIVEN_S, RestartBudget

MINUTE_S = 60.0
MANY = 10**9


@dataclass
class Allowed:
    max_restarts_per_minute: int = MANY
    max_restarts: int = MANY
    restart_backoff_s: float = 0.5


def refusals(allowed, *times, worked_s=0.0, is_orderly=False):
    """What becomes of losses at these times."""
    budget = RestartBudget()
    return [budget.spend(allowed, "exit code 3", now, worked_s, is_orderly) for now in times]


def granted(allowed, *times, **how):
    return [not refusal for refusal in refusals(allowed, *times, **how)]


# Within a minute.


def test_there_are_as_many_restarts_per_minute_as_allowed():
    assert granted(Allowed(3), 0.0, 1.0, 2.0, 3.0) == [True] * 3 + [False]


def test_without_any_allowed_there_is_none():
    assert granted(Allowed(0), 0.0) == [False]


def test_the_rate_is_that_of_the_last_minute():
    assert granted(Allowed(1), 0.0, MINUTE_S, MINUTE_S + 0.1) == [True, False, True]


def test_a_refused_restart_costs_nothing():
    assert granted(Allowed(1), *map(float, range(62)))[-1]


@given(st.integers(0, 5), st.lists(st.floats(0, 30), max_size=40))
# A minute to the last bit: rounded, the difference of the two times is more.
@example(1, [1.1913015388223704, 1.1913015388223704, 30.0, 29.0, 30.0, 30.0])
def test_no_minute_sees_more_restarts_than_allowed(most, pauses):
    times = list(itertools.accumulate(pauses))
    restarts = list(itertools.compress(times, granted(Allowed(most), *times)))
    for start in restarts:
        assert sum(start <= now <= start + MINUTE_S for now in restarts) <= most


# In all.


@pytest.mark.parametrize("apart_s", [1.0, 21.0, 3600.0])
def test_who_gets_nothing_done_is_given_up_whatever_the_rate(apart_s):
    times = [number * apart_s for number in range(12)]
    assert granted(Allowed(max_restarts=10), *times) == [True] * 10 + [False] * 2


def test_good_work_gives_restarts_back():
    times = [number * 100.0 for number in range(1000)]
    assert all(granted(Allowed(max_restarts=1), *times, worked_s=FORGIVEN_S))
    assert not all(granted(Allowed(max_restarts=5), *times, worked_s=FORGIVEN_S / 2))


def test_good_work_before_the_first_loss_is_no_credit():
    allowed, budget = Allowed(max_restarts=2), RestartBudget()
    assert not budget.spend(allowed, "exit code 3", 0.0, 1e6)
    assert not budget.spend(allowed, "exit code 3", 1.0, 0.0)
    assert budget.spend(allowed, "exit code 3", 2.0, 0.0)


def test_who_is_told_to_leave_spends_no_rate_but_is_not_replaced_for_ever():
    times = [number * 0.1 for number in range(12)]
    leaving = granted(Allowed(0, 10), *times, is_orderly=True)
    assert leaving == [True] * 10 + [False] * 2


# How soon.


def pauses(count, allowed, **how):
    budget, found = RestartBudget(), []
    for _ in range(count):
        assert budget.spend(allowed, "exit code 3", 0.0, **{"worked_s": 0.0, **how}) == ""
        found.append(budget.delay_s(allowed))
    return found


def test_the_first_replacement_starts_at_once_and_each_further_one_later():
    assert pauses(6, Allowed()) == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]


def test_pauses_do_not_grow_for_ever():
    assert pauses(50, Allowed(restart_backoff_s=0.25))[-1] == 16.0


def test_after_good_work_the_next_replacement_starts_at_once():
    assert pauses(5, Allowed(), worked_s=FORGIVEN_S) == [0.0] * 5


def test_forty_four_restarts_in_twenty_seconds_are_impossible():
    waited = itertools.accumulate(pauses(20, Allowed(), is_orderly=True))
    assert sum(until < 20.0 for until in waited) <= 7


# What is said about it.


def test_a_refusal_names_the_limit_and_what_happened():
    budget, allowed = RestartBudget(), Allowed(max_restarts=2)
    for cause in ("exit code 3", "killed by SIGSEGV\nand more"):
        budget.spend(allowed, cause, 0.0, 0.0)
    refusal = budget.spend(allowed, "exit code 3", 0.0, 0.0)
    assert "max_restarts=2" in refusal
    assert "2 times exit code 3; 1 times killed by SIGSEGV)" in refusal
    assert "max_restarts_per_minute" in refusals(Allowed(0), 0.0)[0]


def test_causes_that_all_differ_are_not_all_kept():
    budget = RestartBudget()
    for number in range(10_000):
        budget.spend(Allowed(), f"{number} " + "x" * 10_000, 0.0, 0.0)
    assert len(budget.spend(Allowed(0), "exit code 3", 0.0, 0.0)) < 10_000
