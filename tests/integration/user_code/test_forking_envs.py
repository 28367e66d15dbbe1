"""An env that forks, and whose child comes back into the worker's loop: no row is the child's."""

import os
import resource
import signal
import time
from functools import partial

import numpy as np
import pytest

from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster
from tests.environments.walks import Quiet
from tests.equality import assert_same

NUM_ENVS = 4
FORKER = 1  # the second slot of the first worker
STEPS = 5
_CHILD_S = 0.3


class Forking(Quiet):
    """In one of its verbs it forks; the child goes on as if it were the worker itself."""

    def __init__(self, verb):
        super().__init__()
        self.verb = verb

    def reset(self, **options):
        return (np.full(2, 99.0), {}) if self._is_child("reset") else super().reset(**options)

    def step(self, action):
        if self._is_child("step"):
            return np.full(2, 99.0), 99.0, False, False, {}
        return super().step(action)

    def poke(self):
        return 99 if self._is_child("poke") else super().poke()

    def _is_child(self, verb):
        if verb != self.verb:
            return False
        child = os.fork()
        if not child:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            return True
        # The child has long answered by then, if it can.
        time.sleep(_CHILD_S)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
@pytest.mark.parametrize("transport", SHARED_MEMORY)
@pytest.mark.parametrize("verb", ["reset", "step", "poke"])
def test_the_child_of_an_env_never_answers_for_the_worker(transport, verb):
    makers = [Quiet] * NUM_ENVS
    makers[FORKER] = partial(Forking, verb)
    oracles = [make() for make in [Quiet] * NUM_ENVS]
    with cluster(makers, transport, num_workers=2) as envs:
        found, _ = envs.reset(seed=1)
        assert_same(found, np.stack([env.reset(seed=1 + n)[0] for n, env in enumerate(oracles)]))
        for number in range(STEPS):
            actions = actions_for(NUM_ENVS, number)
            observations, rewards, *_ = envs.step(actions)
            rows = [env.step(action)[:2] for env, action in zip(oracles, actions, strict=True)]
            assert_same(observations, np.stack([observation for observation, _ in rows]))
            assert_same(rewards, np.array([reward for _, reward in rows]))
        assert envs.call("poke") == (STEPS,) * NUM_ENVS
        assert envs.workers[0].incarnation == 0
