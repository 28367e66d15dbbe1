"""Every slot has exactly one owner, and slots are split by it."""

from hypothesis import given
from hypothesis import strategies as st

from clusterenv.sharing import _MOST_GROUPS, Splitter, shares, split

speeds = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=20)


@st.composite
def owners(draw):
    """Where the slots of each owner begin, and one more: where the last one's end."""
    first, sizes = draw(st.integers(0, 50)), draw(st.lists(st.integers(1, 30), min_size=1))
    return [first + sum(sizes[:index]) for index in range(len(sizes) + 1)]


def draw_slots(data, firsts, min_size=0):
    slots = st.integers(firsts[0], firsts[-1] - 1)
    return sorted(data.draw(st.sets(slots, min_size=min_size)))


# Shares.


@given(speeds, st.integers(0, 200))
def test_shares_are_whole_add_up_and_none_would_be_done_sooner_elsewhere(speeds, more):
    total = len(speeds) + more
    parts = shares(total, speeds)
    assert sum(parts) == total
    assert min(parts) >= 1
    slowest = max((p / s for p, s in zip(parts, speeds, strict=True) if p > 1), default=0.0)
    for part, speed in zip(parts, speeds, strict=True):
        assert (part + 1) / speed >= slowest * (1 - 1e-9)


@given(st.integers(1, 50), st.integers(0, 300))
def test_equals_share_evenly_and_the_first_ones_have_one_more(count, more):
    parts = shares(count + more, [1.0] * count)
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True)


def test_shares_are_in_proportion_to_speeds():
    assert shares(12, [1.0, 2.0, 3.0]) == [2, 4, 6]


def test_even_the_slowest_gets_one():
    assert shares(10, [1.0, 1e-6]) == [9, 1]


# Splitting.


@given(owners(), st.data())
def test_splitting_keeps_slots_and_their_owners(firsts, data):
    slots = draw_slots(data, firsts)
    groups = list(split(slots, firsts))
    assert [slot for _, group, _ in groups for slot in group] == slots
    assert all(tuple(slots[part]) == group for _, group, part in groups)
    assert all(
        firsts[owner] <= slot < firsts[owner + 1] for owner, group, _ in groups for slot in group
    )
    # One group for each owner, in their order.
    indices = [owner for owner, _, _ in groups]
    assert indices == sorted(set(indices))


@given(owners(), st.integers(1, 5), st.data())
def test_slots_are_split_by_the_parts_of_their_owners(firsts, num_parts, data):
    slots = draw_slots(data, firsts)
    parts = [
        (owner, group) for owner, group, _ in split(range(firsts[0], firsts[-1]), firsts, num_parts)
    ]
    for owner in range(len(firsts) - 1):
        sizes = [len(group) for one, group in parts if one == owner]
        assert len(sizes) <= num_parts
        # All but the last are of the same size.
        assert len(set(sizes[:-1])) <= 1
        assert sizes[-1] <= sizes[0]
    groups = [(owner, group) for owner, group, _ in split(slots, firsts, num_parts)]
    assert groups == [
        (owner, chosen)
        for owner, part in parts
        if (chosen := tuple(slot for slot in slots if slot in part))
    ]


@given(owners(), st.integers(1, 3), st.data())
def test_groups_that_are_remembered_are_those_of_the_slots(firsts, num_parts, data):
    splitter = Splitter(firsts)
    slot = st.integers(firsts[0], firsts[-1] - 1)
    pairs = data.draw(st.lists(st.tuples(slot, slot), max_size=_MOST_GROUPS + 20))
    for _ in range(2):
        for first, last in map(sorted, pairs):
            for slots in (range(first, last + 1), sorted({first, last})):
                expected = list(split(slots, firsts, num_parts))
                assert splitter.split(slots, num_parts) == expected


def test_only_so_many_splits_are_remembered():
    splitter = Splitter([0, 500, 1000])
    for first in range(10 * _MOST_GROUPS):
        splitter.split(range(first, first + 3))
    assert len(splitter._groups) <= _MOST_GROUPS


def test_a_split_that_was_remembered_costs_no_new_one():
    splitter = Splitter([0, 2, 4])
    assert splitter.split(range(4)) is splitter.split(range(4))
    assert splitter.split(range(4), 2) is not splitter.split(range(4))
