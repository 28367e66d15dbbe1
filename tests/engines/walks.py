"""Walks on other hosts, and the check that every row delivered is one of theirs."""

import socket
import time
from functools import partial

import numpy as np

from clusterenv.head.roster import restart_seed
from tests.contract.policies import numpy_policy
from tests.contract.replay import Life, assert_same_observation
from tests.integration.envs import Walk
from tests.integration.polling import eventually

SEED, LENGTH = 33, 7
MAX_RESTARTS = 20


class Placed(Walk):
    """A walk that knows its host."""

    def __init__(self, length=LENGTH):
        super().__init__(length)

    def host(self):
        return socket.gethostname()


class Replay:
    """Collects rollouts and plays each slot's rows again; lost slots may start over.

    No row can be lost, doubled or misplaced unnoticed: each slot's rows either continue its life,
    or begin that of a later incarnation.
    """

    def __init__(self, envs):
        self.envs, self.policy = envs, numpy_policy(envs)
        envs.reset(seed=SEED)
        self._lives = [Life(Placed(), SEED + slot) for slot in range(envs.num_envs)]
        self._incarnations = [0] * envs.num_envs

    def rollout(self, num_steps=10):
        """A rollout; fails unless all its rows are real."""
        rollout = self.envs.rollout(self.policy, num_steps)
        assert rollout.slots.tolist() == list(range(self.envs.num_envs))
        for slot in range(self.envs.num_envs):
            self._find_life(slot, rollout.observations[0, slot])
            self._lives[slot].assert_lived(rollout, slot)
        return rollout

    def _find_life(self, slot, observation):
        if np.array_equal(self._lives[slot].observation, observation):
            return
        last = self._incarnations[slot]
        for incarnation in range(last + 1, last + MAX_RESTARTS):
            life = Life(Placed(), restart_seed(SEED, slot, incarnation))
            if np.array_equal(life.observation, observation):
                self._lives[slot], self._incarnations[slot] = life, incarnation
                return
        assert_same_observation(observation, self._lives[slot].observation, f"slot {slot}")

    @property
    def restarted(self):
        """The slots that have started over."""
        return [slot for slot, number in enumerate(self._incarnations) if number]

    def rollout_until(self, condition, deadline_s=60.0):
        """Collect until the condition holds."""
        deadline = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < deadline, "it never came to that"
            self.rollout()


def workers_on(host):
    """The workers that run on a host, without the shells and clients around them."""
    return [pid for pid in host.processes("-m clusterenv worker") if _is_python(pid)]


def _is_python(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"python" in file.read().split(b"\0")[0]
    except OSError:
        return False


def gone(hosts, deadline_s):
    """Whether no worker is left on any of the hosts before the deadline."""
    return eventually(partial(_none_on, hosts), deadline_s)


def _none_on(hosts):
    return not any(host.processes("clusterenv worker") for host in hosts)
