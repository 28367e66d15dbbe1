"""Fragments wait until somebody takes them, and what will not come is told once."""

import pytest

from clusterenv.head.fragment_box import FragmentBox
from clusterenv.host.events import Voided
from clusterenv.protocol.requests import Call


class Paper:
    """A fragment of some slots."""

    def __init__(self, *slots):
        self.slots, self.is_released = slots, False

    def release(self):
        self.is_released = True


@pytest.fixture
def parts():
    return [Paper(2, 3), Paper(0, 1), Paper(4)]


@pytest.fixture
def box(parts):
    box = FragmentBox()
    for part in parts:
        box.put(part)
    return box


def test_all_are_taken_in_the_order_of_their_slots(box, parts):
    assert box.take_one_per_slot() == [parts[1], parts[0], parts[2]]
    assert (box.waiting, box.num_waiting) == ([], 0)


def test_the_second_fragment_of_a_slot_waits_on(box, parts):
    second = Paper(2, 3)
    box.put(second)
    assert (box.num_waiting, box.num_different) == (7, 5)
    assert box.take_one_per_slot() == [parts[1], parts[0], parts[2]]
    assert (box.waiting, box.num_waiting) == ([second], 2)


def test_later_fragments_can_be_dropped(box, parts):
    second = Paper(2, 3)
    box.put(second)
    box.drop_later()
    assert (box.waiting, box.num_waiting) == (parts, 5)
    assert second.is_released


def test_one_is_taken_in_the_order_in_which_they_came(box, parts):
    assert [box.take_first(), box.take_first()] == parts[:2]
    assert box.waiting == parts[2:]


def test_what_has_come_is_told_once_even_if_it_was_dropped(box, parts):
    box.drop()
    assert all(part.is_released for part in parts)
    assert box.take_arrived() == parts
    assert box.take_arrived() == []


def test_fragments_of_slots_that_moved_are_dropped_and_given_back(box, parts):
    box.drop_moved([1, 4])
    assert box.waiting == parts[:1]
    assert [part.is_released for part in parts] == [False, True, True]
    assert box.num_waiting == 2


def test_what_will_not_come_is_told_once(box):
    voided = Voided(Call(1, (0,), "render", b""), (0,))
    box.put_missing([voided])
    assert box.has_missing
    assert box.take_missing() == [voided]
    assert not box.has_missing


def test_nothing_is_left_of_what_nobody_wants(box, parts):
    box.put_missing([Voided(Call(1, (0,), "render", b""), (0,))])
    box.clear()
    assert (box.waiting, box.take_arrived(), box.take_missing()) == ([], [], [])
    assert all(part.is_released for part in parts)
