"""Whatever values a host sends, and whatever is then done with them, it harms itself alone.

Honest messages are changed at the level of values (types, shapes, dtypes, NaN, huge numbers, odd
names, nesting) and go through real sockets into a real session. ``CLUSTERENV_FUZZ=5000`` makes more
calls than the eighty that are made by default, ``CLUSTERENV_FUZZ_SEED`` others.
"""

import math
import os
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Text

from clusterenv import AdaptiveSync, ClusterEnv, Limits, TorchPolicy
from clusterenv.errors import WorkerLostError
from clusterenv.head import remote
from tests import inside
from tests.contract.policies import numpy_policy
from tests.contract.torch_modules import STATE_SHAPES, Memory
from tests.environments.counting import Count
from tests.environments.sampling import INFO_KINDS, SpaceEnv
from tests.environments.spaces import ALL_SPACES
from tests.environments.vectors import walks
from tests.integration.security.liars import NUM_ENVS, LyingLauncher
from tests.integration.security.mutations import Mutations

IS_LONG = "CLUSTERENV_FUZZ" in os.environ
NUM_CALLS = int(os.environ.get("CLUSTERENV_FUZZ", "20"))
SEED = int(os.environ.get("CLUSTERENV_FUZZ_SEED", "1"))
HONEST = "host-0.0"


class AllLie(LyingLauncher):
    """Every host in place 1 changes some of what it says."""

    def __init__(self, seed):
        super().__init__(None)
        self._seed, self.lies = seed, []

    def lie_of(self, host):
        if not host.startswith("host-1."):
            return super().lie_of(host)
        self.lies.append(Mutations(f"{self._seed} {host}"))
        return self.lies[-1]

    @property
    def num_told(self):
        return sum(len(lie.told) for lie in self.lies)


@pytest.fixture
def no_patience(monkeypatch):
    """Who gives no answer at all is lost at once."""
    monkeypatch.setattr(remote, "_HUNG_GRACE_S", 0.5)


def opened(seed, env, **options):
    """A run whose second place is held by liars, one after the other."""
    limits = Limits(startup_timeout_s=20.0, step_timeout_s=2.0, max_restarts_per_minute=1_000_000)
    launcher = AllLie(seed)
    return launcher, ClusterEnv(env, launcher=launcher, limits=limits, min_hosts=1, **options)


class Calls:
    """What a user may call, in any order; each either works or says that a host was lost."""

    def __init__(self, envs, chance, policies):
        self._envs, self._chance, self._policies = envs, chance, policies
        self._kinds = {}
        envs.reset(seed=1)

    def make(self):
        """Make one of them; which."""
        kinds = ["step", "call", "reset", "profile", "recv"]
        if self._policies:
            kinds += ["rollout", "rollout", "act", "stream", "evaluate", "wait"]
        name = str(self._chance.choice(kinds))
        try:
            getattr(self, f"_{name}")()
        except WorkerLostError as error:
            assert "call it again" in str(error), name
            assert name in ("call", "evaluate"), name
        return name

    def _policy(self):
        return self._policies[self._chance.integers(len(self._policies))]

    def _reset(self):
        self._envs.reset(seed=int(self._chance.integers(100)))

    def _step(self):
        envs, actions = self._envs, self._envs.action_space.sample()
        _, rewards, terminated, truncated, _ = envs.step(actions)
        assert rewards.shape == terminated.shape == truncated.shape == (NUM_ENVS,)
        # As users do: NumPy relies on truth values that are 0 or 1.
        assert len(np.flatnonzero(terminated | truncated)) <= NUM_ENVS
        assert len(rewards[terminated]) <= NUM_ENVS

    def _act(self):
        infos = self._envs.step(self._policy())[-1]
        assert infos["action"].shape[0] == NUM_ENVS
        assert infos["log_prob"].shape == (NUM_ENVS,)

    def _rollout(self):
        self._envs.reset(seed=1)
        rollout = self._envs.rollout(self._policy(), num_steps=4)
        assert rollout.rewards.shape == (4, NUM_ENVS)
        kinds = {name: array.dtype for name, array in rollout.outputs.items()}
        # Nobody but the policy decides what comes back.
        assert self._kinds.setdefault("rollout", kinds) == kinds
        assert len(rollout.next_values) == 4
        assert rollout.next_observations.shape[:2] == (4, NUM_ENVS)

    def _wait(self):
        self._envs.reset(seed=1)
        rollout = self._envs.rollout(self._policy(), num_steps=4, wait_num=2)
        assert rollout.rewards.shape == (4, len(rollout.slots))
        self._envs.reset(seed=1)

    def _stream(self):
        self._envs.reset(seed=1)
        policy = self._policy()
        self._envs.publish(policy)
        for number, fragment in enumerate(self._envs.stream(num_steps=3)):
            assert fragment.rewards.shape == (3, len(fragment.slots))
            for array in policy.weights().values():
                array += 1e-3
            self._envs.publish(policy)
            if number == 3:
                break
        self._envs.reset(seed=1)

    def _evaluate(self):
        episodes = self._envs.evaluate(self._policy(), episodes=NUM_ENVS)
        assert episodes.lengths.dtype == np.int64
        assert episodes.returns.dtype == np.float64

    def _call(self):
        assert len(self._envs.call("get_wrapper_attr", "spec")) == NUM_ENVS

    def _profile(self):
        with self._envs.profile() as profile:
            pass
        assert str(profile)

    def _recv(self):
        self._envs.async_reset(seed=1)
        for _ in range(3):
            *_, infos = self._envs.recv()
            actions = self._envs.action_space.sample()[infos["env_id"]]
            self._envs.send(actions, infos["env_id"])
        self._envs.reset(seed=1)


def fuzz(envs, launcher, policies):
    calls, made = Calls(envs, np.random.default_rng(SEED), policies), Counter()
    deadline = math.inf if IS_LONG else time.monotonic() + 30.0
    for _ in range(NUM_CALLS):
        made[calls.make()] += 1
        assert inside.host_names(envs)[0] == HONEST
        if time.monotonic() > deadline:
            break  # on a very busy machine, what was tried will do
    assert launcher.num_told > made.total() / 20, (launcher.num_told, made)


def texts():
    """Observations that are arrays and text and graphs, and every kind of info."""
    space = Dict(note=Text(5), path=Sequence(Discrete(3)), graph=ALL_SPACES["graph"], x=Box(0, 1))
    kinds = tuple(kind for kind in INFO_KINDS if kind != "object")
    return [partial(SpaceEnv, space, Discrete(3), info_kinds=kinds)] * NUM_ENVS


def linear(envs):
    return [numpy_policy(envs, seed=seed) for seed in range(2)]


def recurrent(envs):
    return [TorchPolicy(Memory(3, 2), state_shapes=STATE_SHAPES)]


RUNS = {
    "steps of objects": (texts, lambda envs: [], None),
    "every version": (partial(walks, NUM_ENVS, length=3), linear, None),
    "adaptive": (partial(walks, NUM_ENVS, length=3), linear, AdaptiveSync(0.01, max_lag=4)),
    "recurrent": (lambda: [Count] * NUM_ENVS, recurrent, AdaptiveSync(0.01, max_lag=4)),
}


@pytest.mark.timeout(0 if IS_LONG else 120)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_whatever_values_a_host_sends_it_harms_itself_alone(run, no_patience):
    env, make_policies, sync = run
    launcher, envs = opened(SEED, env(), sync=sync, batch_size=2)
    with envs:
        fuzz(envs, launcher, make_policies(envs))
