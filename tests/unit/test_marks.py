"""A mark says who has answered what, and who of all has to wake the head."""

import itertools

import pytest

from clusterenv.wire.marks import (
    _LOOK_EVERY,
    MAY_SPIN,
    MOST_PARTS,
    Marks,
    PartMarks,
    _now_and_then,
)

ordered = pytest.mark.skipif(not MAY_SPIN, reason="memory is ordered weakly: everybody wakes it")


def three_places():
    """Marks, and a head that sleeps."""
    marks = Marks(words(3), words(1), words(4))
    marks.fall_asleep()
    return marks


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    """Each time somebody asks, it is on another core."""
    cores = itertools.count(1)
    monkeypatch.setattr("clusterenv.wire.marks.current_core", lambda: next(cores))


def words(count):
    return memoryview(bytearray(8 * count)).cast("q")


@ordered
def test_the_last_but_one_wakes_a_head_that_sleeps():
    marks = three_places()
    for request in (1, 2):
        marks.fall_asleep()
        assert not marks.put(0, request, says_more=False)
        assert marks.put(2, request, says_more=True)
        # It has been rung for.
        assert not marks.put(1, request, says_more=False)


@ordered
def test_nobody_wakes_a_head_that_is_awake():
    marks = three_places()
    marks.wake_up()
    for place in range(3):
        assert not marks.put(place, 1, says_more=False)


@ordered
def test_the_last_wakes_a_head_that_has_looked_out_for_it_in_vain():
    marks = three_places()
    assert not marks.put(0, 1, says_more=False)
    assert marks.put(2, 1, says_more=False)
    marks.wake_up()
    marks.fall_asleep()
    assert marks.put(1, 1, says_more=False)


@ordered
@pytest.mark.parametrize("last", [0, 1])
def test_a_head_that_sleeps_on_the_core_of_the_last_is_woken_by_that_one(monkeypatch, last):
    marks, core = Marks(words(2), words(1), words(3)), [0]
    monkeypatch.setattr("clusterenv.wire.marks.current_core", lambda: core[0])

    def put(place, request):
        core[0] = place
        return marks.put(place, request, says_more=False)

    first = 1 - last
    for place in (first, last):
        put(place, 1)
    core[0] = last
    marks.fall_asleep()
    assert not put(first, 2)
    assert put(last, 2)
    core[0] = first
    marks.announce_sleep()
    assert put(first, 3)


@ordered
def test_nobody_waits_for_a_worker_that_is_gone():
    marks = three_places()
    marks.expect_no_answer(2)
    assert marks.put(0, 1, says_more=False)
    marks.fall_asleep()
    assert marks.put(1, 1, says_more=False)
    # Another has come in its place.
    marks.fall_asleep()
    assert marks.put(2, 1, says_more=False)
    marks.fall_asleep()
    assert not marks.put(0, 2, says_more=False)


@ordered
@pytest.mark.parametrize(("answers", "several"), [(0, True), (1, True), (2, False), (3, False)])
def test_several_are_missing_until_the_last_but_one_has_answered(answers, several):
    marks = three_places()
    for place in range(answers):
        marks.put(place, 1, says_more=False)
    assert marks.are_several_missing(1) == several


def test_a_process_looks_only_now_and_then_on_which_core_it_is():
    core = _now_and_then(itertools.count().__next__)
    seen = [core() for _ in range(3 * _LOOK_EVERY)]
    assert seen == [0] * _LOOK_EVERY + [1] * _LOOK_EVERY + [2] * _LOOK_EVERY


def test_one_worker_alone_wakes_the_head():
    marks = Marks(words(1), words(1), words(2))
    marks.fall_asleep()
    assert marks.put(0, 1, says_more=False)


def test_an_answer_is_silent_if_the_rows_are_all():
    marks = three_places()
    marks.put(0, 5, says_more=False)
    marks.put(1, 5, says_more=False)
    marks.put(2, 5, says_more=True)
    assert marks.are_silent([0, 1], 5)
    assert not marks.are_silent([0, 1, 2], 5)


@pytest.mark.parametrize("request_id", [4, 6])
def test_an_answer_to_another_request_is_none(request_id):
    marks = three_places()
    marks.put(0, 5, says_more=False)
    assert not marks.are_silent([0], request_id)


def test_a_worker_that_is_gone_has_not_answered():
    marks = three_places()
    marks.expect_no_answer(0)
    assert not marks.are_silent([0], 5)


# Parts.


def parts_of_two_places():
    return PartMarks(words(2 * MOST_PARTS), words(2), words(2))


def test_a_part_is_silent_if_its_rows_are_all():
    parts = parts_of_two_places()
    parts.put(1, 0, 7, says_more=False)
    parts.put(1, 1, 8, says_more=True)
    assert parts.answers[MOST_PARTS] == 7
    assert 8 not in parts.answers.tolist()
    assert parts.answers[0] == 0


def test_a_part_that_is_answered_later_leaves_the_earlier_ones_answered():
    parts = parts_of_two_places()
    for number in range(MOST_PARTS):
        parts.put(0, number, 10 + number, says_more=False)
    assert parts.answers[:MOST_PARTS].tolist() == [10 + number for number in range(MOST_PARTS)]


@pytest.mark.parametrize("says_more", [True, False])
def test_the_head_is_woken_once_there_are_as_many_answers_as_it_wants(says_more):
    parts = parts_of_two_places()
    parts.put(0, 0, 1, says_more)
    parts.fall_asleep(3)
    assert not parts.put(1, 0, 2, says_more)
    assert parts.put(0, 1, 3, says_more)
    # It has been rung for.
    assert not parts.put(1, 1, 4, says_more)
    # And has looked again, in vain.
    parts.fall_asleep(5)
    assert parts.put(0, 2, 5, says_more)


def test_a_head_that_waits_for_something_else_as_well_is_woken_by_any_answer():
    head = words(2)
    parts = PartMarks(words(MOST_PARTS), words(1), head)
    parts.fall_asleep(3)
    parts.wake_up()
    parts.wake_at_any_answer()
    Marks(words(1), head, words(2)).fall_asleep()
    assert parts.put(0, 0, 1, says_more=False)


def test_who_answers_for_a_part_does_not_wake_a_head_that_is_awake():
    parts = parts_of_two_places()
    assert not parts.put(0, 0, 1, says_more=False)
