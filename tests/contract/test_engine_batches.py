"""Partial batches by an engine's own asynchronous mode: EnvPool's ``batch_size``."""

from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest

from clusterenv import ClusterEnv, EnvPoolBackend
from clusterenv.errors import ClusterEnvError
from tests.contract.test_native_engines import SEED, pool
from tests.contract.transports import cluster_env
from tests.environments.engines import BatchBackend
from tests.equality import assert_same
from tests.integration.polling import kill

pytestmark = pytest.mark.skipif(find_spec("envpool") is None, reason="EnvPool is not installed")
NUM_ENVS, BATCH, STEPS = 11, 4, 500
# The split into 2 and 3 workers is uneven.
every_number = pytest.mark.parametrize(
    ("transport", "workers"), [("shared_memory", 1), ("tcp", 2), ("shared_memory", 3)]
)
both = pytest.mark.parametrize("transport", ["shared_memory", "tcp"])


def pools(transport, workers=1, **kwargs):
    backend = EnvPoolBackend("CartPole-v1", num_threads=1, **kwargs)
    return cluster_env(transport, backend, NUM_ENVS, workers, batch_size=BATCH)


@cache
def actions(age):
    return np.random.default_rng(age).integers(0, 2, NUM_ENVS)


def send_back(envs, slots, ages):
    chosen = [actions(age)[slot] for slot, age in zip(slots, ages[slots], strict=True)]
    ages[slots] += 1
    envs.send(np.array(chosen), slots)


def lives_in_one_envpool():
    """Observations, rewards, flags and ages of its envs, [steps, envs, …]."""
    alone = pool("CartPole-v1", NUM_ENVS)
    observations, infos = alone.reset()
    no = np.zeros(NUM_ENVS, bool)
    steps = [(observations, np.zeros(NUM_ENVS, np.float32), no, no, infos)]
    steps += [alone.step(actions(age)) for age in range(STEPS)]
    *rows, infos = zip(*steps, strict=True)
    return [*map(np.stack, rows), np.stack([info["elapsed_step"] for info in infos])]


@every_number
def test_every_slot_lives_as_in_one_envpool_of_all_slots(transport, workers):
    expected, ages = lives_in_one_envpool(), np.zeros(NUM_ENVS, int)
    with pools(transport, workers) as envs:
        envs.async_reset(seed=SEED)
        while ages.min() < STEPS:
            *rows, infos = envs.recv()
            slots = infos["env_id"]
            assert len(slots) == BATCH
            assert_same(infos["players"]["env_id"], slots.astype(np.int32))
            known = ages[slots] <= STEPS
            for array, lives in zip([*rows, infos["elapsed_step"]], expected, strict=True):
                assert_same(array[known], lives[ages[slots][known], slots[known]])
            send_back(envs, slots, ages)


def test_all_rows_come_even_if_fewer_are_under_way_than_the_engine_hands_out():
    with pools("shared_memory", batch_size=3) as envs:
        envs.async_reset(seed=SEED)
        held = [envs.recv()[4]["env_id"], envs.recv()[4]["env_id"]]
        assert len(set(np.concatenate(held))) == 2 * BATCH
        envs.send(np.zeros(1, int), held[0][:1])
        # One more than were left: EnvPool alone would wait for ever for the last.
        assert held[0][0] in envs.recv()[4]["env_id"]


def test_a_reset_ends_partial_batches_and_steps_are_those_of_envpool_then():
    alone = pool("CartPole-v1", NUM_ENVS)
    with pools("shared_memory") as envs:
        for _ in range(2):
            envs.async_reset(seed=1)
            envs.send(np.zeros(BATCH, int), envs.recv()[4]["env_id"])
        # Without a seed, and while envs are under way.
        envs.async_reset()
        assert len(envs.recv()[0]) == BATCH
        assert_same(envs.reset(seed=SEED), alone.reset())
        for age in range(20):
            assert_same(envs.step(actions(age)), alone.step(actions(age)))


@both
def test_a_lost_engine_is_replaced_while_others_go_on(transport):
    with cluster_env(transport, BatchBackend(), NUM_ENVS, 2, batch_size=BATCH) as envs:
        ages, lost = np.zeros(NUM_ENVS, int), set()
        envs.async_reset(seed=SEED)
        # What is lost while it is reset is reset again, and nobody needs to know.
        while ages.min() < 2:
            send_back(envs, envs.recv()[4]["env_id"], ages)
        gone = envs.workers[1]
        kill(gone.pid)
        ages[:] = 0
        while ages.min() < 4:
            *_, infos = envs.recv()
            slots = infos["env_id"]
            lost.update(slots[infos.get("env_lost", np.zeros(BATCH, bool))].tolist())
            send_back(envs, slots, ages)
        assert lost == set(gone.slots)
        assert [worker.incarnation for worker in envs.workers] == [0, 1]


@both
def test_nobody_waits_for_the_slowest_env_of_a_worker(transport):
    with cluster_env(transport, BatchBackend(never=0), 5, 1, batch_size=2) as envs:
        envs.async_reset(seed=SEED)
        for _ in range(20):
            slots = envs.recv()[4]["env_id"]
            assert 0 not in slots
            envs.send(np.zeros(2, int), slots)


def test_actions_that_do_not_fit_are_an_error_and_a_new_start_helps():
    with pools("shared_memory") as envs:
        envs.async_reset(seed=SEED)
        slots = envs.recv()[4]["env_id"]
        with pytest.raises((ValueError, TypeError, RuntimeError, ClusterEnvError)):
            envs.send(np.zeros((BATCH, 2)), slots)
            envs.recv()
        envs.async_reset(seed=SEED)
        assert len(envs.recv()[0]) == BATCH


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_without_rows_is_refused(batch_size):
    with pytest.raises(ValueError, match=f"batch_size={batch_size} must be at least 1"):
        EnvPoolBackend("CartPole-v1", batch_size=batch_size)


def test_whole_batches_need_no_asynchronous_mode():
    with ClusterEnv(EnvPoolBackend("CartPole-v1", num_threads=1), 4, batch_size=4) as envs:
        envs.async_reset(seed=SEED)
        assert envs.recv()[4]["env_id"].tolist() == [0, 1, 2, 3]
