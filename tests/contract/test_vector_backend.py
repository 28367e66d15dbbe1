"""Workers that run one ready VectorEnv each."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv.backends.vector import VectorBackend
from tests.contract.transports import (
    IN_TURNS,
    TRANSPORTS,
    and_on_four_hosts,
    assert_are_of_whole_workers,
    cluster_env,
)
from tests.contract.twins import Twins
from tests.environments.sampling import INFO_KINDS, SpaceEnv
from tests.environments.spaces import ALL_SPACES
from tests.equality import assert_same

# The dtype of a "mixed" info depends on which slots share a VectorEnv.
KINDS = tuple(kind for kind in INFO_KINDS if kind != "mixed")
ENVS = {
    "CartPole-v1": partial(gym.make, "CartPole-v1"),
    "Blackjack-v1": partial(gym.make, "Blackjack-v1"),
    "dict": partial(SpaceEnv, ALL_SPACES["dict"], info_kinds=KINDS),
    "everything": partial(SpaceEnv, ALL_SPACES["dict-of-everything"], info_kinds=KINDS),
    "text": partial(SpaceEnv, ALL_SPACES["text"], info_kinds=KINDS),
}


def sync_backend(make, mode):
    return VectorBackend(lambda n: SyncVectorEnv([make] * n, autoreset_mode=mode))


def cases():
    """Each env with 2 and 3 workers, over rotating transports and modes."""
    modes = list(AutoresetMode)
    for number, env in enumerate(ENVS):
        for workers in (2, 3):
            mode = modes[(number + workers) % len(modes)]
            yield env, workers, mode, IN_TURNS[(number * 2 + workers) % 3]


@pytest.mark.parametrize(("env", "workers", "mode", "transport"), and_on_four_hosts(cases()))
def test_vector_envs_on_workers_equal_one_big_vector_env(env, workers, mode, transport):
    make = ENVS[env]
    cluster = cluster_env(transport, sync_backend(make, mode), 7, workers, autoreset_mode=mode)
    with Twins(cluster, SyncVectorEnv([make] * 7, autoreset_mode=mode)) as twins:
        twins.assert_same_spaces()
        twins.reset(seed=11)
        twins.run(100)
        twins.reset()
        twins.run(20)
        twins.reset(seed=list(range(20, 27)))
        twins.run(20)
        # Only slots of the first worker: the others have nothing to reset.
        twins.reset(options={"reset_mask": np.arange(7) == 1})
        twins.run(20)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_another_autoreset_mode_than_the_vector_env_has_is_refused(transport):
    backend = sync_backend(ENVS["CartPole-v1"], AutoresetMode.SAME_STEP)
    with pytest.raises((ValueError, RuntimeError), match=r"(?i)autoreset.*same_?step"):
        cluster_env(transport, backend, 4, 2, autoreset_mode=AutoresetMode.NEXT_STEP)


def native_cartpole(num_envs):
    return gym.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")


# Where there can be a single worker: each draws its own random numbers.
@pytest.mark.parametrize("transport", IN_TURNS)
def test_one_native_vector_env_gives_what_it_gives_alone(transport):
    cluster = cluster_env(transport, VectorBackend(native_cartpole), 4, 1)
    with Twins(cluster, native_cartpole(4)) as twins:
        twins.assert_same_spaces()
        twins.reset(seed=3)
        twins.run(100)


def play(envs, steps):
    answers = [envs.reset(seed=3)]
    envs.action_space.seed(0)
    answers += [envs.step(envs.action_space.sample()) for _ in range(steps)]
    return answers


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_native_vector_envs_repeat_themselves_under_the_same_seed(transport):
    with cluster_env(transport, VectorBackend(native_cartpole), 5, 2) as envs:
        first, second = play(envs, 60), play(envs, 60)
    assert_same(first, second)
    observations, _ = first[0]
    assert observations.shape == (5, 4)
    assert len(np.unique(observations, axis=0)) == 5


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_partial_batches_of_whole_workers_work(transport):
    make = ENVS["CartPole-v1"]
    backend = sync_backend(make, AutoresetMode.NEXT_STEP)
    with cluster_env(transport, backend, 4, 2, batch_size=2) as envs:
        envs.async_reset(seed=3)
        for _ in range(20):
            *_, infos = envs.recv()
            assert_are_of_whole_workers(infos["env_id"], envs)
            envs.send(np.zeros(2, np.int64), infos["env_id"])
