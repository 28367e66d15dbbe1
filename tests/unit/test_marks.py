"""A mark says who has answered what, and who of all is the last."""

import pytest

from clusterenv.wire.marks import MAY_SPIN, Marks

ordered = pytest.mark.skipif(not MAY_SPIN, reason="memory is ordered weakly: everybody is last")


def three_places():
    return Marks(memoryview(bytearray(3 * 8)).cast("q"))


@ordered
def test_only_the_last_to_answer_sees_that_all_have():
    marks = three_places()
    for request in (1, 2):
        assert not marks.put(0, request, says_more=False)
        assert not marks.put(2, request, says_more=True)
        assert marks.put(1, request, says_more=False)


@ordered
def test_nobody_waits_for_a_worker_that_is_gone():
    marks = three_places()
    marks.expect_no_answer(2)
    assert not marks.put(0, 1, says_more=False)
    assert marks.put(1, 1, says_more=False)
    # Another has come in its place.
    assert marks.put(2, 1, says_more=False)
    assert not marks.put(0, 2, says_more=False)


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
