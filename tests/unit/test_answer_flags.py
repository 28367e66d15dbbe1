"""A flag says who has answered what, and who of all has to wake the host."""

import itertools
import threading

import pytest

from clusterenv.memory.answer_flags import (
    _LOOK_EVERY,
    MAY_SPIN,
    MOST_PARTS,
    AnswerFlags,
    PartFlags,
    _now_and_then,
)

ordered = pytest.mark.skipif(not MAY_SPIN, reason="memory is ordered weakly: everybody wakes it")


def three_places():
    """Flags, and a host that sleeps."""
    flags = AnswerFlags(words(3), words(1), words(4))
    flags.fall_asleep()
    return flags


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    """Each time somebody asks, it is on another core."""
    cores = itertools.count(1)
    monkeypatch.setattr("clusterenv.memory.answer_flags.current_core", lambda: next(cores))


def words(count):
    return memoryview(bytearray(8 * count)).cast("q")


@ordered
def test_the_last_but_one_wakes_a_host_that_sleeps():
    flags = three_places()
    for request in (1, 2):
        flags.fall_asleep()
        assert not flags.put(0, request, says_more=False)
        assert flags.put(2, request, says_more=True)
        # It has been rung for.
        assert not flags.put(1, request, says_more=False)


@ordered
def test_nobody_wakes_a_host_that_is_awake():
    flags = three_places()
    flags.wake_up()
    for place in range(3):
        assert not flags.put(place, 1, says_more=False)


@ordered
def test_the_last_wakes_a_host_that_has_looked_out_for_it_in_vain():
    flags = three_places()
    assert not flags.put(0, 1, says_more=False)
    assert flags.put(2, 1, says_more=False)
    flags.wake_up()
    flags.fall_asleep()
    assert flags.put(1, 1, says_more=False)


@ordered
@pytest.mark.parametrize("last", [0, 1])
def test_a_host_that_sleeps_on_the_core_of_the_last_is_woken_by_that_one(monkeypatch, last):
    flags, core = AnswerFlags(words(2), words(1), words(3)), [0]
    monkeypatch.setattr("clusterenv.memory.answer_flags.current_core", lambda: core[0])

    def put(place, request):
        core[0] = place
        return flags.put(place, request, says_more=False)

    first = 1 - last
    for place in (first, last):
        put(place, 1)
    core[0] = last
    flags.fall_asleep()
    assert not put(first, 2)
    assert put(last, 2)
    core[0] = first
    flags.announce_sleep()
    assert put(first, 3)


@ordered
def test_nobody_waits_for_a_worker_that_is_gone():
    flags = three_places()
    flags.expect_no_answer(2)
    assert flags.put(0, 1, says_more=False)
    flags.fall_asleep()
    assert flags.put(1, 1, says_more=False)
    # Another has come in its place.
    flags.fall_asleep()
    assert flags.put(2, 1, says_more=False)
    flags.fall_asleep()
    assert not flags.put(0, 2, says_more=False)


@ordered
@pytest.mark.parametrize(("answers", "several"), [(0, True), (1, True), (2, False), (3, False)])
def test_several_are_missing_until_the_last_but_one_has_answered(answers, several):
    flags = three_places()
    for place in range(answers):
        flags.put(place, 1, says_more=False)
    assert flags.are_several_missing(1) == several


def test_a_process_looks_only_now_and_then_on_which_core_it_is():
    core = _now_and_then(itertools.count().__next__)
    seen = [core() for _ in range(3 * _LOOK_EVERY)]
    assert seen == [0] * _LOOK_EVERY + [1] * _LOOK_EVERY + [2] * _LOOK_EVERY


def test_one_worker_alone_wakes_the_host():
    flags = AnswerFlags(words(1), words(1), words(2))
    flags.fall_asleep()
    assert flags.put(0, 1, says_more=False)


def test_an_answer_is_silent_if_the_rows_are_all():
    flags = three_places()
    flags.put(0, 5, says_more=False)
    flags.put(1, 5, says_more=False)
    flags.put(2, 5, says_more=True)
    assert flags.are_silent([0, 1], 5)
    assert not flags.are_silent([0, 1, 2], 5)


@pytest.mark.parametrize("request_id", [4, 6])
def test_an_answer_to_another_request_is_none(request_id):
    flags = three_places()
    flags.put(0, 5, says_more=False)
    assert not flags.are_silent([0], request_id)


def test_a_worker_that_is_gone_has_not_answered():
    flags = three_places()
    flags.expect_no_answer(0)
    assert not flags.are_silent([0], 5)


# Parts.


def parts_of_two_places():
    return PartFlags(words(2 * MOST_PARTS), words(2), words(2))


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
def test_the_host_is_woken_once_there_are_as_many_answers_as_it_wants(says_more):
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


def test_a_host_that_waits_for_something_else_as_well_is_woken_by_any_answer():
    host = words(2)
    parts = PartFlags(words(MOST_PARTS), words(1), host)
    parts.fall_asleep(3)
    parts.wake_up()
    parts.wake_at_any_answer()
    AnswerFlags(words(1), host, words(2)).fall_asleep()
    assert parts.put(0, 0, 1, says_more=False)


def test_who_answers_for_a_part_does_not_wake_a_host_that_is_awake():
    parts = parts_of_two_places()
    assert not parts.put(0, 0, 1, says_more=False)


# Looking out.


@ordered
def test_looking_out_ends_as_soon_as_all_have_answered_with_their_rows():
    flags = three_places()
    flags.put(0, 4, says_more=False)
    thread = threading.Thread(target=flags.put, args=(2, 4, False))
    thread.start()
    assert flags.look_out([0, 2], 4, 60.0)
    thread.join()


def test_looking_out_ends_at_once_where_somebody_says_more():
    flags = three_places()
    flags.put(0, 4, says_more=True)
    assert not flags.look_out([0], 4, 600.0)


def test_looking_out_in_vain_ends():
    assert not three_places().look_out([0, 1, 2], 4, 1e-4)


def test_everybody_wakes_the_host_where_it_may_not_spin(monkeypatch):
    monkeypatch.setattr("clusterenv.memory.answer_flags.MAY_SPIN", False)
    flags = three_places()
    flags.wake_up()
    assert all(flags.put(place, 1, says_more=False) for place in range(3))


def test_answers_are_counted_over_all_workers_whether_they_say_more_or_not():
    parts = parts_of_two_places()
    parts.put(0, 0, 1, says_more=False)
    parts.put(1, 0, 2, says_more=True)
    parts.put(1, 1, 3, says_more=False)
    assert parts.total() == 3
