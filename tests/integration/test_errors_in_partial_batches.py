"""An exception or a lost worker while slots are sent and received in parts."""

import numpy as np
import pytest

from tests.equality import assert_same
from tests.integration import envs as world
from tests.integration.polling import kill, within
from tests.integration.vectors import SHARED_MEMORY, actions_for, cluster, oracle_of, walks

NUM_ENVS = 4
HALF = 2


def send_back(envs, infos):
    slots = infos["env_id"]
    envs.send(actions_for(NUM_ENVS)[slots], slots)


def receive_until(envs, wanted, rounds=60):
    """Play on until an answer satisfies `wanted(infos)`; return that answer, unsent."""
    for _ in range(rounds):
        answer = envs.recv()
        if wanted(answer[-1]):
            return answer
        send_back(envs, answer[-1])
    pytest.fail(f"nothing of that kind in {rounds} batches")


def play_with_error(envs):
    """Play until the troubled env has raised."""
    envs.async_reset(seed=0)
    with pytest.raises(ValueError, match="blocked"):
        receive_until(envs, lambda infos: False)


def test_an_exception_in_a_step_is_raised_by_recv():
    with cluster(walks(NUM_ENVS, 2, trouble=world.raise_value_error), batch_size=HALF) as envs:
        play_with_error(envs)


def test_a_reset_starts_anew_after_an_exception():
    makers = walks(NUM_ENVS, 2, trouble=world.raise_value_error, at=1)
    oracle = oracle_of(NUM_ENVS)
    with cluster(makers, batch_size=HALF) as envs:
        play_with_error(envs)
        assert_same(envs.reset(seed=5), oracle.reset(seed=5))
        assert_same(envs.step(actions_for(NUM_ENVS)), oracle.step(actions_for(NUM_ENVS)))


def test_an_async_reset_starts_anew_after_an_exception():
    makers = walks(NUM_ENVS, 2, trouble=world.raise_value_error, at=1)
    oracle = oracle_of(NUM_ENVS)
    with cluster(makers, batch_size=HALF) as envs:
        play_with_error(envs)
        envs.async_reset(seed=5)
        expected, _ = oracle.reset(seed=5)
        for _ in range(NUM_ENVS // HALF):
            observations, *_, infos = envs.recv()
            assert_same(observations, expected[infos["env_id"]])


def test_recv_does_not_wait_for_a_slot_whose_step_raised():
    makers = walks(NUM_ENVS, 2, trouble=world.raise_value_error, at=1)
    with cluster(makers, batch_size=NUM_ENVS) as envs:
        play_with_error(envs)
        with pytest.raises(Exception):
            within(10.0, envs.recv)


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_lost_slots_come_back_truncated_and_marked(transport):
    with cluster(walks(NUM_ENVS), transport, batch_size=HALF) as envs:
        pids = envs.call("pid")
        envs.async_reset(seed=0)
        kill(pids[3])
        lost = {}
        while len(lost) < HALF:
            _, rewards, terminated, truncated, infos = receive_until(
                envs, lambda infos: "env_lost" in infos
            )
            for row in np.flatnonzero(infos["env_lost"]):
                assert (rewards[row], terminated[row], truncated[row]) == (0.0, False, True)
                lost[int(infos["env_id"][row])] = pids[infos["env_id"][row]]
            send_back(envs, infos)
        assert set(lost) == {2, 3}


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_lost_slots_start_over_under_the_replacement(transport):
    with cluster(walks(NUM_ENVS), transport, batch_size=HALF) as envs:
        pids = envs.call("pid")
        envs.async_reset(seed=0)
        receive_until(envs, lambda infos: set(infos["env_id"]) & {2, 3})
        kill(pids[3])
        envs.async_reset(seed=0)
        kill_seen, started = set(), set()
        for _ in range(60):
            *_, truncated, infos = envs.recv()
            for row, slot in enumerate(infos["env_id"]):
                if truncated[row]:
                    kill_seen.add(int(slot))
                elif "start" in infos and infos["_start"][row]:
                    started.add(int(slot))
            send_back(envs, infos)
        assert started == {0, 1, 2, 3}
        assert kill_seen <= {2, 3}


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_other_slots_go_on_as_if_nothing_happened(transport):
    oracle, actions = oracle_of(NUM_ENVS), actions_for(NUM_ENVS)
    expected = [oracle.reset(seed=0)[0], *(oracle.step(actions)[0] for _ in range(30))]
    seen = {0: [], 1: []}
    with cluster(walks(NUM_ENVS), transport, batch_size=HALF) as envs:
        pids = envs.call("pid")
        envs.async_reset(seed=0)
        while min(map(len, seen.values())) < 20:
            observations, *_, infos = envs.recv()
            for observation, slot in zip(observations, infos["env_id"], strict=True):
                if slot in seen:
                    seen[slot].append(observation)
                    if len(seen[slot]) == 5 and slot == 0:
                        kill(pids[3])
            send_back(envs, infos)
    for slot, observations in seen.items():
        for number, observation in enumerate(observations[: len(expected)]):
            assert_same(observation, expected[number][slot], f"slot {slot}, step {number}")


@pytest.mark.parametrize("batch_size", [HALF, NUM_ENVS])
def test_recv_does_not_wait_for_a_worker_that_is_not_replaced(batch_size):
    with cluster(walks(NUM_ENVS), batch_size=batch_size, max_restarts_per_minute=0) as envs:
        pids = envs.call("pid")
        envs.async_reset(seed=0)
        kill(pids[3])
        for _ in range(3):
            with pytest.raises(Exception):
                within(20.0, lambda: receive_until(envs, lambda infos: False, rounds=10_000))
