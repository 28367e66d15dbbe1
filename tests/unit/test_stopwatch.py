"""Every moment belongs to exactly one part, at the head and on workers; nobody else is counted."""

import threading

import pytest

from clusterenv.host.late_answers import LateAnswers
from clusterenv.memory.part_times import ENV, IDLE, OTHER, PARTS, SERIALISE, PartTimes
from clusterenv.stopwatch import HEAD, INFERENCE, LEARNER, LOST, WAIT, Stopwatch, timed


class Clock:
    """Time passes only when somebody says so."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now

    def passes(self, time):
        self.now += time


@pytest.fixture
def clock():
    return Clock()


class Envs:
    """What is timed: calls within calls, and a wait."""

    def __init__(self, clock):
        self.clock, self._stopwatch = clock, Stopwatch(clock)

    @timed
    def outer(self):
        self.clock.passes(1)
        self.inner()
        self.clock.passes(2)
        return "done"

    @timed
    def inner(self):
        before = self._stopwatch.begin(WAIT) if self._stopwatch.is_on else ""
        self.clock.passes(10)
        if before:
            self._stopwatch.begin(before)

    @timed
    def fail(self):
        self.clock.passes(5)
        raise ValueError

    def quick(self):
        """Without the decorator's frame, as the shortest path does it."""
        if self._stopwatch.is_outside:
            return self._stopwatch.call("quick", self.quick)
        self.clock.passes(3)
        return "done"


@pytest.fixture
def envs(clock):
    return Envs(clock)


# The user's thread.


def test_a_call_is_ours_and_what_is_between_is_the_users(clock, envs):
    watch = envs._stopwatch
    watch.start()
    clock.passes(100)
    assert envs.outer() == "done"
    clock.passes(100)
    assert envs.quick() == "done"
    assert watch.stop() == {LEARNER: 200, HEAD: 6, WAIT: 10}
    assert watch.calls == {"outer", "quick"}


def test_what_raises_is_timed_too(clock, envs):
    envs._stopwatch.start()
    with pytest.raises(ValueError):
        envs.fail()
    clock.passes(1)
    assert envs._stopwatch.stop() == {LEARNER: 1, HEAD: 5}


def test_a_wait_outside_of_calls_leaves_the_user_outside(clock, envs):
    watch = envs._stopwatch
    watch.start()
    before = watch.begin(WAIT)
    clock.passes(4)
    watch.begin(before)
    assert watch.is_outside
    assert watch.stop() == {LEARNER: 0, WAIT: 4}


def test_a_forward_pass_can_be_told_apart(clock):
    watch = Stopwatch(clock)
    watch.start()
    before = watch.begin(INFERENCE)
    clock.passes(7)
    watch.begin(before)
    assert watch.stop()[INFERENCE] == 7


def test_waits_for_a_replacement_are_lost_until_the_call_ends(clock, envs):
    watch, is_lost = envs._stopwatch, iter([False, True, False])
    watch.start(lambda: next(is_lost))

    def waits_twice():
        envs.inner()
        clock.passes(1)
        envs.inner()

    watch.call("rollout", envs.inner)
    watch.call("rollout", waits_twice)
    watch.call("rollout", envs.inner)
    assert watch.stop() == {LEARNER: 0, HEAD: 1, WAIT: 20, LOST: 20}


def test_nobody_asks_after_a_short_wait_who_is_lost(clock):
    watch = Stopwatch(clock)
    watch.start(lambda: pytest.fail("that costs time"))
    watch.begin(WAIT)
    clock.passes(0.001)
    assert watch.stop()[WAIT] == pytest.approx(0.001)


def test_nothing_is_counted_before_and_after(clock, envs):
    assert envs.outer() == envs.quick() == "done"
    envs._stopwatch.start()
    envs._stopwatch.stop()
    assert not envs._stopwatch.is_on
    assert not envs._stopwatch.is_outside
    assert envs.outer() == envs.quick() == "done"
    assert envs._stopwatch.calls == set()


def test_a_second_start_begins_anew(clock, envs):
    envs._stopwatch.start()
    envs.outer()
    envs._stopwatch.stop()
    envs._stopwatch.start()
    clock.passes(2)
    assert envs._stopwatch.stop() == {LEARNER: 2}


def test_other_threads_are_not_timed(clock, envs):
    envs._stopwatch.start()
    thread = threading.Thread(target=envs.fail)
    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        thread.start()
        thread.join()
    finally:
        threading.excepthook = hook
    assert envs._stopwatch.stop() == {LEARNER: 5}
    assert envs._stopwatch.calls == set()


# Workers.


@pytest.fixture
def times(clock):
    return PartTimes(memoryview(bytearray(8 * PartTimes.SIZE)).cast("q"), clock)


def work(times, clock):
    """One call: actions are read, the env steps, rows are written."""
    for part, nanoseconds in [(SERIALISE, 1_000), (ENV, 5_000), (SERIALISE, 2_000), (IDLE, 0)]:
        times.begin(part)
        clock.passes(nanoseconds)


def test_a_workers_parts_add_up_to_all_of_the_time(times, clock):
    times.start()
    clock.passes(4_000)
    work(times, clock)
    clock.passes(6_000)
    seconds = times.stop()
    assert seconds == pytest.approx(
        {**dict.fromkeys(PARTS, 0.0), "idle": 10e-6, "env": 5e-6, "serialise": 3e-6}
    )


def test_what_a_worker_is_doing_now_counts_too(times, clock):
    times.start()
    times.begin(ENV)
    clock.passes(9_000)
    assert times.stop()["env"] == pytest.approx(9e-6)


def test_a_worker_that_nobody_times_counts_nothing(times, clock):
    assert not times.is_on
    work(times, clock)
    assert times.stop() == {}
    times.start()
    assert times.is_on
    assert sum(times.stop().values()) == 0


def test_what_a_worker_began_before_does_not_count_later(times, clock):
    times.start()
    times.begin(OTHER)
    clock.passes(50)
    times.stop()
    clock.passes(1_000)
    times.start()
    clock.passes(10)
    assert times.stop()["idle"] == pytest.approx(10e-9)


class Worker:
    """What LateAnswers sees of one."""

    def __init__(self, index):
        self.index, self.answered_at = index, 0


def test_workers_wait_for_the_last_of_those_that_were_asked(clock):
    late, workers = LateAnswers(clock), [Worker(0), Worker(1), Worker(2)]
    late.note(workers)  # all are asked
    workers[0].answered_at, workers[1].answered_at = 1_000, 4_000
    clock.passes(5_000)
    late.note(workers)
    late.note(workers)  # nobody has answered since
    assert [late.seconds_of(worker) for worker in workers] == pytest.approx([3e-6, 0, 0])
    workers[2].answered_at = 9_000
    workers[1].answered_at = 7_000
    clock.passes(5_000)
    late.note(workers)
    assert [late.seconds_of(worker) for worker in workers] == pytest.approx([3e-6, 2e-6, 0])


def test_a_worker_that_is_at_work_again_waits_for_nobody(clock):
    """Asked twice, for a policy and then a fragment, it answered only the first."""
    late, workers = LateAnswers(clock), [Worker(0), Worker(1)]
    ends = [PartTimes(memoryview(bytearray(8 * PartTimes.SIZE)).cast("q"), clock) for _ in workers]
    for end in ends:
        end.start()
    late.note(workers)
    for worker, end in zip(workers, ends, strict=True):
        clock.passes(1)
        end.take_up(OTHER)
        end.answer()
        end.take_up(OTHER)
        worker.answered_at = end.answered_at
    clock.passes(4_000)
    ends[1].answer()
    workers[1].answered_at = ends[1].answered_at
    late.note(workers)
    assert [late.seconds_of(worker) for worker in workers] == [0, 0]


def test_a_worker_tells_when_it_has_answered(times, clock):
    times.answer()
    assert times.answered_at == 0
    times.start()
    clock.passes(8)
    times.answer()
    clock.passes(8)
    times.begin(SERIALISE)
    times.begin(IDLE)
    assert times.answered_at == 8
    times.start()
    assert times.answered_at == 0


def test_both_ends_see_the_same_words(clock):
    words = memoryview(bytearray(8 * PartTimes.SIZE)).cast("q")
    host, worker = PartTimes(words, clock), PartTimes(words, clock)
    host.start()
    assert worker.is_on
    work(worker, clock)
    assert host.stop()["env"] == pytest.approx(5e-6)
    assert not worker.is_on
