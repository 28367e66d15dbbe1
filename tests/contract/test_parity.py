"""ClusterEnv returns what `gymnasium.vector.SyncVectorEnv` returns, to the last bit and type."""

from functools import partial
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.contract.transports import IN_TURNS, TRANSPORTS, cluster_env
from tests.contract.twins import Twins
from tests.environments.counting import CounterEnv
from tests.environments.faults import LooseEnv
from tests.environments.sampling import SpaceEnv
from tests.environments.spaces import ALL_SPACES

GYMNASIUM_IDS = ["CartPole-v1", "LunarLander-v3", "FrozenLake-v1", "Blackjack-v1", "Pendulum-v1"]
ENVS = (
    {env_id: (env_id, partial(gym.make, env_id), 520) for env_id in GYMNASIUM_IDS}
    | {name: (2 * (partial(SpaceEnv, space),) + (60,)) for name, space in ALL_SPACES.items()}
    | {"loose types": (LooseEnv, LooseEnv, 60)}
    # The oracle's buffers are not shared, so that it cannot overwrite what it has returned.
    | {"reused buffer": (partial(CounterEnv, reuse=True), partial(CounterEnv, reuse=False), 60)}
)
LAYOUTS = {"3 on 1": (3, 1), "5 on 2": (5, 2), "7 on 3": (7, 3)}
MODES = {mode.value: mode for mode in AutoresetMode}

FULL_MATRIX = list(product(ENVS, LAYOUTS, MODES, TRANSPORTS))


def pairwise():
    """Give each env every layout, mode and transport once; rotate, so that these meet each other.

    With three of each, nine envs in a row meet all 27 combinations.
    """
    layouts, modes, transports = list(LAYOUTS), list(MODES), IN_TURNS
    for number, env in enumerate(ENVS):
        for turn in range(max(len(layouts), len(modes), len(transports))):
            yield (
                env,
                layouts[turn % len(layouts)],
                modes[(turn + number) % len(modes)],
                transports[(turn + number // len(modes)) % len(transports)],
            )


def make_twins(env, layout, mode, transport):
    cluster_fn, oracle_fn, _ = ENVS[env]
    num_envs, num_workers = LAYOUTS[layout]
    return Twins(
        cluster_env(transport, cluster_fn, num_envs, num_workers, autoreset_mode=MODES[mode]),
        SyncVectorEnv([oracle_fn] * num_envs, autoreset_mode=MODES[mode]),
    )


def assert_parity(env, layout, mode, transport):
    num_envs, _ = LAYOUTS[layout]
    steps = ENVS[env][-1]
    some_slots = np.arange(num_envs) % 2 == 0
    seeds = [None, *range(70, 69 + num_envs)]
    with make_twins(env, layout, mode, transport) as twins:
        twins.assert_same_spaces()
        twins.reset(seed=123)
        twins.run(steps // 2)
        twins.reset()
        twins.run(steps // 4)
        twins.reset(seed=seeds)
        twins.run(steps // 4)
        twins.reset(seed=seeds, options={"reset_mask": some_slots, "note": "for the env"})
        twins.run(10)


@pytest.mark.parametrize(("env", "layout", "mode", "transport"), list(pairwise()))
def test_answers_equal_those_of_sync_vector_env(env, layout, mode, transport):
    assert_parity(env, layout, mode, transport)


@pytest.mark.full_matrix
@pytest.mark.parametrize(("env", "layout", "mode", "transport"), FULL_MATRIX)
def test_answers_equal_in_the_full_matrix(env, layout, mode, transport):
    assert_parity(env, layout, mode, transport)


@pytest.fixture(scope="module")
def live_twins():
    """Twins by mode and transport, started once for this module."""
    live = {}

    def twins(mode, transport):
        if (mode, transport) not in live:
            live[mode, transport] = make_twins("dict", "7 on 3", mode, transport)
        return live[mode, transport]

    yield twins
    for pair in live.values():
        pair.__exit__()


@pytest.fixture(params=TRANSPORTS)
def twins(live_twins, request):
    return live_twins("NextStep", request.param)


@pytest.mark.always_on_four_hosts
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mode", MODES)
def test_resets_and_steps_in_any_order_match(live_twins, mode, transport):
    twins = live_twins(mode, transport)
    rng = np.random.default_rng(5)
    twins.reset(seed=5)
    for _ in range(40):
        match rng.integers(4):
            case 0:
                twins.reset(seed=int(rng.integers(1000)))
            case 1:
                twins.reset()
            case 2:
                mask = rng.random(7) < 0.5
                mask[rng.integers(7)] = True
                twins.reset(options={"reset_mask": mask})
        twins.run(int(rng.integers(6)))


def test_an_integer_seed_gives_slot_i_the_seed_plus_i(twins):
    cluster = twins.cluster
    twins.reset(seed=42)
    assert cluster.np_random_seed == tuple(range(42, 49))
    twins.reset(seed=list(range(42, 49)))


def test_no_seed_after_a_seed_goes_on_with_the_same_generators(twins):
    twins.reset(seed=42)
    twins.run(5)
    twins.reset()
    assert twins.cluster.np_random_seed == tuple(range(42, 49))
    twins.run(5)


def test_a_reset_right_after_an_episode_ended_is_the_only_reset(twins):
    twins.reset(seed=1)
    while not twins.step().any():
        pass
    twins.reset()
    twins.run(2)


def test_a_masked_reset_of_an_ended_slot_is_the_only_reset(twins):
    twins.reset(seed=2)
    while not (ended := twins.step()).any():
        pass
    twins.reset(options={"reset_mask": ended})
    twins.run(2)


def test_a_masked_reset_leaves_the_other_slots_alone(twins):
    cluster = twins.cluster
    twins.reset(seed=3)
    observations, *_ = cluster.step(cluster.action_space.sample())
    mask = np.arange(7) == 4
    after, infos = cluster.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal(after["position"][~mask], observations["position"][~mask])
    assert np.any(after["position"][mask] != observations["position"][mask])
    np.testing.assert_array_equal(infos["_options"], mask)
