"""Every moment belongs to exactly one name, and nothing stays attached."""

import threading

import pytest

from clusterenv.stopwatch import Stopwatch


class Clock:
    """Time passes only when somebody says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


class Part:
    def __init__(self, clock):
        self.clock = clock

    def outer(self):
        self.clock.passes(1)
        self.inner()
        self.clock.passes(2)
        return "done"

    def inner(self):
        self.clock.passes(10)

    def fail(self):
        self.clock.passes(5)
        raise ValueError

    def count(self, number):
        for item in range(number):
            self.clock.passes(1)
            yield item


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def part(clock):
    return Part(clock)


def test_calls_within_calls_get_their_own_time_only(clock, part):
    watch = Stopwatch("rest", clock)
    watch.attach(part, "outer", "outer")
    watch.attach(part, "inner", "inner")
    clock.passes(100)
    assert part.outer() == "done"
    clock.passes(100)
    assert watch.stop() == {"rest": 200, "outer": 3, "inner": 10}


def test_a_name_can_absorb_others_within_it(clock, part):
    watch = Stopwatch("rest", clock)
    watch.attach(part, "outer", "outer", absorbs=("inner",))
    watch.attach(part, "inner", "inner")
    part.outer()
    part.inner()
    assert watch.stop() == {"rest": 0, "outer": 13, "inner": 10}


def test_what_raises_is_timed_too(clock, part):
    watch = Stopwatch("rest", clock)
    watch.attach(part, "fail", "fail")
    with pytest.raises(ValueError):
        part.fail()
    clock.passes(1)
    assert watch.stop() == {"rest": 1, "fail": 5}


def test_items_are_timed_and_the_time_between_them_is_not(clock, part):
    watch = Stopwatch("rest", clock)
    for _ in watch.over("making", part.count(3)):
        clock.passes(10)
    assert watch.stop() == {"rest": 30, "making": 3}


def test_leaving_the_items_early_closes_them(part, clock):
    closed = []

    def items():
        try:
            yield 1
        finally:
            closed.append(True)

    for _ in Stopwatch("rest", clock).over("making", items()):
        break
    assert closed == [True]


def test_nothing_stays_attached(clock, part):
    watch = Stopwatch("rest", clock)
    watch.attach(part, "outer", "outer")
    assert "outer" in vars(part)
    watch.stop()
    assert "outer" not in vars(part)
    assert part.outer() == "done"


def test_other_threads_are_not_timed(clock, part):
    watch = Stopwatch("rest", clock)
    watch.attach(part, "inner", "inner")
    thread = threading.Thread(target=part.inner)
    thread.start()
    thread.join()
    assert watch.stop() == {"rest": 10}
