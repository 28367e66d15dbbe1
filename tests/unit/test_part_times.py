"""A worker's time is counted by part while its host wants that, and costs nothing otherwise."""

import pytest

from clusterenv.memory.part_times import ENV, IDLE, INFERENCE, OTHER, PARTS, SERIALISE, PartTimes

SECOND = 10**9


@pytest.fixture
def clock():
    """The nanoseconds that it is."""
    return [5 * SECOND]


@pytest.fixture
def ends(clock):
    """Those of the host and of the worker, on the same words."""
    words = memoryview(bytearray(8 * PartTimes.SIZE)).cast("q")
    return [PartTimes(words, lambda: clock[0]) for _ in range(2)]


def test_nothing_is_counted_before_the_host_wants_it(ends, clock):
    host, worker = ends
    assert not worker.is_on
    worker.begin(ENV)
    clock[0] += SECOND
    worker.begin(OTHER)
    assert host.stop() == {}


def test_every_moment_belongs_to_one_part(ends, clock):
    host, worker = ends
    host.start()
    assert worker.is_on
    for part, seconds in [(ENV, 3), (INFERENCE, 2), (ENV, 4), (IDLE, 1)]:
        clock[0] += SECOND
        worker.begin(part)
        clock[0] += (seconds - 1) * SECOND
    counted = host.stop()
    assert sum(counted.values()) == pytest.approx(10)
    # Each begins a second after the one before has had its time.
    assert counted == pytest.approx(
        {**dict.fromkeys(PARTS, 0), "idle": 1 + 0, "env": 3 + 4, "inference": 2}
    )


def test_what_the_worker_is_in_the_middle_of_counts_up_to_now(ends, clock):
    host, worker = ends
    host.start()
    worker.begin(ENV)
    clock[0] += 7 * SECOND
    assert host.stop()["env"] == pytest.approx(7)


def test_who_was_at_work_already_counts_as_idle_until_it_says_what_it_does(ends, clock):
    host, worker = ends
    worker.begin(ENV)
    host.start()
    clock[0] += 2 * SECOND
    worker.begin(OTHER)
    clock[0] += SECOND
    counted = host.stop()
    assert (counted["idle"], counted["env"], counted["other"]) == pytest.approx((2, 0, 1))


def test_nothing_is_counted_after_the_end(ends, clock):
    host, worker = ends
    host.start()
    host.stop()
    assert not worker.is_on
    worker.begin(ENV)
    clock[0] += SECOND
    assert host.stop() == {}


def test_it_begins_anew_each_time(ends, clock):
    host, worker = ends
    for _ in range(2):
        host.start()
        worker.begin(ENV)
        clock[0] += SECOND
        assert host.stop()["env"] == pytest.approx(1)


def test_every_part_has_a_word(ends):
    host, worker = ends
    host.start()
    for part in range(len(PARTS)):
        worker.begin(part)
    assert set(host.stop()) == set(PARTS)


def test_the_first_slot_is_told_with_the_seconds(ends):
    host, worker = ends
    worker.note_slots(0)
    host.start()
    assert host.stop()["first_slot"] == 0.0
    worker.note_slots(8)
    host.start()
    assert host.stop()["first_slot"] == 8.0


def test_who_works_on_the_next_request_has_no_answer_to_wait_with(ends, clock):
    host, worker = ends
    host.start()
    worker.answer()
    assert host.answered_at == clock[0]
    worker.take_up(OTHER)
    assert host.answered_at == 0
    worker.answer()
    worker.begin(SERIALISE)
    assert host.answered_at == clock[0]


def test_what_runs_without_a_host_is_never_counted():
    assert not PartTimes.unshared().is_on
