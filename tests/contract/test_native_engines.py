"""EnvPool's and ALE's envs behind ClusterEnv, beside the same engine alone."""

import warnings
from contextlib import closing
from importlib.util import find_spec
from itertools import islice

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from clusterenv import AtariBackend, ClusterEnv, EntryPointBackend, EnvPoolBackend, VectorBackend
from clusterenv.errors import ClusterEnvError
from tests.contract.policies import numpy_policy
from tests.contract.transports import IN_TURNS, and_on_four_hosts, cluster_env
from tests.contract.twins import Twins
from tests.equality import assert_same

needs_envpool = pytest.mark.skipif(find_spec("envpool") is None, reason="EnvPool is not installed")
needs_ale = pytest.mark.skipif(find_spec("ale_py") is None, reason="ALE is not installed")
NUM_ENVS, SEED, STEPS = 7, 20, 500
# The split into 2 and 3 workers is uneven.
every_number = pytest.mark.parametrize(
    ("transport", "workers"),
    and_on_four_hosts([("shared_memory", 1), ("tcp", 2), ("shared_memory", 3)]),
)


def pool(task, num_envs=NUM_ENVS, **kwargs):
    """EnvPool alone, with the seeds that slots have."""
    import envpool

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seeds = list(range(SEED, SEED + num_envs))
        made = envpool.make(task, env_type="gymnasium", num_envs=num_envs, seed=seeds, **kwargs)
        _ = made.single_observation_space
    return made


def random_actions(space, number):
    space.seed(number)
    return np.stack([space.sample() for _ in range(NUM_ENVS)])


def assert_alike(envs, alone, steps):
    assert_same(envs.reset(seed=SEED), alone.reset())
    for number in range(steps):
        actions = random_actions(alone.single_action_space, number)
        answer = envs.step(actions)
        assert_same(answer, alone.step(actions))
    assert len(np.unique(answer[0].reshape(NUM_ENVS, -1), axis=0)) == NUM_ENVS


@needs_envpool
@every_number
def test_steps_are_those_of_envpool(transport, workers):
    task = "CartPole-v1"
    with cluster_env(transport, EnvPoolBackend(task, num_threads=1), NUM_ENVS, workers) as envs:
        assert_alike(envs, pool(task), STEPS)


@needs_envpool
def test_steps_of_images_are_those_of_envpool():
    with cluster_env(
        "shared_memory", EnvPoolBackend("Pong-v5", num_threads=1), NUM_ENVS, 2
    ) as envs:
        assert_alike(envs, pool("Pong-v5"), 20)


@needs_envpool
@every_number
def test_partial_batches_are_those_of_envpool(transport, workers):
    """All slots at once, since the workers have different numbers of them."""
    alone = pool("CartPole-v1")
    backend = EnvPoolBackend("CartPole-v1", num_threads=1)
    with cluster_env(transport, backend, NUM_ENVS, workers) as envs:
        envs.async_reset(seed=SEED)
        assert_same(envs.recv()[0], alone.reset()[0])
        for number in range(STEPS):
            actions = random_actions(alone.single_action_space, number)
            envs.send(actions, np.arange(NUM_ENVS))
            *rows, infos = envs.recv()
            *expected, alones = alone.step(actions)
            assert_same(rows, expected)
            assert_same(infos["elapsed_step"], alones["elapsed_step"])


def assert_replays(rollout, alone):
    """Every row is what the engine alone does; where it resets in the next step, at once."""
    observations = rollout.observations
    ends = zip(rollout.finals.steps, rollout.finals.columns, strict=True)
    finals = dict(zip(ends, rollout.finals.observations, strict=True))
    for t in range(rollout.num_steps):
        last, rewards, terminated, truncated, _ = alone.step(rollout.actions[t])
        np.testing.assert_array_equal(rollout.rewards[t], rewards)
        np.testing.assert_array_equal(rollout.terminated[t], terminated)
        np.testing.assert_array_equal(rollout.truncated[t], truncated)
        ended = terminated | truncated
        for slot in np.flatnonzero(ended):
            assert_same(finals.pop((t, slot)), last[slot])
        expected = last.copy()
        if ended.any():
            expected[ended] = alone.reset(options={"reset_mask": ended})[0]
        assert_same(observations[t + 1], expected)
    assert not finals


@needs_envpool
@every_number
def test_rollouts_are_what_envpool_does(transport, workers):
    alone = pool("CartPole-v1")
    backend = EnvPoolBackend("CartPole-v1", num_threads=1)
    with cluster_env(transport, backend, NUM_ENVS, workers) as envs:
        first, _ = envs.reset(seed=SEED)
        assert_same(first, alone.reset()[0])
        policy = numpy_policy(envs)
        for _ in range(4):
            assert_replays(envs.rollout(policy, STEPS // 4), alone)
        episodes = envs.evaluate(policy, 10, seed=3)
    assert len(episodes.returns) == 10


@needs_envpool
@pytest.mark.parametrize("transport", ["shared_memory", "tcp"])
def test_the_fragments_of_a_stream_are_what_envpool_does(transport):
    alone = pool("CartPole-v1")
    backend = EnvPoolBackend("CartPole-v1", num_threads=1)
    with cluster_env(transport, backend, NUM_ENVS, 1) as envs:
        first, _ = envs.reset(seed=SEED)
        assert_same(first, alone.reset()[0])
        envs.publish(numpy_policy(envs))
        with closing(envs.stream(25)) as stream:
            fragments = list(islice(stream, 4))
    assert sum(len(fragment.finals.steps) for fragment in fragments) > 0
    for fragment in fragments:
        assert_replays(fragment, alone)


@needs_envpool
@pytest.mark.parametrize(
    ("task", "transport", "workers"),
    [("HalfCheetah-v5", "shared_memory", 1), ("Ant-v5", "tcp", 2)],
)
def test_rollouts_of_mujoco_are_what_envpool_does(task, transport, workers):
    """With a Gaussian policy, and episodes so short that some end."""
    alone = pool(task, max_episode_steps=15)
    backend = EnvPoolBackend(task, num_threads=1, max_episode_steps=15)
    with cluster_env(transport, backend, NUM_ENVS, workers) as envs:
        first, _ = envs.reset(seed=SEED)
        assert_same(first, alone.reset()[0])
        policy = numpy_policy(envs)
        rollouts = [envs.rollout(policy, 20) for _ in range(2)]
    for rollout in rollouts:
        assert rollout.truncated.any()
        assert rollout.outputs["log_prob"].shape == (20, NUM_ENVS)
        assert_replays(rollout, alone)


@needs_envpool
def test_an_envpool_runs_in_one_worker_per_host():
    with ClusterEnv(EnvPoolBackend("CartPole-v1"), 6) as envs:
        assert envs.num_workers == 1


@needs_envpool
def test_every_env_of_an_envpool_is_rendered():
    backend = EnvPoolBackend("CartPole-v1", num_threads=1, render_mode="rgb_array")
    with cluster_env("in-process", backend, 3, 2) as envs:
        envs.reset(seed=1)
        assert len({image.shape for image in envs.render()}) == 1
        assert len(envs.render()) == 3


@needs_envpool
def test_an_unknown_task_of_envpool_is_told_what_comes_close():
    with pytest.raises((ValueError, ClusterEnvError), match="no 'CartPol-v1'; see CartPole-v1"):
        cluster_env("shared_memory", EnvPoolBackend("CartPol-v1"), 4, 2)


@needs_envpool
def test_what_envpool_does_not_take_is_named():
    with pytest.raises((TypeError, ClusterEnvError), match="EnvPool's CartPole-v1 does not take c"):
        cluster_env("shared_memory", EnvPoolBackend("CartPole-v1", colour=3), 4, 2)


@pytest.mark.parametrize("backend", [EnvPoolBackend, AtariBackend])
def test_less_than_no_threads_are_refused(backend):
    with pytest.raises(ValueError, match="num_threads=-1 must be at least 0"):
        backend("Pong-v5", num_threads=-1)


@needs_envpool
def test_an_envpool_made_without_slots_is_the_same_on_every_worker_and_that_is_said():
    backend = VectorBackend(lambda n: pool("CartPole-v1", n))
    with (
        cluster_env("shared_memory", backend, 6, 2) as envs,
        pytest.warns(UserWarning, match="the backend gives every worker the same envs"),
    ):
        envs.reset()


@pytest.mark.parametrize("name", ["num_envs", "seed", "env_type"])
def test_what_is_no_argument_of_the_backend_is_told_where_it_belongs(name):
    with pytest.raises(TypeError, match=f"{name} is no argument of EnvPoolBackend"):
        EnvPoolBackend("Pong-v5", **{name: 1})


@pytest.mark.parametrize(
    ("backend", "package", "extra"),
    [
        (EnvPoolBackend("Pong-v5"), "envpool", "envpool"),
        (AtariBackend("pong"), "ale_py", "ale"),
    ],
)
def test_an_engine_that_is_not_installed_says_how_to_install_it(
    backend, package, extra, monkeypatch
):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'clusterenv\[{extra}\]'"):
        backend.build([0, 1])


# ALE.

ALE = {"repeat_action_probability": 0.25, "max_num_frames_per_episode": 200}


def ales(mode):
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv("breakout", NUM_ENVS, autoreset_mode=mode, num_threads=1, **ALE)


def assert_same_but_for_rows_without_an_end(actual, expected):
    """ALE leaves what it found in memory in the final observations of those that go on."""
    ended = expected[2] | expected[3]
    if "final_obs" in expected[4]:
        expected[4]["final_obs"][~ended] = 0
        # Of workers without an end nobody speaks: their rows are empty.
    assert_same(actual, expected)


@needs_ale
@pytest.mark.parametrize(
    ("transport", "workers", "mode"),
    and_on_four_hosts(
        [
            ("shared_memory", 1, AutoresetMode.NEXT_STEP),
            ("tcp", 2, AutoresetMode.SAME_STEP),
            ("shared_memory", 3, AutoresetMode.SAME_STEP),
        ]
    ),
)
def test_steps_are_those_of_ale(transport, workers, mode):
    alone = ales(mode)
    backend = AtariBackend("breakout", num_threads=1, autoreset_mode=mode, **ALE)
    with cluster_env(transport, backend, NUM_ENVS, workers, autoreset_mode=mode) as envs:
        seeds = [3, 1, 4, 15, 9, 2, 6]
        assert_same(envs.reset(seed=seeds), alone.reset(seed=np.array(seeds)))
        for number in range(STEPS):
            actions = np.random.default_rng(number).integers(0, 4, NUM_ENVS)
            assert_same_but_for_rows_without_an_end(envs.step(actions), alone.step(actions))
        mask = np.arange(NUM_ENVS) % 3 == 1
        observations, infos = envs.reset(seed=7, options={"reset_mask": mask})
        first = np.arange(7, 7 + NUM_ENVS)[mask]
        expected, _ = alone.reset(seed=first, options={"reset_mask": mask})
        assert_same(observations, expected)
        assert infos["env_id"].tolist() == list(range(NUM_ENVS))
        assert all(worker.incarnation == 0 for worker in envs.workers)


@needs_ale
def test_an_unknown_game_is_told_which_there_are():
    with pytest.raises((ValueError, ClusterEnvError), match=r"no game 'Pong': it has .*pong"):
        cluster_env("shared_memory", AtariBackend("Pong"), 2, 1)


# Gymnasium's own, where there can be a single worker: each draws its own random numbers.


@pytest.mark.parametrize("transport", IN_TURNS)
def test_a_vector_entry_point_gives_what_it_gives_alone(transport):
    alone = gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
    with Twins(cluster_env(transport, EntryPointBackend("CartPole-v1"), 4, 1), alone) as twins:
        twins.assert_same_spaces()
        twins.reset(seed=3)
        twins.run(60)


def test_an_id_without_a_vector_env_of_its_own_is_told_what_to_do():
    with pytest.raises(ValueError, match="Pendulum-v1 has no VectorEnv of its own"):
        EntryPointBackend("Pendulum-v1")


def test_an_id_may_be_vectorised_by_gymnasium():
    backend = EntryPointBackend("Pendulum-v1", vectorization_mode="sync")
    with cluster_env("in-process", backend, 3, 2) as envs:
        observations, _ = envs.reset(seed=1)
        assert len(np.unique(observations, axis=0)) == 3
