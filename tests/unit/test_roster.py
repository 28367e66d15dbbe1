"""Slots have exactly one owner each, and restarts have a budget."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusterenv.head.roster import RESTART_WINDOW_S, Roster, restart_seed, shares

crews = st.integers(1, 300).flatmap(
    lambda num_envs: st.tuples(st.just(num_envs), st.integers(1, num_envs))
)


@given(crews)
def test_every_slot_has_exactly_one_owner(crew):
    num_envs, num_workers = crew
    members = Roster(num_envs, num_workers, 3).members
    assert [slot for member in members for slot in member.slots] == list(range(num_envs))


@given(crews)
def test_slots_are_shared_out_evenly(crew):
    num_envs, num_workers = crew
    sizes = [len(member.slots) for member in Roster(num_envs, num_workers, 3).members]
    assert len(sizes) == num_workers
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(crews)
def test_the_slots_of_a_worker_are_consecutive_ints(crew):
    for member in Roster(*crew, 3).members:
        first = member.slots[0]
        assert member.slots == tuple(range(first, first + len(member.slots)))
        assert {type(slot) for slot in member.slots} == {int}


@given(crews, st.data())
def test_splitting_slots_keeps_them_and_their_owners(crew, data):
    num_envs, _ = crew
    roster = Roster(*crew, 3)
    slots = sorted(data.draw(st.sets(st.integers(0, num_envs - 1))))
    groups = list(roster.split_by_member(slots))
    assert [slot for _, group, _ in groups for slot in group] == slots
    assert all(set(group) <= set(member.slots) for member, group, _ in groups)
    assert all(tuple(slots[part]) == group for _, group, part in groups)
    assert len({member.index for member, _, _ in groups}) == len(groups)


@given(crews, st.integers(1, 5), st.data())
def test_slots_are_split_by_the_parts_of_their_owners(crew, num_parts, data):
    num_envs, _ = crew
    roster = Roster(*crew, 3)
    slots = sorted(data.draw(st.sets(st.integers(0, num_envs - 1))))
    parts = [group for _, group, _ in roster.split_by_member(range(num_envs), num_parts)]
    assert all(
        sum(set(part) <= set(member.slots) for part in parts) <= num_parts
        for member in roster.members
    )
    groups = [group for _, group, _ in roster.split_by_member(slots, num_parts)]
    assert groups == [g for part in parts if (g := tuple(s for s in slots if s in part))]


@given(crews, st.integers(1, 3), st.data())
def test_groups_that_are_remembered_are_those_of_the_slots(crew, num_parts, data):
    num_envs, _ = crew
    roster = Roster(*crew, 3)

    def check(first, last):
        for slots in (range(first, last + 1), sorted({first, last})):
            split = roster.split_by_member(slots, num_parts)
            expected = [(member, group) for member, group, _ in split]
            assert roster.groups_of(slots, num_parts) == expected

    slots = st.integers(0, num_envs - 1)
    ends = [sorted(pair) for pair in data.draw(st.lists(st.tuples(slots, slots), max_size=100))]
    for first, last in ends:
        check(first, last)
    roster.deal(roster.members[: data.draw(st.integers(1, len(roster.members)))])
    for first, last in ends:
        check(first, last)


def test_a_worker_is_found_by_name():
    roster = Roster(4, 2, 3)
    assert [roster.find(member.worker) for member in roster.members] == roster.members


def test_a_stranger_is_not_found():
    assert Roster(4, 2, 3).find("worker-7.0") is None


def test_a_replacement_has_another_name_and_the_same_slots():
    roster = Roster(4, 2, 3)
    member = roster.members[1]
    name, slots = member.worker, member.slots
    roster.replace(member)
    assert member.worker != name
    assert member.slots == slots
    assert roster.find(member.worker) is member


def test_who_was_replaced_is_not_found_any_more():
    roster = Roster(4, 2, 3)
    name = roster.members[1].worker
    roster.replace(roster.members[1])
    assert roster.find(name) is None


def test_a_replacement_has_not_joined_yet():
    roster = Roster(4, 2, 3)
    member = roster.members[0]
    member.joined = True
    roster.replace(member)
    assert not member.joined


def test_the_names_of_all_workers_that_ever_were_differ():
    roster = Roster(4, 4, 3)
    names = []
    for _ in range(12):
        names += [member.worker for member in roster.members]
        for member in roster.members:
            roster.replace(member)
    assert len(set(names)) == len(names)


# The restart budget.


def test_the_budget_allows_as_many_restarts_per_minute_as_it_says():
    roster = Roster(1, 1, 3)
    member = roster.members[0]
    assert [roster.may_restart(member, now) for now in (0.0, 1.0, 2.0, 3.0)] == [True] * 3 + [False]


def test_a_budget_of_zero_allows_no_restart():
    roster = Roster(1, 1, 0)
    assert not roster.may_restart(roster.members[0], 0.0)


def test_restarts_are_forgotten_after_a_minute():
    roster = Roster(1, 1, 1)
    member = roster.members[0]
    assert roster.may_restart(member, 0.0)
    assert not roster.may_restart(member, RESTART_WINDOW_S)
    assert roster.may_restart(member, RESTART_WINDOW_S + 0.1)


def test_a_refused_restart_costs_nothing():
    roster = Roster(1, 1, 1)
    member = roster.members[0]
    roster.may_restart(member, 0.0)
    for second in range(1, 60):
        assert not roster.may_restart(member, float(second))
    assert roster.may_restart(member, 61.0)


def test_each_worker_has_a_budget_of_its_own():
    roster = Roster(2, 2, 1)
    first, second = roster.members
    assert roster.may_restart(first, 0.0)
    assert roster.may_restart(second, 0.0)


@given(st.integers(0, 5), st.lists(st.floats(0, 30), max_size=40))
# A minute to the last bit: rounded, the difference of the two times is more.
@example(1, [1.1913015388223704, 1.1913015388223704, 30.0, 29.0, 30.0, 30.0])
def test_no_minute_sees_more_restarts_than_the_budget(budget, pauses):
    roster = Roster(1, 1, budget)
    member, times = roster.members[0], itertools.accumulate(pauses)
    granted = [now for now in times if roster.may_restart(member, now)]
    for start in granted:
        assert sum(start <= now <= start + RESTART_WINDOW_S for now in granted) <= budget


# Seeds of restarted slots.


def test_restart_seeds_are_the_same_every_time():
    assert restart_seed(42, 3, 1) == restart_seed(42, 3, 1)


def test_restart_seeds_of_different_slots_and_incarnations_differ():
    seeds = [
        restart_seed(run, slot, incarnation)
        for run in (0, 1, 42)
        for slot in range(64)
        for incarnation in range(1, 5)
    ]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("run_seed", [0, 2**31, 2**64, 2**127])
def test_any_run_seed_gives_a_seed_that_gymnasium_takes(run_seed):
    seed = restart_seed(run_seed, 3, 1)
    assert type(seed) is int
    assert 0 <= seed < 2**32


# Dealing.


weights = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=20)


@given(weights, st.integers(0, 200))
def test_shares_are_whole_add_up_and_none_would_be_done_sooner_elsewhere(speeds, more):
    total = len(speeds) + more
    parts = shares(total, speeds)
    assert sum(parts) == total
    assert min(parts) >= 1
    slowest = max((p / s for p, s in zip(parts, speeds, strict=True) if p > 1), default=0.0)
    for part, speed in zip(parts, speeds, strict=True):
        assert (part + 1) / speed >= slowest * (1 - 1e-9)


def test_absent_members_own_nothing_and_the_others_everything():
    roster = Roster(7, 3, 3)
    changed = roster.deal([roster.members[0], roster.members[2]])
    assert [member.slots for member in roster.members] == [(0, 1, 2, 3), (), (4, 5, 6)]
    assert [member.index for member in roster.staffed] == [0, 2]
    assert changed == roster.members
    assert roster.owner_of(4) is roster.members[2]


def test_members_whose_slots_stay_are_left_alone():
    roster = Roster(6, 3, 3)
    assert roster.deal(roster.members) == []
    changed = roster.deal(roster.members, [1.0, 1.0, 4.0])
    assert [member.slots for member in roster.members] == [(0,), (1,), (2, 3, 4, 5)]
    assert changed == roster.members
    assert roster.deal(roster.members, [1.0, 1.0, 4.0]) == []


def test_a_slot_never_starts_over_with_the_same_seed():
    roster = Roster(4, 2, 3)
    seeds = [roster.next_seed(1, 3) for _ in range(100)]
    assert len(set(seeds)) == 100
    assert seeds[0] == restart_seed(1, 3, 1)


def test_a_run_can_do_without_a_worker_while_min_workers_are_left():
    roster = Roster(6, 3, 3, min_workers=2)
    for member in roster.members:
        member.joined = True
    assert roster.can_do_without(roster.members[0])
    roster.members[1].joined = False
    assert not roster.can_do_without(roster.members[0])
    assert roster.can_do_without(roster.members[1])
