"""A policy goes on from where each env is, whenever that was reset."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv.backends.vector import VectorBackend
from clusterenv.policies.base import Acted
from tests import inside
from tests.contract.policies import numpy_policy
from tests.contract.replay import Lives
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.environments.counting import Count

NUM_ENVS = 5
SEED = 12
SOME = np.array([False, True, False, False, True])


class Witness:
    """Says what it sees, and how often it has acted in this episode."""

    def weights(self):
        return {"nothing": np.zeros(1)}

    def load(self, weights):
        pass

    def act(self, observations, state, rng):
        count = np.zeros(len(observations)) if state is None else state
        outputs = {"seen": observations.copy(), "count": count}
        actions = np.ones(len(observations), np.int64)
        return Acted(actions, outputs=outputs, state=count + 1)


WITNESS = Witness()


def vector_backend():
    return VectorBackend(
        lambda n: SyncVectorEnv([Count] * n, autoreset_mode=AutoresetMode.NEXT_STEP)
    )


SINGLE = [(transport, "single envs") for transport in TRANSPORTS]
VECTOR = [("shared_memory", "VectorEnvs"), ("tcp", "VectorEnvs")]
# One after the other, each of them is opened once.
on_all = pytest.mark.parametrize("live", SINGLE + VECTOR, indirect=True, ids=str, scope="module")
# A VectorEnv steps all of its envs together.
on_single = pytest.mark.parametrize("live", SINGLE, indirect=True, ids=str, scope="module")


@pytest.fixture(scope="module")
def live(request):
    transport, kind = request.param
    envs = Count if kind == "single envs" else vector_backend()
    with cluster_env(transport, envs, NUM_ENVS, 2) as live:
        yield live


def step(envs, before, acting=slice(None)):
    """A step with the policy, which must have seen ``before``; what the envs show then."""
    after, _, _, _, infos = envs.step(WITNESS)
    np.testing.assert_array_equal(infos["seen"][acting], before[acting])
    # Its state is as old as the episode.
    np.testing.assert_array_equal(infos["count"][acting], before[acting, 1])
    return after, infos


@on_all
def test_a_rollout_begins_where_resets_of_some_slots_have_left_all(live):
    live.reset(seed=0)
    for slot in (3, 0, 4, 1, 2):
        live.reset(seed=SEED, options={"reset_mask": np.arange(NUM_ENVS) == slot})
    Lives(Count, NUM_ENVS, SEED).assert_lived(live.rollout(numpy_policy(live), 7))


@on_all
def test_a_policy_steps_after_some_slots_were_reset(live):
    before, _ = live.reset(seed=SEED)
    for _ in range(2):
        before, _ = step(live, before)
    first, _ = live.reset(options={"reset_mask": SOME})
    assert first[:, 1].tolist() == [2, 0, 2, 2, 0]
    step(live, first)


@on_all
def test_a_policy_goes_on_after_a_rollout_and_a_reset_of_some_slots(live):
    live.reset(seed=SEED)
    rollout = live.rollout(WITNESS, 3)
    first, _ = live.reset(options={"reset_mask": SOME})
    where = np.where(SOME[:, None], first, rollout.observations[-1])
    following = live.rollout(WITNESS, 1)
    np.testing.assert_array_equal(following.observations[0], where)
    step(live, following.observations[-1])


@on_single
@pytest.mark.parametrize("steps", [0, 2])
def test_a_policy_steps_while_single_slots_of_a_worker_start_over(live, steps):
    before, _ = live.reset(seed=SEED)
    for _ in range(steps):
        before, _ = step(live, before)
    inside.lose_slots(live, [1, 4])
    after, infos = step(live, before, ~SOME)
    assert infos["env_lost"].tolist() == SOME.tolist()
    np.testing.assert_array_equal(after[SOME], before[SOME])
    after, infos = step(live, after, ~SOME)
    assert after[:, 1].tolist() == [steps + 2, 0, steps + 2, steps + 2, 0]
    step(live, after)


@on_single
def test_a_policy_steps_after_steps_and_losses_that_followed_a_rollout(live):
    live.reset(seed=SEED)
    live.rollout(WITNESS, 2)
    inside.lose_slots(live, [1, 4])
    after, *_ = live.step(np.ones(NUM_ENVS, np.int64))
    assert after[~SOME, 1].tolist() == [3, 3, 3]
    after, *_ = live.step(WITNESS)
    assert after[:, 1].tolist() == [4, 0, 4, 4, 0]
