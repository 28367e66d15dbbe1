"""When a worker waits for its envs, and how a batch is filled that has too few."""

from types import SimpleNamespace

import numpy as np
from gymnasium.spaces import Box

from clusterenv.backends.envpool_batches import PoolInBatches
from clusterenv.worker.batch_stepper import BatchPatience, BatchStepper


def test_envs_are_waited_for_at_once_while_somebody_waits_for_a_batch():
    pace = BatchPatience(4, 16)
    assert pace.patience_s(is_full=True) == 0
    pace.received(4, has_mail=False)
    assert pace.patience_s(is_full=True) > 0
    pace.num_out = 0
    assert pace.patience_s(is_full=True) == 0
    assert pace.patience_s(is_full=False) > 0


def test_whoever_wants_more_rows_at_once_gets_them_at_once_the_next_time():
    pace = BatchPatience(4, 16)
    pace.received(4, has_mail=False)
    pace.received(4, has_mail=False)
    pace.num_out = 4
    assert pace.patience_s(is_full=True) == 0


def test_a_worker_that_kept_actions_waiting_is_more_patient():
    pace = BatchPatience(4, 16)
    pace.received(4, has_mail=False)
    before = pace.patience_s(is_full=True)
    pace.received(4, has_mail=True)
    pace.num_out = 4
    assert pace.patience_s(is_full=True) == 2 * before


class PaperPool:
    """Hands out a batch of the envs that were sent something, the first first."""

    def __init__(self, num_envs, batch_size):
        self.num_envs, self.batch_size, self.sent = num_envs, batch_size, []

    def _reset(self, envs):
        assert envs.dtype == np.int32
        assert max(envs) < self.num_envs
        self.sent += envs.tolist()

    def send(self, actions, envs):
        self.sent += envs.tolist()

    def recv(self):
        assert len(self.sent) >= self.batch_size, "it would wait for ever"
        envs = np.array(self.sent[: self.batch_size], np.int32)
        del self.sent[: self.batch_size]
        return envs * 1.0, envs * 1.0, envs < 0, envs < 0, {"env_id": envs, "a": {"b": envs}}


def test_a_batch_is_filled_with_envs_that_nobody_sees():
    pool = PoolInBatches(PaperPool, 5, 4)
    pool.reset(np.arange(5))
    seen = []
    while pool.num_under_way:
        envs, observations, *_, infos = pool.receive()
        seen += envs.tolist()
        np.testing.assert_array_equal(observations, envs)
        np.testing.assert_array_equal(infos["a"]["b"], envs)
    assert seen == [0, 1, 2, 3, 4]
    for _ in range(5):
        pool.send(None, np.array([2]))
        assert pool.receive()[0].tolist() == [2]


def test_what_is_under_way_can_be_drained():
    pool = PoolInBatches(PaperPool, 7, 3)
    pool.reset(np.arange(7))
    pool.drain()
    assert pool.num_under_way == 0
    assert not pool.is_full


def test_an_error_of_the_engine_is_that_of_a_request_that_is_under_way():
    """One that was answered before is not: nobody would hear of the error."""
    pool = PoolInBatches(PaperPool, 2, 1)
    env = SimpleNamespace(
        single_observation_space=Box(0, 9, (), np.float64),
        begin_batches=lambda seeds, envs: pool.reset(envs) or pool,
    )
    stepper = BatchStepper(env, [4, 5])
    stepper.reset(1, (4, 5), [None, None])
    assert stepper.oldest_request == 1
    for slot in (4, 5):
        ((request, slots, _),) = stepper.answers(*stepper.receive(), has_mail=False)
        assert (request, slots) == (1, (slot,))
    stepper.send(7, (5,), None)
    assert stepper.oldest_request == 7
