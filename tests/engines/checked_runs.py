"""Runs on other hosts, with the check that every row delivered is one of their envs'."""

import time
from functools import partial

from tests.contract.following import Followed
from tests.contract.policies import numpy_policy
from tests.environments.walks import Placed
from tests.integration.polling import eventually

SEED = 33
LEASE_S = 5.0


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
