"""The parity contract, reduced, for any launcher of hosts on other machines.

@pytest.mark.parametrize("case", parity.CASES)
def test_parity(case, ssh_hosts):
    parity.assert_parity(lambda: SshLauncher(...), case)
"""

from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv import ClusterEnv
from tests import inside
from tests.contract.policies import change, numpy_policy
from tests.contract.replay import Lives
from tests.contract.twins import Twins
from tests.environments.sampling import INFO_KINDS, SpaceEnv
from tests.environments.spaces import ALL_SPACES

NUM_ENVS = 5
SEED = 123
# Remote hosts may not send pickled objects.
PLAIN_INFOS = tuple(kind for kind in INFO_KINDS if kind not in {"object", "graph"})
DICT = partial(SpaceEnv, ALL_SPACES["dict"], Discrete(3), info_kinds=PLAIN_INFOS)
CASES = {
    "CartPole, next step": ("CartPole-v1", AutoresetMode.NEXT_STEP, 80),
    "dict observations, same step": (DICT, AutoresetMode.SAME_STEP, 60),
    "Pendulum, same step": ("Pendulum-v1", AutoresetMode.SAME_STEP, 210),
}
"""Env, autoreset mode, and in how many steps an episode ends."""


def assert_parity(make_launcher, case=None, **settings):
    """Fail unless hosts of this launcher return what `SyncVectorEnv` returns, over tcp.

    Steps, resets and infos are compared bit by bit; rollouts are replayed in single envs.
    """
    for name in CASES if case is None else [case]:
        env, mode, steps = CASES[name]
        make = partial(gym.make, env) if isinstance(env, str) else env
        kwargs = {"launcher": make_launcher(), **settings}
        with Twins(
            ClusterEnv(env, NUM_ENVS, autoreset_mode=mode, **kwargs),
            SyncVectorEnv([make] * NUM_ENVS, autoreset_mode=mode),
        ) as twins:
            _assert_same_steps(twins, steps)
            _assert_real_rollouts(twins.cluster, make)
            assert_over_tcp(twins.cluster)


def _assert_same_steps(twins, steps):
    twins.assert_same_spaces()
    twins.reset(seed=SEED)
    twins.run(steps)
    twins.reset()
    twins.run(10)
    twins.reset(options={"reset_mask": np.arange(NUM_ENVS) % 2 == 0})
    twins.run(10)


def _assert_real_rollouts(envs, make):
    policy, lives = numpy_policy(envs), Lives(make, NUM_ENVS, SEED)
    envs.reset(seed=SEED)
    for number in range(3):
        change(policy, seed=number)
        rollout = envs.rollout(policy, 20)
        assert (rollout.versions == number + 1).all()
        lives.assert_lived(rollout)


def assert_over_tcp(envs):
    """Fail if the head shares memory with this run's workers."""
    assert not inside.shares_memory(envs)
    # What came through shared memory would not be counted.
    assert envs.ledger.bytes_by_kind["RowsMade"] > 50 * NUM_ENVS
    assert envs.ledger.bytes_by_kind["FragmentMade"] > 50 * NUM_ENVS
