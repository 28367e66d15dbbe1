"""In lockstep the head sleeps until the last worker has answered, whatever the others do."""

import time

import pytest

from clusterenv import ClusterEnv
from clusterenv.wire.shared_memory import MAY_SPIN
from tests.integration.envs import Walk

_SLOW_S = 0.2


class Slow(Walk):
    """A walk whose steps take their time."""

    def step(self, action):
        time.sleep(_SLOW_S)
        return super().step(action)


class Stumbling(Walk):
    """A walk that ends in its first step."""

    def step(self, action):
        raise ValueError("stumbled")


def count_pumps(envs):
    """How often the head wakes up to look for answers, from now on: a list that grows."""
    pumps, pump = [], envs._head._exchange.pump

    def counted(timeout_s):
        pumps.append(timeout_s)
        return pump(timeout_s)

    envs._head._exchange.pump = counted
    return pumps


@pytest.mark.skipif(not MAY_SPIN, reason="memory is ordered weakly here: everybody wakes the head")
@pytest.mark.parametrize("slow", [0, 1])
def test_the_head_wakes_once_for_all_answers(slow):
    makers = [Slow if slot == slow else Walk for slot in range(2)]
    with ClusterEnv(makers, num_workers=2) as envs:
        envs.reset(seed=1)
        pumps = count_pumps(envs)
        envs.step(envs.action_space.sample())
        assert len(pumps) == 1


@pytest.mark.parametrize("makers", [[Stumbling, Slow], [Slow, Stumbling]])
def test_who_answers_after_an_error_wakes_the_head(makers):
    with ClusterEnv(makers, num_workers=2) as envs:
        envs.reset(seed=1)
        pumps = count_pumps(envs)
        begun = time.monotonic()
        with pytest.raises(ValueError, match="stumbled"):
            envs.step(envs.action_space.sample())
        # Else it would look again only when its time-out is over.
        assert time.monotonic() - begun < max(pumps)
