"""Natively vectorised engines: what they give alone, for any number of workers, in every call."""

import re
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode

from clusterenv import VectorBackend
from clusterenv.errors import ClusterEnvError
from tests.contract.policies import numpy_policy
from tests.contract.replay import arrays_of
from tests.contract.transports import PROCESSES, TRANSPORTS, and_on_four_hosts, cluster_env
from tests.environments.engines import Engine
from tests.equality import assert_same
from tests.integration.polling import kill

NUM_ENVS, SEED = 7, 50
SEEDS = range(SEED, SEED + NUM_ENVS)
every_transport = pytest.mark.parametrize("transport", TRANSPORTS)
# The split into 3 workers is uneven: 3, 2 and 2 slots.
every_number = pytest.mark.parametrize(
    ("transport", "workers"),
    and_on_four_hosts(
        [("shared_memory", 1), ("shared_memory", 3), ("tcp", 2), ("tcp", 3), ("in-process", 2)]
    ),
)


def make(slots, seeds, **kwargs):
    return Engine(seeds, **kwargs)


def engines(transport, workers, mode=AutoresetMode.NEXT_STEP, **kwargs):
    num_envs, batch_size = kwargs.pop("num_envs", NUM_ENVS), kwargs.pop("batch_size", None)
    backend = VectorBackend(partial(make, mode=mode, **kwargs))
    modes = {"autoreset_mode": mode, "batch_size": batch_size}
    return cluster_env(transport, backend, num_envs, workers, **modes)


def actions(number, count=NUM_ENVS):
    return np.random.default_rng(number).integers(0, 4, count)


@every_number
def test_rows_and_infos_are_those_of_one_engine_of_all_slots(transport, workers):
    alone = Engine(SEEDS)
    with engines(transport, workers) as envs:
        first = envs.reset(seed=SEED)
        assert_same(first, alone.reset())
        assert len(np.unique(first[0][:, 0])) == NUM_ENVS
        for number in range(60):
            assert_same(envs.step(actions(number)), alone.step(actions(number)))
        assert_same(envs.reset(), alone.reset())
        assert_same(envs.reset(seed=SEED)[0], first[0])


@every_transport
def test_partial_batches_have_the_rows_of_one_engine_of_all_slots(transport):
    alone = Engine(range(SEED, SEED + 8))
    observations, _ = alone.reset()
    expected = [observations, *(alone.step(actions(number, 8)) for number in range(20))]
    ages = np.zeros(8, int)
    with engines(transport, 4, num_envs=8, batch_size=2) as envs:
        envs.async_reset(seed=SEED)
        while ages.min() < 20:
            observations, rewards, _, _, infos = envs.recv()
            slots = infos["env_id"]
            for row, slot in enumerate(slots):
                if 0 < ages[slot] <= 20:
                    step = expected[ages[slot]]
                    assert_same(observations[row], step[0][slot])
                    assert rewards[row] == step[1][slot]
                    assert infos["age"][row] == step[4]["age"][slot]
                    assert infos["players"]["env_id"][row] == slot
            sent = [actions(min(ages[slot], 19), 8)[slot] for slot in slots]
            ages[slots] += 1
            envs.send(np.array(sent), slots)
    assert rewards.dtype == np.float32


@every_transport
@pytest.mark.parametrize("answers", ["rows", "all"])
def test_a_masked_reset_resets_those_slots_and_no_others(transport, answers):
    alone, mask = Engine(SEEDS, answers="all"), np.isin(np.arange(NUM_ENVS), [1, 2, 6])
    with engines(transport, 3, answers=answers) as envs:
        envs.reset(seed=SEED)
        alone.reset()
        for number in range(3):
            envs.step(actions(number))
            alone.step(actions(number))
        observations, infos = envs.reset(options={"reset_mask": mask})
        expected, _ = alone.reset(options={"reset_mask": mask})
        assert_same(observations, expected)
        assert infos["env_id"].tolist() == list(range(NUM_ENVS))
        assert_same(envs.step(actions(9)), alone.step(actions(9)))
        assert not any(worker.incarnation for worker in envs.workers)


def test_an_engine_that_is_seeded_when_made_cannot_seed_some_of_its_envs():
    with engines("in-process", 1) as envs:
        envs.reset(seed=SEED)
        with pytest.raises(ValueError, match="takes its seeds when it is made"):
            envs.reset(seed=3, options={"reset_mask": np.arange(NUM_ENVS) == 1})


@every_number
def test_a_rollout_is_the_same_whenever_the_engine_resets(transport, workers):
    def rollouts(workers, **kwargs):
        with engines(transport, workers, **kwargs) as envs:
            envs.reset(seed=SEED)
            return [envs.rollout(numpy_policy(envs), steps) for steps in (11, 20)]

    expected = rollouts(workers, mode=AutoresetMode.SAME_STEP)
    assert all(len(rollout.finals.steps) for rollout in expected)
    answers = "rows" if workers == 3 else "all"
    for one, other in zip(rollouts(workers, answers=answers), expected, strict=True):
        assert_same(arrays_of(one), arrays_of(other))
    for one, other in zip(rollouts(1), expected, strict=True):
        assert_same(one.observations, other.observations)
        assert_same(one.rewards, other.rewards)


@every_transport
def test_an_evaluation_is_the_same_whenever_the_engine_resets(transport):
    def episodes(mode):
        with engines(transport, 2, mode=mode) as envs:
            played = envs.evaluate(numpy_policy(envs), 20, seed=4)
            return played.returns, played.lengths

    assert_same(episodes(AutoresetMode.NEXT_STEP), episodes(AutoresetMode.SAME_STEP))


def test_an_engine_that_resets_all_its_envs_says_so_where_some_are_to_be_reset():
    with engines("in-process", 1, answers="ignores") as envs:
        envs.reset(seed=SEED)
        with pytest.raises(ValueError, match=r"Engine ignores .* and resets all its envs"):
            envs.reset(options={"reset_mask": np.arange(NUM_ENVS) == 1})


@every_transport
def test_what_every_env_has_can_be_called_read_set_and_rendered(transport):
    with engines(transport, 2) as envs:
        observations, _ = envs.reset(seed=SEED)
        assert envs.call("twice", 4) == (8,) * NUM_ENVS
        assert list(envs.get_attr("marks")) == observations[:, 0].tolist()
        assert envs.np_random_seed == tuple(SEEDS)
        places = [place for worker in envs.workers for place in range(len(worker.slots))]
        assert [image[0, 0] for image in envs.render()] == places
        envs.set_attr("speed", 2)
        assert (envs.step(actions(0))[0][:, 1] == 2).all()
        with pytest.raises(ValueError, match="speed can only be set to one value"):
            envs.set_attr("speed", list(range(NUM_ENVS)))


@pytest.mark.parametrize("transport", PROCESSES)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_lost_engine_is_replaced_and_may_be_reset_in_part(transport, mode):
    with engines(transport, 2, mode=mode) as envs:
        envs.reset(seed=SEED)
        envs.step(actions(0))
        slots, lost = np.arange(NUM_ENVS), list(envs.workers[1].slots)
        kill(envs.workers[1].pid)
        *_, infos = envs.step(actions(1))
        assert infos["env_lost"].tolist() == np.isin(slots, lost).tolist()
        assert infos["env_id"].tolist() == slots.tolist()
        observations, _ = envs.reset(options={"reset_mask": slots == lost[-1]})
        assert observations[lost[-1], 1] == 0
        for number in range(20):
            observations, *_ = envs.step(actions(number))
        assert len(np.unique(observations[:, 0])) == NUM_ENVS


def test_a_lost_engine_is_replaced_in_a_rollout():
    with engines("shared_memory", 2) as envs:
        envs.reset(seed=SEED)
        policy = numpy_policy(envs)
        envs.rollout(policy, 5)
        kill(envs.workers[0].pid)
        assert envs.rollout(policy, 5).rewards.shape == (5, NUM_ENVS)


# What is wrong with a backend.


def same_seeds(num_envs):
    return Engine(range(num_envs))


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_backend_that_gives_every_worker_the_same_envs_is_noticed(transport):
    with cluster_env(transport, VectorBackend(same_seeds), 6, 2) as envs:
        slots = [f"{worker.slots[0]}..{worker.slots[-1]}" for worker in envs.workers]
        same = re.escape(f"slots {slots[0]} and {slots[1]} begin with the same")
        with pytest.warns(UserWarning, match=same):
            envs.reset(seed=SEED)


WRONG = {
    "too many": (lambda slots, seeds: Engine([*seeds, 0]), "2 envs for 1 slots"),
    "too few": (lambda n: Engine(range(n - 1)), "of (1 envs for 2|0 envs for 1) slots"),
    "no VectorEnv": (lambda n: "no env", "'no env' of type str, not a gymnasium"),
    "nothing": (lambda slots, seeds: None, "None of type NoneType, not a gymnasium"),
    "another mode": (lambda n: Engine(range(n), AutoresetMode.SAME_STEP), "autoreset_mode"),
}


@every_transport
@pytest.mark.parametrize("wrong", WRONG)
def test_a_factory_that_returns_something_else_is_told_what_is_wrong(transport, wrong):
    factory, message = WRONG[wrong]
    with pytest.raises((ValueError, TypeError, ClusterEnvError), match=message):
        cluster_env(transport, VectorBackend(factory), 4, 2)


def another_number(slots, seeds):
    return Engine(seeds if len(seeds) == 1 else [*seeds, 0])


def another_mode(slots, seeds):
    return Engine(seeds, AutoresetMode.SAME_STEP if len(seeds) > 1 else AutoresetMode.NEXT_STEP)


def another_space(slots, seeds):
    engine = Engine(seeds)
    if len(seeds) > 1:
        engine.single_action_space = Discrete(9)
    return engine


@pytest.mark.parametrize("transport", ["in-process", "tcp"])
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (another_number, "returned 5 envs for 4 slots"),
        (another_mode, "autoreset_mode .*SAME_STEP for 4 slots"),
        (another_space, r"with spaces .*Discrete\(9\).* for 4 slots"),
    ],
)
def test_an_engine_that_depends_on_its_number_of_envs_is_named_by_the_first_reset(
    transport, factory, message
):
    with (
        cluster_env(transport, VectorBackend(factory), 4, 1) as envs,
        pytest.raises(ValueError, match=message),
    ):
        envs.reset(seed=SEED)


def liar(slots, seeds):
    engine = Engine(seeds, AutoresetMode.SAME_STEP)
    engine.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    return engine


@pytest.mark.parametrize("how", ["step", "rollout"])
def test_an_engine_that_resets_otherwise_than_it_says_is_named(how):
    with cluster_env("in-process", VectorBackend(liar), 4, 1) as envs:
        envs.reset(seed=SEED)
        policy = numpy_policy(envs)
        with pytest.raises(ValueError, match=r"Engine declares .* NEXT_STEP but resets within the"):
            for _ in range(9):
                envs.step(np.zeros(4, int)) if how == "step" else envs.rollout(policy, 9)


@pytest.mark.parametrize("dtype", [np.complex128, "U3"])
def test_observations_of_another_dtype_than_the_space_are_named(dtype):
    with (
        engines("in-process", 1, dtype=dtype) as envs,
        pytest.raises(TypeError, match=r"does not fit the observation space: expected \(3,\)"),
    ):
        envs.reset(seed=SEED)
