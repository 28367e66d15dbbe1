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
    def restarts(self):
        """How often slots have started over, all together."""
        return self._followed.restarts

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


def hosts_on(machine):
    """The host processes on a machine, without what started them and the shells around them."""
    return [pid for pid in machine.processes("-m clusterenv host") if _is_a_host(_words_of(pid))]


def _is_a_host(words):
    # Who was started by hand with a key file keeps a host going, unless it is there --once.
    return b"python" in words[0] and (b"--key-file" not in words or b"--once" in words)


def _words_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return [b""]


def gone(machines, deadline_s):
    """Whether no host and no worker is left on any of the machines before the deadline."""
    return eventually(partial(_none_on, machines), deadline_s)


def _none_on(machines):
    return not any(machine.processes("-m clusterenv") for machine in machines)
