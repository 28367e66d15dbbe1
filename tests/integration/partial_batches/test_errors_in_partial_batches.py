"""An exception or a lost worker while slots are sent and received in parts."""

import time

import numpy as np
import pytest

from clusterenv import Limits, WorkerLostError
from tests.environments import troubles
from tests.environments.vectors import (
    SHARED_MEMORY,
    actions_for,
    cluster,
    info_of,
    oracle_of,
    walks,
)
from tests.equality import assert_same
from tests.integration.polling import DEADLINE_S, kill, within

NUM_ENVS = 4
HALF = 2
ACTIONS = actions_for(NUM_ENVS)


def play(envs, enough):
    """Receive and send until `enough(streams)`; what each slot got, in order, by slot.

    `streams[slot]` lists (observation, reward, terminated, truncated, info).
    """
    streams = [[] for _ in range(NUM_ENVS)]
    deadline = time.monotonic() + DEADLINE_S
    while not enough(streams):
        assert time.monotonic() < deadline, f"got {[stream[-1:] for stream in streams]}"
        *arrays, infos = envs.recv()
        slots = infos.pop("env_id")
        for row, slot in enumerate(slots):
            info = info_of(infos, row)
            streams[slot].append((*(array[row] for array in arrays), info))
        envs.send(ACTIONS[slots], slots)
    return streams


def never(streams):
    return False


def at_least(length):
    return lambda streams: min(map(len, streams)) >= length


def play_until_error(envs):
    envs.async_reset(seed=0)
    with pytest.raises(ValueError, match="blocked"):
        play(envs, never)


def test_an_exception_in_a_step_is_raised_by_recv():
    with cluster(walks(NUM_ENVS, 2, trouble=troubles.raise_value_error), batch_size=HALF) as envs:
        play_until_error(envs)


def test_a_reset_starts_anew_after_an_exception():
    makers = walks(NUM_ENVS, 2, trouble=troubles.raise_value_error, at=1)
    oracle = oracle_of(NUM_ENVS)
    with cluster(makers, batch_size=HALF) as envs:
        play_until_error(envs)
        assert_same(envs.reset(seed=5), oracle.reset(seed=5))
        assert_same(envs.step(ACTIONS), oracle.step(ACTIONS))


def test_an_async_reset_starts_anew_after_an_exception():
    makers = walks(NUM_ENVS, 2, trouble=troubles.raise_value_error, at=1)
    expected, infos = oracle_of(NUM_ENVS).reset(seed=5)
    with cluster(makers, batch_size=HALF) as envs:
        play_until_error(envs)
        envs.async_reset(seed=5)
        streams = play(envs, at_least(2))
        for slot in range(NUM_ENVS):
            observation, *_, info = streams[slot][0]
            assert_same((observation, info), (expected[slot], info_of(infos, slot)))


def test_recv_does_not_wait_for_a_slot_whose_step_raised():
    makers = walks(NUM_ENVS, 2, trouble=troubles.raise_value_error, at=1)
    with cluster(makers, batch_size=NUM_ENVS) as envs:
        play_until_error(envs)
        with pytest.raises(Exception):
            within(10.0, envs.recv)


@pytest.fixture(scope="module", params=SHARED_MEMORY)
def streams(request):
    """What each slot got from runs in which the worker of slots 2 and 3 was killed."""
    restarted = lambda stream: any("env_lost" in row[-1] for row in stream[:-2])  # noqa: E731
    with cluster(walks(NUM_ENVS), request.param, batch_size=HALF) as envs:
        pids = envs.call("pid")
        envs.async_reset(seed=0)
        before = play(envs, at_least(3))
        kill(pids[3])
        after = play(envs, lambda streams: all(map(restarted, streams[2:])))
    return [[*first, *rest] for first, rest in zip(before, after, strict=True)]


def loss_in(stream):
    """The index of the one row that reports the loss."""
    (index,) = [index for index, row in enumerate(stream) if "env_lost" in row[-1]]
    return index


def test_a_lost_slot_is_truncated_without_reward(streams):
    for slot in (2, 3):
        _, reward, terminated, truncated, info = streams[slot][loss_in(streams[slot])]
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert info == {"env_lost": True}


def test_a_lost_slot_keeps_its_last_good_observation(streams):
    for slot in (2, 3):
        lost = loss_in(streams[slot])
        np.testing.assert_array_equal(streams[slot][lost][0], streams[slot][lost - 1][0])


def test_a_lost_slot_starts_over_with_its_next_send(streams):
    for slot in (2, 3):
        lost = loss_in(streams[slot])
        first, second = streams[slot][lost + 1 : lost + 3]
        assert first[1:4] == (0.0, False, False)
        assert first[-1] == {"start": first[0][0]}
        assert second[-1] == {"age": 1}


def test_other_slots_go_on_as_if_nothing_happened(streams):
    oracle = oracle_of(NUM_ENVS)
    expected = [oracle.reset(seed=0)[0], *(oracle.step(ACTIONS)[0] for _ in range(999))]
    for slot in (0, 1):
        assert len(streams[slot]) > 3
        for number, (row, batch) in enumerate(zip(streams[slot], expected, strict=False)):
            assert_same(row[0], batch[slot], f"slot {slot}, step {number}")


def test_a_worker_that_is_not_replaced_is_an_error():
    with cluster(
        walks(NUM_ENVS), batch_size=HALF, limits=Limits(max_restarts_per_minute=0)
    ) as envs:
        pids = envs.call("pid")
        envs.async_reset(seed=0)
        play(envs, at_least(3))
        kill(pids[3])
        with pytest.raises(WorkerLostError, match=r"worker-1\.0"):
            play(envs, never)


def test_recv_does_not_wait_for_a_worker_that_is_not_replaced():
    with cluster(
        walks(NUM_ENVS), batch_size=NUM_ENVS, limits=Limits(max_restarts_per_minute=0)
    ) as envs:
        pids = envs.call("pid")
        envs.async_reset(seed=0)
        kill(pids[3])
        with pytest.raises(WorkerLostError, match=r"worker-1\.0"):
            play(envs, never)
        with pytest.raises(Exception):
            within(10.0, envs.recv)
