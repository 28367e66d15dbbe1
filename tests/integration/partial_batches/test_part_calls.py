"""Partial batches of workers that share memory: calls for parts of their slots, silent answers."""

import time
from functools import partial

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from clusterenv import ClusterEnv, Limits
from tests import inside
from tests.environments import troubles
from tests.environments.walks import Quiet, Walk
from tests.integration.polling import eventually, kill

_SLOW_S = 0.05

pytestmark = pytest.mark.skipif(
    not inside.MAY_SPIN, reason="memory is ordered weakly: no silent answers"
)


class Slow(Quiet):
    """A walk whose steps take their time."""

    def step(self, action):
        time.sleep(_SLOW_S)
        return super().step(action)


class Slower(Slow):
    """A walk whose steps take twice as long."""

    def step(self, action):
        time.sleep(_SLOW_S)
        return super().step(action)


class Gated(Quiet):
    """A walk whose steps wait until there is a file."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def step(self, action):
        assert eventually(self.gate.exists)
        return super().step(action)


class Talkative(Quiet):
    """A walk that has something to say every third time."""

    def _info(self):
        return {"age": self.age} if self.age % 3 == 0 else {}


class Stumbling(Quiet):
    """A walk that ends with its fourth step."""

    def step(self, action):
        if self.age == 3:
            raise ValueError("stumbled")
        return super().step(action)


class Stuck(Quiet):
    """A walk whose third step takes for ever."""

    def __init__(self, get_stuck=troubles.sleep_forever):
        super().__init__()
        self.get_stuck = get_stuck

    def step(self, action):
        if self.age == 2:
            self.get_stuck()
        return super().step(action)


def actions_for(slots):
    return np.linspace(-1, 1, 2 * len(slots)).reshape(-1, 2)


def exchange_one(envs):
    *result, info = envs.recv()
    envs.send(actions_for(info["env_id"]), info["env_id"])
    return *result, info


def receive_every_slot(envs, times=1):
    """On a busy machine one worker may do all of the first exchanges."""
    seen = np.zeros(envs.num_envs, int)
    while seen.min() < times:
        seen[exchange_one(envs)[-1]["env_id"]] += 1


def warm_up(envs):
    """Until all that is to come by message has come."""
    # Whoever has not read of the reset yet is sent a message.
    receive_every_slot(envs, times=3)
    # Now and then the head looks who is lost.
    inside.look_for_losses_no_more(envs)


@pytest.mark.parametrize("may_spin", [True, False])
def test_who_has_nothing_to_say_sends_no_message(may_spin):
    with ClusterEnv(Quiet, 8, 2, batch_size=4) as envs:
        inside.let_spin(envs, may_spin)
        envs.async_reset(seed=1)
        warm_up(envs)
        pumps = inside.note_pumps(envs)
        for _ in range(50):
            exchange_one(envs)
        assert pumps == []


def test_the_head_sleeps_until_there_are_enough_slots_for_a_batch():
    with ClusterEnv([Quiet, Slow, Slower], num_workers=3, batch_size=3) as envs:
        inside.let_spin(envs, False)
        envs.async_reset(seed=1)
        warm_up(envs)
        sleeps = inside.note_sleeps(envs)
        for _ in range(5):
            exchange_one(envs)
        # For each answer it would be up to three times as often. Once more, if something else rang.
        assert len(sleeps) <= 6


def test_the_head_sleeps_until_there_are_enough_parts_for_a_batch():
    with ClusterEnv([Slow, Slow, Slower, Slower], num_workers=2, batch_size=2) as envs:
        inside.let_spin(envs, False)
        envs.async_reset(seed=1)
        warm_up(envs)
        assert sizes_of_calls(envs, 6) == {1}
        sleeps = inside.note_sleeps(envs)
        for _ in range(6):
            exchange_one(envs)
        # Two answers make a batch. Once more, if something else rang.
        assert len(sleeps) <= 7


def test_answers_that_came_while_the_user_was_busy_count():
    with ClusterEnv([Quiet, Slow], num_workers=2) as envs:
        inside.let_spin(envs, False)
        envs.async_reset(seed=1)
        warm_up(envs)
        rings = inside.note_rings(envs)
        for _ in range(5):
            slots = envs.recv()[-1]["env_id"]
            before = inside.num_silent_answers(envs)
            envs.send(actions_for(slots), slots)
            assert eventually(lambda before=before: inside.num_silent_answers(envs) > before)
        # It was not left to sleep until it gave up.
        assert set(rings) == {True}


def test_a_worker_steps_one_part_while_the_user_has_the_other(tmp_path):
    gate = tmp_path / "open"
    makers = [Quiet, Quiet, partial(Gated, gate), partial(Gated, gate)]
    with ClusterEnv(makers, num_workers=1, batch_size=2) as envs:
        envs.async_reset(seed=1)
        for slots in [envs.recv()[-1]["env_id"] for _ in range(2)]:
            envs.send(actions_for(slots), slots)
        assert envs.recv()[-1]["env_id"].tolist() == [0, 1]
        before = inside.num_silent_answers(envs)
        gate.touch()
        assert eventually(lambda: inside.num_silent_answers(envs) > before)


def sizes_of_calls(envs, num_batches):
    """For how many slots workers are called."""
    calls = inside.note_part_calls(envs)
    for _ in range(num_batches):
        exchange_one(envs)
    return {len(slots) for _, _, _, slots, *_ in calls}


def test_slots_that_come_back_together_are_stepped_in_parts_where_batches_take_long():
    with ClusterEnv(Slow, 4, 2, batch_size=2) as envs:
        envs.async_reset(seed=1)
        sizes_of_calls(envs, 20)
        assert sizes_of_calls(envs, 4) == {1}


def test_slots_that_come_back_together_are_stepped_together_where_batches_are_quick():
    with ClusterEnv(Quiet, 4, 2, batch_size=2) as envs:
        # However slow the machine is.
        inside.leave_parts_as_they_are(envs)
        envs.async_reset(seed=1)
        assert sizes_of_calls(envs, 20) == {2}


def test_parts_are_joined_where_batches_have_become_quick():
    with ClusterEnv(Quiet, 8, 2, batch_size=4) as envs:
        envs.async_reset(seed=1)
        inside.pretend_batches_take(envs, 2.0)
        warm_up(envs)
        assert sizes_of_calls(envs, 4) <= {1, 2}
        inside.pretend_batches_take(envs, 0.95)
        assert sizes_of_calls(envs, 4) <= {1, 2}
        inside.pretend_batches_take(envs, 0.8)
        sizes_of_calls(envs, 4)
        assert sizes_of_calls(envs, 4) == {4}


def test_parts_are_not_joined_with_those_that_take_long():
    with ClusterEnv([Quiet, Quiet, Stuck, Stuck], num_workers=2, batch_size=2) as envs:
        envs.async_reset(seed=1)
        seen = np.zeros(4, int)
        while seen[:2].min() < 10 or seen[2:].min() < 3:
            seen[exchange_one(envs)[-1]["env_id"]] += 1
        inside.join_parts(envs)
        assert sorted(exchange_one(envs)[-1]["env_id"]) == [0, 1]


def test_a_pause_between_two_batches_makes_them_no_slow_ones():
    with ClusterEnv(Quiet, 2, 1, batch_size=1) as envs:
        envs.async_reset(seed=1)
        envs.recv()
        before = inside.seconds_per_batch(envs)
        inside.pretend_to_have_paused(envs, 100.0)
        envs.recv()
        assert inside.seconds_per_batch(envs) < before + inside.seconds_worth_parts(envs) / 2


@pytest.mark.parametrize("other", [Talkative, Slow, Walk])
def test_nobody_is_forgotten_while_others_are_quick(other):
    with ClusterEnv([Quiet, Quiet, other, other], num_workers=2, batch_size=2) as envs:
        envs.async_reset(seed=1)
        deadline, seen = time.monotonic() + 60.0, np.zeros(4, int)
        while seen.min() < 10:
            assert time.monotonic() < deadline
            seen[exchange_one(envs)[-1]["env_id"]] += 1


@pytest.mark.parametrize("make", [Quiet, Talkative, Slow])
def test_each_slot_is_stepped_with_its_own_actions(make):
    length = 6 if make is Slow else 40
    # However long one worker waits for a core, the episodes of the other's slots go on.
    make_env = partial(make, length=10**9)
    with ClusterEnv(make_env, 5, 2, batch_size=2) as envs, ClusterEnv(Quiet, 5, 1) as expected:
        rows = [[] for _ in range(5)]
        envs.async_reset(seed=1)
        while min(map(len, rows)) < length:
            observations, *_, info = envs.recv()
            for row, slot in enumerate(info["env_id"]):
                rows[slot].append(observations[row])
                if make is Talkative and len(rows[slot]) > 1:
                    told = "_age" in info and bool(info["_age"][row])
                    assert told == ((len(rows[slot]) - 1) % 3 == 0)
            envs.send(actions_for(range(5))[info["env_id"]], info["env_id"])
        for number in range(length):
            batch = expected.step(actions_for(range(5)))[0] if number else expected.reset(seed=1)[0]
            np.testing.assert_array_equal([stream[number] for stream in rows], batch)


def test_batches_may_be_sent_later_in_pieces_and_in_any_order():
    with ClusterEnv(Quiet, 6, 2, batch_size=2) as envs, ClusterEnv(Quiet, 6, 1) as expected:
        envs.async_reset(seed=1)
        expected.reset(seed=1)
        actions = actions_for(range(6))
        for _ in range(20):
            first, second, third = (envs.recv()[-1]["env_id"] for _ in range(3))
            with pytest.raises(NoAsyncCallError, match="only 0 are under way"):
                envs.recv()
            pieces = second, np.array([third[1], first[0]]), third[:1], first[1:]
            for slots in pieces:
                envs.send(actions[slots], slots)
                with pytest.raises(AlreadyPendingCallError, match=r"for slots \["):
                    envs.send(actions[slots], slots)
            batch = expected.step(actions)[0]
        rows = np.empty_like(batch)
        for observations, *_, info in (envs.recv() for _ in range(3)):
            rows[info["env_id"]] = observations
        np.testing.assert_array_equal(rows, batch)


def test_a_reset_ends_what_is_under_way():
    with ClusterEnv(Slow, 4, 2, batch_size=2) as envs, ClusterEnv(Quiet, 4, 1) as expected:
        envs.async_reset(seed=1)
        for _ in range(3):
            exchange_one(envs)
        np.testing.assert_array_equal(envs.reset(seed=3)[0], expected.reset(seed=3)[0])
        actions = actions_for(range(4))
        np.testing.assert_array_equal(envs.step(actions)[0], expected.step(actions)[0])


def test_slots_may_be_sent_one_by_one_and_in_any_order():
    with ClusterEnv(Quiet, 12, 1, batch_size=12) as envs, ClusterEnv(Quiet, 12, 1) as expected:
        envs.async_reset(seed=1)
        expected.reset(seed=1)
        actions = actions_for(range(12))
        for _ in range(3):
            envs.recv()
            # More than may be called for: some go by message.
            for slot in [*range(11, 5, -1), *range(6)]:
                envs.send(actions[slot : slot + 1], [slot])
            batch = expected.step(actions)[0]
        np.testing.assert_array_equal(envs.recv()[0], batch)


def test_an_exception_is_raised_by_recv():
    with ClusterEnv([Quiet, Quiet, Quiet, Stumbling], num_workers=2, batch_size=2) as envs:
        envs.async_reset(seed=1)
        with pytest.raises(ValueError, match="stumbled"):
            # On a busy machine one worker may do all the first ones.
            for _ in range(100_000):
                exchange_one(envs)


@pytest.mark.parametrize("make", [Quiet, Slow])
def test_the_slots_of_a_killed_worker_come_back_as_lost(make):
    with ClusterEnv(make, 4, 2, batch_size=2) as envs:
        pids = envs.call("pid")
        envs.async_reset(seed=1)
        # A reset that nobody has received is repeated, and then no episode was lost.
        receive_every_slot(envs)
        kill(pids[3])
        lost, last = set(), {}
        while lost < {2, 3}:
            observations, rewards, _, truncated, info = exchange_one(envs)
            for row, slot in enumerate(info["env_id"].tolist()):
                if "env_lost" in info and info["_env_lost"][row]:
                    assert truncated[row]
                    assert rewards[row] == 0
                    if slot in last:
                        np.testing.assert_array_equal(observations[row], last[slot])
                    lost.add(slot)
                last[slot] = observations[row]
        # And go on.
        for _ in range(6):
            exchange_one(envs)


@pytest.mark.parametrize("get_stuck", [troubles.sleep_forever, troubles.hold_the_gil])
def test_a_worker_that_hangs_is_noticed_while_others_are_quick(get_stuck):
    makers = [Quiet, Quiet, Quiet, partial(Stuck, get_stuck)]
    with ClusterEnv(makers, num_workers=2, batch_size=2, limits=Limits(step_timeout_s=1.0)) as envs:
        envs.async_reset(seed=1)
        deadline, lost = time.monotonic() + 60.0, set()
        while 3 not in lost:
            assert time.monotonic() < deadline
            info = exchange_one(envs)[-1]
            lost |= set(info["env_id"][info.get("_env_lost", np.zeros(2, bool))].tolist())
