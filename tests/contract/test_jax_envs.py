"""Envs written in JAX behind ClusterEnv, beside the same functions in a plain loop."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from clusterenv import JaxBackend, JaxPolicy
from clusterenv.distributions import Categorical, DiagonalGaussian
from clusterenv.errors import ClusterEnvError
from tests.contract.policies import numpy_policy
from tests.contract.replay import arrays_of
from tests.contract.transports import cluster_env
from tests.environments.pure import Alone, CartPole, Walk
from tests.equality import assert_same

# Few sizes, since each is compiled: 3, 2 + 1, 1 + 1 + 1.
NUM_ENVS, SEED, STEPS = 3, 20, 500
SAME_STEP = AutoresetMode.SAME_STEP


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    """What one worker has compiled, no other one compiles again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield


ACTIONS = np.random.default_rng(0).integers(0, 2, (STEPS, NUM_ENVS))


@pytest.fixture(scope="module")
def expected():
    """What a plain loop gives: the first observations, then all that each step returns."""
    alone = Alone(CartPole, range(SEED, SEED + NUM_ENVS))
    return alone.reset(), [alone.step(actions) for actions in ACTIONS]


def assert_steps_are(envs, expected, act):
    """`act` steps all envs, with actions that depend on the number of the step."""
    first, steps = expected
    assert_same(envs[0], first)
    ends = 0
    for number, (observations, *rest, last) in enumerate(steps):
        answer = act(number)
        assert_same(answer[0], observations)
        assert_same(answer[1:4], tuple(rest))
        ended = rest[1] | rest[2]
        if ended.any():
            ends += 1
            infos = answer[4]
            assert_same(infos["final_obs"][ended], last[ended])
            assert infos["_final_obs"].tolist() == ended.tolist()
            assert infos["_final_info"].tolist() == ended.tolist()
    assert ends > 20
    assert len(np.unique(answer[0], axis=0)) == NUM_ENVS


@pytest.mark.parametrize(
    ("transport", "workers"), [("shared_memory", 1), ("tcp", 2), ("shared_memory", 3)]
)
def test_rows_are_those_of_the_plain_functions(transport, workers, expected):
    """On step, on recv and send, and in a rollout, whatever the number of workers."""
    backend = JaxBackend(CartPole())
    with cluster_env(transport, backend, NUM_ENVS, workers, autoreset_mode=SAME_STEP) as envs:
        first = envs.reset(seed=SEED)
        assert_steps_are(first, expected, lambda n: envs.step(ACTIONS[n]))

        def send_and_receive(number):
            envs.send(ACTIONS[number], np.arange(NUM_ENVS))
            return envs.recv()

        envs.async_reset(seed=SEED)
        assert_steps_are(envs.recv(), expected, send_and_receive)
        envs.reset(seed=SEED)
        assert_replays(envs.rollout(numpy_policy(envs), STEPS), CartPole)


def assert_replays(rollout, make):
    alone = Alone(make, range(SEED, SEED + NUM_ENVS))
    assert_same(rollout.observations[0], alone.reset())
    ends = zip(rollout.finals.steps, rollout.finals.columns, strict=True)
    finals = dict(zip(ends, rollout.finals.observations, strict=True))
    assert len(finals) > 10
    for t in range(rollout.num_steps):
        observations, rewards, terminated, truncated, last = alone.step(rollout.actions[t])
        np.testing.assert_array_equal(rollout.observations[t + 1], observations)
        np.testing.assert_array_equal(rollout.rewards[t], rewards)
        np.testing.assert_array_equal(rollout.terminated[t], terminated)
        np.testing.assert_array_equal(rollout.truncated[t], truncated)
        for slot in np.flatnonzero(terminated | truncated):
            assert_same(finals.pop((t, slot)), last[slot])
    assert not finals


class Noting(JaxPolicy):
    """Notes what it was given to act on. Gaussian, with a value."""

    given: ClassVar = []

    def __init__(self):
        weights = {"mean": np.ones((3, 2), np.float32), "log_std": np.zeros(2, np.float32)}
        super().__init__(self.apply, weights)

    @staticmethod
    def apply(params, observations):
        mean = observations @ params["mean"]
        log_std = jnp.broadcast_to(params["log_std"], mean.shape)
        return DiagonalGaussian(mean, log_std), observations.sum(-1)

    def act(self, observations, state, rng):
        self.given.append(isinstance(observations, jax.Array))
        return super().act(observations, state, rng)


class FromTheHost(Noting):
    acts_on_device = False


def test_in_a_rollout_observations_stay_on_the_device():
    """Envs of Brax' form, whatever the autoreset mode of step is."""
    with cluster_env("in-process", JaxBackend(Walk), NUM_ENVS, 1) as envs:
        assert envs.single_observation_space == Box(-np.inf, np.inf, (3,), np.float32)
        assert envs.single_action_space == Box(-1, 1, (2,), np.float32)
        rollouts = []
        for policy in (Noting(), FromTheHost()):
            Noting.given.clear()
            envs.reset(seed=SEED)
            rollouts.append(envs.rollout(policy, 60))
            # The first is where the envs are, which the host knows; the last are for the values of
            # what the fragment cuts off.
            assert set(Noting.given[1:60]) == {policy.acts_on_device}
    assert_replays(rollouts[0], Walk)
    assert rollouts[0].truncated.any()
    assert rollouts[0].terminated.any()
    one, other = (arrays_of(rollout) for rollout in rollouts)
    del one["versions/0"], other["versions/0"]
    assert_same(one, other)
    assert (rollouts[0].infos["distance"] >= 0).all()


class NoStep(CartPole):
    def step(self, key, state, action):
        return state, state, 0.0


def test_the_error_of_a_worker_reaches_the_head():
    with pytest.raises((TypeError, ClusterEnvError), match="step returned a tuple of 3"):
        cluster_env("in-process", JaxBackend(NoStep()), 2, 1)


def test_a_policy_in_jax_acts_in_envs_that_are_not():
    def rollouts(transport):
        with cluster_env(transport, "CartPole-v1", 2, 1) as envs:
            policy = JaxPolicy(linear, {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)})
            envs.reset(seed=SEED)
            first = envs.rollout(policy, 40)
            policy.params = jax.tree.map(lambda array: array - 1, policy.params)
            return [first, envs.rollout(policy, 40)]

    for one, other in zip(rollouts("tcp"), rollouts("in-process"), strict=True):
        assert len(one.finals.steps)
        assert_same(arrays_of(one), arrays_of(other))


def linear(params, observations):
    return Categorical(observations @ params["w"] + params["b"]), observations[:, 0]
