"""Slots move only for a gain that is worth restarting envs for."""

from clusterenv.head.pace import Pace
from clusterenv.head.roster import Roster


def measured(seconds, num_envs=22, looks=2):
    roster, pace = Roster(num_envs, len(seconds), 3), Pace()
    for _ in range(looks):
        for member, took in zip(roster.members, seconds, strict=True):
            pace.note(member, 10, took)
    return roster, pace


def test_equal_workers_keep_their_slots():
    roster, pace = measured([1.0, 1.0])
    assert pace.better_shares(roster.members) == []


def test_a_small_difference_is_not_worth_it():
    roster, pace = measured([1.0, 1.05])
    assert pace.better_shares(roster.members) == []


def test_a_slow_worker_gets_fewer_slots():
    roster, pace = measured([1.0, 10.0])
    roster.deal(roster.members, pace.better_shares(roster.members))
    assert [len(member.slots) for member in roster.members] == [20, 2]


def test_one_look_is_not_enough():
    roster, pace = measured([1.0, 10.0], looks=1)
    assert pace.better_shares(roster.members) == []


def test_after_moving_it_looks_again_first():
    roster, pace = measured([1.0, 10.0])
    assert pace.better_shares(roster.members)
    assert pace.better_shares(roster.members) == []
