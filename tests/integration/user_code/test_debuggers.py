"""A debugger in an env: as long as one likes in this process, a clear error in worker processes."""

import io
import logging
import pdb
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from clusterenv import ClusterEnv, Limits
from clusterenv.errors import RemoteError


class Typist(io.StringIO):
    """Thinks for so long, and lets the env go on."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def readline(self, *args):
        time.sleep(self.seconds)
        return "continue\n"


class Debugged(gym.Env):
    observation_space = gym.spaces.Discrete(10)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, thinking_s=None):
        self.thinking_s = thinking_s

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        if self.steps == 2:
            if self.thinking_s is None:
                pdb.set_trace()
            else:
                pdb.Pdb(stdin=Typist(self.thinking_s), stdout=io.StringIO()).set_trace()
        return self.steps, 0.0, False, False, {}


def test_workers_in_this_process_may_stand_in_a_debugger_for_longer_than_a_step(caplog):
    limits = Limits(step_timeout_s=0.5, slow_warning_s=0.5)
    with (
        caplog.at_level(logging.WARNING, "clusterenv"),
        ClusterEnv(partial(Debugged, 4.0), 3, 3, launcher="in-process", limits=limits) as envs,
    ):
        envs.reset(seed=0)
        envs.step(np.zeros(3, int))
        observations, *_, infos = envs.step(np.zeros(3, int))
        assert observations.tolist() == [2, 2, 2]
        assert not infos
        assert not envs.ledger.losses
    assert not caplog.records


def test_a_debugger_in_a_worker_process_is_told_where_there_is_a_keyboard():
    with ClusterEnv(Debugged, num_envs=2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        with pytest.raises(
            RemoteError, match=r'found no keyboard: .* launcher="in-process"'
        ) as told:
            envs.step([0, 0])
        assert "slot" in told.value.__notes__[0]
