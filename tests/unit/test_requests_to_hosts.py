"""Requests are numbered, and go to the hosts of their slots with each host's share."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import WorkerLostError
from clusterenv.head.host_requests import HostRequests
from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.requests import Call, Reset, SetAttr


class PaperHost:
    """Keeps what it is asked."""

    def __init__(self, slots):
        self.slots, self.asked, self.is_idle = slots, [], True
        self.never_reached = set()

    def ask(self, request, actions=None):
        self.asked.append((request, actions))

    def abandon(self):
        return self.never_reached


def fleet_of(*sizes):
    hosts, first = [], 0
    for size in sizes:
        hosts.append(PaperHost(range(first, first + size)))
        first += size
    return SimpleNamespace(hosts=hosts, deals=0)


def asked(fleet):
    """What each host was asked, and forget it."""
    found = [host.asked for host in fleet.hosts]
    for host in fleet.hosts:
        host.asked = []
    return found


def test_numbers_are_never_given_twice():
    asking = HostRequests(fleet_of(2))
    assert [asking.new_number() for _ in range(3)] == [1, 2, 3]


def test_nothing_can_be_asked_where_slots_are_gone_for_good():
    asking = HostRequests(fleet_of(2))
    asking.incomplete = "worker-0.3 was lost"
    with pytest.raises(WorkerLostError, match=r"worker-0\.3 was lost"):
        asking.new_number()


def test_it_is_idle_when_all_hosts_are():
    fleet = fleet_of(2, 2)
    asking = HostRequests(fleet)
    assert asking.is_idle
    fleet.hosts[1].is_idle = False
    assert not asking.is_idle


def test_each_host_gets_its_share_of_a_request():
    fleet = fleet_of(2, 3)
    seeds = pack([10, 11, 12], allow_pickle=False)
    HostRequests(fleet).ask(Reset(7, (1, 2, 4), 42, seeds))
    ((first, _),), ((second, _),) = asked(fleet)
    assert (first.request, first.slots, second.slots) == (7, (1,), (2, 4))
    assert unpack(first.seeds, allow_pickle=False) == [10]
    assert unpack(second.seeds, allow_pickle=False) == [11, 12]


def test_a_host_whose_slots_are_not_asked_for_hears_nothing():
    fleet = fleet_of(2, 2, 2)
    HostRequests(fleet).ask(Call(1, (2, 3), "render", b""))
    assert [len(one) for one in asked(fleet)] == [0, 1, 0]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_every_value_reaches_the_host_of_its_slot(sizes, data):
    fleet, total = fleet_of(*sizes), sum(sizes)
    slots = sorted(data.draw(st.sets(st.integers(0, total - 1), min_size=1)))
    values = tuple(pack(slot, allow_pickle=False) for slot in slots)
    HostRequests(fleet).ask(SetAttr(1, tuple(slots), "speed", values))
    seen = []
    for host, requests in zip(fleet.hosts, asked(fleet), strict=True):
        for request, _ in requests:
            assert set(request.slots) <= set(host.slots)
            assert [unpack(one, allow_pickle=False) for one in request.values] == [*request.slots]
            seen += request.slots
    assert seen == slots


# Steps.


@pytest.mark.parametrize("together", [True, False])
def test_actions_that_are_an_array_lie_beside_the_request(together):
    fleet = fleet_of(2, 3)
    asking = HostRequests(fleet)
    asking.step((1, 2, 4), np.array([10, 20, 40]), num_parts=2, together=together)
    ((first, mine),), ((second, others),) = asked(fleet)
    assert first.request == second.request == 1
    assert (first.slots, mine.tolist()) == ((1,), [10])
    assert (second.slots, others.tolist()) == ((2, 4), [20, 40])
    for step in (first, second):
        assert (step.num_parts, step.together, step.packed_actions) == (2, together, ())


@pytest.mark.parametrize("together", [True, False])
def test_other_actions_are_packed_slot_by_slot(together):
    fleet = fleet_of(2, 3)
    actions = [{"a": 10}, {"a": 20}, {"a": 40}]
    HostRequests(fleet).step((1, 2, 4), actions, num_parts=1, together=together)
    ((first, none),), ((second, _),) = asked(fleet)
    assert none is None
    found = [unpack(one, allow_pickle=True) for one in first.packed_actions]
    found += [unpack(one, allow_pickle=True) for one in second.packed_actions]
    assert found == actions
    assert first.together == second.together == together


def test_each_step_has_a_number_of_its_own():
    fleet = fleet_of(2)
    asking = HostRequests(fleet)
    for _ in range(3):
        asking.step((0, 1), np.zeros(2), num_parts=1, together=True)
    assert [request.request for request, _ in asked(fleet)[0]] == [1, 2, 3]


# Hosts that get other slots.


def test_after_slots_were_dealt_anew_requests_go_to_their_new_owners():
    fleet = fleet_of(2, 2)
    asking = HostRequests(fleet)
    assert [group for _, group, _ in asking.split((0, 1, 2, 3))] == [(0, 1), (2, 3)]
    fleet.hosts[0].slots, fleet.hosts[1].slots = range(3), range(3, 4)
    fleet.deals += 1
    assert [group for _, group, _ in asking.split((0, 1, 2, 3))] == [(0, 1, 2), (3,)]


def test_a_host_that_took_anothers_place_is_asked_in_its_place():
    fleet = fleet_of(2, 2)
    asking = HostRequests(fleet)
    asking.split((0, 1, 2, 3))
    fleet.hosts[1] = PaperHost(range(2, 4))
    asking.ask(Call(1, (2, 3), "render", b""))
    assert len(fleet.hosts[1].asked) == 1


def test_what_hosts_never_reached_is_known_when_all_is_abandoned():
    fleet = fleet_of(2, 2, 2)
    fleet.hosts[0].never_reached, fleet.hosts[2].never_reached = {0}, {4, 5}
    assert HostRequests(fleet).abandon() == {0, 4, 5}
