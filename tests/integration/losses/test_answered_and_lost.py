"""A worker that answered a step and is killed while others still step: its rows are delivered."""

import threading
import time
from functools import partial

import numpy as np
import pytest

from tests.environments.troubles import Gate
from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster
from tests.environments.walks import Quiet, Troubled
from tests.integration.polling import eventually, kill

NUM_ENVS = 4
QUICK = [0, 1]


class Sluggish(Troubled):
    """Halts in its second step until the gate is open."""

    def _info(self):
        return {}


@pytest.fixture(params=SHARED_MEMORY)
def scene(request, tmp_path):
    """A run whose second worker halts in its second step, the oracle, and how to go on."""
    gate, sign = tmp_path / "gate", tmp_path / "sign"
    slow = partial(Sluggish, Gate(str(gate)), "step", 2, str(sign))
    makers = [Quiet, Quiet, slow, Quiet]
    with cluster(makers, request.param, num_workers=2, batch_size=2) as envs:
        yield envs, gate, sign
        gate.touch()


def kill_when_answered(pid, gate, sign):
    """Kill the quick worker once the slow one is in its step, and then let that one go on."""

    def strike():
        assert eventually(sign.exists)
        time.sleep(0.3)  # the other has answered long ago
        kill(pid)
        time.sleep(0.5)  # and its end was noticed
        gate.touch()

    thread = threading.Thread(target=strike, daemon=True)
    thread.start()
    return thread


def oracle(num_steps):
    """What each quick slot does: (observation, reward) after each step."""
    found = []
    for slot in QUICK:
        env = Quiet()
        env.reset(seed=1 + slot)
        found.append([env.step(actions_for(NUM_ENVS, n)[slot])[:2] for n in range(num_steps)])
    return found


def test_a_row_that_was_answered_is_delivered_and_the_loss_comes_with_the_next_step(scene):
    envs, gate, sign = scene
    envs.reset(seed=1)
    pids = envs.call("pid")
    envs.step(actions_for(NUM_ENVS, 0))
    thread = kill_when_answered(pids[0], gate, sign)
    observations, rewards, _, truncated, infos = envs.step(actions_for(NUM_ENVS, 1))
    thread.join()
    for slot, steps in zip(QUICK, oracle(2), strict=True):
        assert np.array_equal(observations[slot], steps[1][0])
        assert rewards[slot] == steps[1][1]
    assert not truncated.any()
    assert "env_lost" not in infos
    after, rewards, _, truncated, infos = envs.step(actions_for(NUM_ENVS, 2))
    assert infos["env_lost"].tolist() == truncated.tolist() == [True, True, False, False]
    assert np.array_equal(after[QUICK], observations[QUICK])
    assert rewards[QUICK].tolist() == [0.0, 0.0]


def test_a_batch_that_was_answered_is_received_and_the_loss_comes_with_the_next(scene):
    envs, _, sign = scene
    envs.reset(seed=1)
    pid = envs.call("pid")[0]
    envs.async_reset(seed=1)
    for number in range(2):
        envs.recv()
        envs.recv()
        envs.send(actions_for(NUM_ENVS, number), range(NUM_ENVS))
    assert eventually(sign.exists)
    time.sleep(0.3)  # the quick worker has answered long ago
    kill(pid)
    observations, rewards, _, truncated, infos = envs.recv()
    assert infos["env_id"].tolist() == QUICK
    for slot, steps in zip(QUICK, oracle(2), strict=True):
        assert np.array_equal(observations[slot], steps[1][0])
        assert rewards[slot] == steps[1][1]
    assert not truncated.any()
    envs.send(actions_for(NUM_ENVS, 2)[QUICK], QUICK)
    again, rewards, _, truncated, infos = envs.recv()
    assert infos["env_id"].tolist() == QUICK
    assert infos["env_lost"].all()
    assert truncated.all()
    assert np.array_equal(again, observations)
    assert not rewards.any()
