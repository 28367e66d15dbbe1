"""Slots move only for a gain that is worth restarting envs for."""

from types import SimpleNamespace

import pytest

from clusterenv.head.pace import Pace
from clusterenv.sharing import shares


def hosts_of(num_envs, count):
    """Hosts that share these slots evenly."""
    hosts, first = [], 0
    for index, size in enumerate(shares(num_envs, [1.0] * count)):
        hosts.append(SimpleNamespace(name=f"host-{index}.0", slots=range(first, first + size)))
        first += size
    return hosts


def measured(seconds, num_envs=22, looks=2):
    hosts, pace = hosts_of(num_envs, len(seconds)), Pace()
    for _ in range(looks):
        for host, took in zip(hosts, seconds, strict=True):
            pace.note(host, 10, took)
    return hosts, pace


def test_equal_hosts_keep_their_slots():
    hosts, pace = measured([1.0, 1.0])
    assert pace.better_shares(hosts) == []


def test_a_small_difference_is_not_worth_it():
    hosts, pace = measured([1.0, 1.05])
    assert pace.better_shares(hosts) == []


def test_a_slow_host_gets_fewer_slots():
    hosts, pace = measured([1.0, 10.0])
    assert shares(22, pace.better_shares(hosts)) == [20, 2]


def test_speeds_are_those_of_all_slots_of_a_host_together():
    hosts, pace = hosts_of(12, 2), Pace()
    hosts[0].slots, hosts[1].slots = range(9), range(9, 12)
    for _ in range(2):
        for host in hosts:
            # As fast for three slots as for nine: a third of the speed.
            pace.note(host, 10, 1.0)
    assert pace.better_shares(hosts) == []


def test_one_look_is_not_enough():
    hosts, pace = measured([1.0, 10.0], looks=1)
    assert pace.better_shares(hosts) == []


def test_a_host_that_came_later_has_to_be_looked_at_first():
    hosts, pace = measured([1.0, 10.0])
    hosts.append(SimpleNamespace(name="host-2.0", slots=range(22, 24)))
    assert pace.better_shares(hosts) == []


def test_after_moving_it_looks_again_first():
    hosts, pace = measured([1.0, 10.0])
    assert pace.better_shares(hosts)
    assert pace.better_shares(hosts) == []


def test_newer_measurements_count_more():
    hosts, pace = measured([1.0, 10.0], looks=4)
    for _ in range(10):
        pace.note(hosts[1], 10, 1.0)
    assert pace.better_shares(hosts) == []


@pytest.mark.parametrize("seconds", [0.0, 1e-12])
def test_no_time_at_all_is_no_error(seconds):
    hosts, pace = measured([seconds, seconds])
    assert pace.better_shares(hosts) == []
