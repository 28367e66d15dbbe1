"""Walks on other hosts, and the check that every row delivered is one of theirs."""

import socket
import time
from functools import partial

from tests.contract.following import Followed
from tests.contract.policies import numpy_policy
from tests.integration.envs import Walk
from tests.integration.polling import eventually

SEED, LENGTH = 33, 7
LEASE_S = 5.0


class Placed(Walk):
    """A walk that knows its host."""

    def __init__(self, length=LENGTH):
        super().__init__(length)

    def host(self):
        return socket.gethostname()


class Replay:
    """Collects rollouts, and checks that no row is lost, doubled or misplaced."""

    def __init__(self, envs):
        self.envs, self.policy = envs, numpy_policy(envs)
        envs.reset(seed=SEED)
        self._followed = Followed(envs, Placed, SEED)

    def rollout(self, num_steps=10):
        """A rollout; fails unless all its rows are real."""
        rollout = self.envs.rollout(self.policy, num_steps)
        self._followed.check(rollout)
        return rollout

    def times_restarted(self, slot):
        """How often a slot has started over, as far as rows have shown."""
        return self._followed._incarnations[slot]

    @property
    def restarted(self):
        """The slots that have started over."""
        return [slot for slot in range(self.envs.num_envs) if self.times_restarted(slot)]

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
