"""A mark says who has answered what, and who of all has to wake the head."""

import pytest

from clusterenv.wire.marks import MAY_SPIN, Marks

ordered = pytest.mark.skipif(not MAY_SPIN, reason="memory is ordered weakly: everybody wakes it")


def three_places():
    """Marks, and a head that sleeps."""
    marks = Marks(memoryview(bytearray(3 * 8)).cast("q"), memoryview(bytearray(8)).cast("q"))
    marks.fall_asleep()
    return marks


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


def test_one_worker_alone_wakes_the_head():
    marks = Marks(memoryview(bytearray(8)).cast("q"), memoryview(bytearray(8)).cast("q"))
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
