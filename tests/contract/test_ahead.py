"""A rollout that is collected while the learner has the one before is what it would have been."""

import time
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv import ClusterEnv, EveryNth, LocalLauncher, TorchPolicy, VectorBackend
from tests import inside
from tests.contract.following import Followed
from tests.contract.policies import change, distribution_of, numpy_policy
from tests.contract.replay import assert_same_fragment
from tests.contract.torch_modules import STATE_SHAPES, Memory
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.environments import troubles
from tests.environments.counting import Count
from tests.environments.walks import Troubled, Walk
from tests.equality import assert_same
from tests.integration.polling import eventually, kill

NUM_ENVS = 5
SEED = 50
T = 7
QUICKLY_S = 20.0


class Told(Count):
    """As `Count`, with something to say."""

    def step(self, action):
        *result, _ = super().step(action)
        return *result, {"age": self.age}


@pytest.fixture(scope="module", params=TRANSPORTS)
def live(request):
    with cluster_env(request.param, Told, NUM_ENVS, 2) as envs:
        yield envs


@pytest.fixture
def envs(live):
    live.reset(seed=SEED)
    return live


def roll(envs, policy, count, ahead, seed=SEED):
    envs.reset(seed=seed)
    return [envs.rollout(policy, T, ahead=ahead) for _ in range(count)]


def assert_same_rollouts(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        assert_same_fragment(one, other)
        assert_same(one.infos.get("age"), other.infos.get("age"))


# What comes back.


def test_with_the_same_weights_it_gives_the_same_rollouts_bit_by_bit(envs):
    policy = numpy_policy(envs)
    assert_same_rollouts(roll(envs, policy, 5, ahead=1), roll(envs, policy, 5, ahead=0))


def test_engines_that_reset_with_the_next_step_and_recurrent_policies_can_be_ahead():
    mode = AutoresetMode.NEXT_STEP
    backend = VectorBackend(lambda n: SyncVectorEnv([Count] * n, autoreset_mode=mode))
    with cluster_env("in-process", backend, NUM_ENVS, 2) as envs:
        policy = TorchPolicy(Memory(3, 2), state_shapes=STATE_SHAPES)
        assert_same_rollouts(roll(envs, policy, 4, ahead=1), roll(envs, policy, 4, ahead=0))


def test_the_version_that_acts_is_the_one_that_was_published_a_call_before(envs):
    policy, before, weights = numpy_policy(envs), envs.version, {}
    # As fast as can be, so that workers may not have begun when the next version comes.
    for update in range(40):
        weights[envs.version + 1] = change(policy, seed=update)
        rollout = envs.rollout(policy, 2, ahead=1)
        expected = before + max(1, update)
        assert (rollout.versions == expected).all()
        assert envs.version == before + update + 1
        distributions = [
            distribution_of(envs.single_action_space, weights[expected], rows)
            for rows in rollout.observations[:-1]
        ]
        log_probs = [d.log_prob(a) for d, a in zip(distributions, rollout.actions, strict=True)]
        assert np.allclose(rollout.outputs["log_prob"], log_probs)


@pytest.mark.parametrize("transport", ["in-process", "tcp"])
def test_a_sync_rule_is_asked_about_the_version_of_the_call_before(transport):
    with cluster_env(transport, Count, 3, 2, sync=EveryNth(3)) as envs:
        policy, versions = numpy_policy(envs), []
        for update in range(9):
            change(policy, seed=update)
            versions.append(np.unique(envs.rollout(policy, 2, ahead=1).versions).tolist())
    assert versions == [[1]] * 4 + [[4]] * 3 + [[7]] * 2


def test_the_last_call_takes_what_is_under_way_and_asks_for_no_more(envs):
    policy = numpy_policy(envs)
    expected = roll(envs, policy, 4, ahead=0)
    actual = roll(envs, policy, 2, ahead=1)
    dropped = envs.ledger.dropped_steps
    actual.append(envs.rollout(policy, T))
    assert envs.get_attr("age") == tuple(int(age) for age in actual[-1].observations[-1, :, 1])
    actual.append(envs.rollout(policy, T))
    assert_same_rollouts(actual, expected)
    assert envs.ledger.dropped_steps == dropped


def test_some_slots_may_be_waited_for(envs):
    policy = numpy_policy(envs)
    whole = roll(envs, policy, 12, ahead=0)
    envs.reset(seed=SEED)
    number = dict.fromkeys(range(NUM_ENVS), 0)
    for call in range(9):
        some = envs.rollout(policy, T, ahead=1, wait_num=1 + 4 * (call % 3 == 2))
        for column, slot in enumerate(some.slots.tolist()):
            expected = whole[number[slot]].observations[:, slot]
            assert np.array_equal(some.observations[:, column], expected)
            number[slot] += 1
    assert min(number.values()) >= 3


@pytest.mark.parametrize("ahead", [2, -1, "1"])
def test_more_than_one_rollout_ahead_is_refused(envs, ahead):
    with pytest.raises(ValueError, match="must be 0 or 1: one rollout is collected ahead at most"):
        envs.rollout(numpy_policy(envs), T, ahead=ahead)


# While the learner learns.


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_envs_step_while_nobody_waits_for_them(transport, tmp_path):
    gate, sign = tmp_path / "gate", tmp_path / "sign"
    halting = partial(Troubled, troubles.Gate(str(gate)), "step", T + 1, str(sign))
    # One worker: threads of the head take turns, and one that halts would hold up the others.
    with cluster_env(transport, halting, 2, 1) as envs:
        policy = numpy_policy(envs)
        # It returns although the envs halt in the first step after it.
        envs.rollout(policy, T, ahead=1)
        assert eventually(sign.exists)
        gate.touch()
        assert envs.rollout(policy, T, ahead=1).rewards.shape == (T, 2)


# Other calls in between.


def after_two(envs, call):
    """What `call` gives after two rollouts, and after one if the second is collected ahead."""
    policy, results = numpy_policy(envs), []
    for ahead, count in ((0, 2), (1, 1)):
        roll(envs, policy, count, ahead)
        results.append(call(envs, policy))
    return results


BETWEEN = {
    "step": lambda envs, policy: envs.step(np.zeros(NUM_ENVS, np.int64)),
    "step with a policy": lambda envs, policy: envs.step(policy),
    "call": lambda envs, policy: envs.call("age"),
    "evaluate": lambda envs, policy: envs.evaluate(policy, 6),
}


@pytest.mark.parametrize("call", BETWEEN)
def test_other_calls_wait_for_the_rollout_ahead_and_go_on_from_there(envs, call):
    expected, actual = after_two(envs, BETWEEN[call])
    if call == "evaluate":
        expected, actual = vars(expected), vars(actual)
    assert_same(actual, expected)


@pytest.mark.parametrize("between", ["call", "evaluate", "evaluate another"])
def test_what_does_not_step_the_envs_loses_nothing(envs, between):
    policy, other = numpy_policy(envs), numpy_policy(envs, seed=9)
    expected = roll(envs, policy, 3, ahead=0)
    dropped = envs.ledger.dropped_steps
    envs.reset(seed=SEED)
    for one in expected:
        rollout = envs.rollout(policy, T, ahead=1)
        if between == "call":
            envs.get_attr("age")
        else:
            envs.evaluate(policy if between == "evaluate" else other, 2)
        for name in ("observations", "actions", "rewards", "terminated"):
            assert np.array_equal(getattr(rollout, name), getattr(one, name)), name
    assert envs.ledger.dropped_steps == dropped


FIRST_SLOT = {"reset_mask": np.array([True, *[False] * (NUM_ENVS - 1)])}
DROPPING = {
    "reset": lambda envs, policy: (envs.reset(seed=SEED), envs.rollout(policy, T))[1],
    "masked reset": lambda envs, policy: (
        envs.reset(options=FIRST_SLOT),
        envs.rollout(policy, T),
    )[1],
    "another T": lambda envs, policy: envs.rollout(policy, T + 4),
    "another policy": lambda envs, policy: envs.rollout(numpy_policy(envs), T),
    "stream": lambda envs, policy: next(envs.stream(T)),
    "async_reset": lambda envs, policy: (envs.async_reset(), envs.recv(), envs.reset())[0],
}


@pytest.mark.parametrize("call", DROPPING)
def test_what_cannot_be_used_is_dropped_and_counted(envs, call):
    policy = numpy_policy(envs)
    before = envs.ledger.dropped_steps
    envs.rollout(policy, T, ahead=1)
    after = DROPPING[call](envs, policy)
    # The stream was dropped as well.
    assert envs.ledger.dropped_steps - before >= NUM_ENVS * T * (1 + (call == "stream"))
    if after is not None:
        # It goes on where the envs were, or begins anew, and no row is made up.
        assert np.array_equal(after.next_observations[..., 1], after.observations[:-1, :, 1] + 1)
    if call == "reset":
        assert (after.observations[0, :, 1] == 0).all()
    assert_same_rollouts(roll(envs, policy, 2, ahead=1), roll(envs, policy, 2, ahead=0))


class Tiring(Walk):
    """Its steps take 20 ms from the 2,000th after a reset on."""

    def reset(self, *, seed=None, options=None):
        self.steps = 0 if seed is not None else self.steps
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.steps += 1
        time.sleep(0.02 * (self.steps > 2_000))
        return super().step(action)


@pytest.mark.parametrize("transport", ["shared_memory", "tcp"])
def test_neither_a_reset_nor_the_end_waits_for_a_rollout_that_nobody_wants(transport):
    with cluster_env(transport, Tiring, 2, 2) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=1)
        envs.rollout(policy, 2_000, ahead=1)
        began = time.monotonic()
        envs.reset(seed=1)
        assert time.monotonic() - began < QUICKLY_S
        envs.rollout(policy, 2_000, ahead=1)
        began = time.monotonic()
    assert time.monotonic() - began < QUICKLY_S


# What goes wrong.


@pytest.mark.parametrize("transport", ["in-process", "shared_memory"])
def test_an_error_in_the_rollout_ahead_is_raised_and_the_next_one_starts_over(transport):
    failing = partial(Troubled, troubles.raise_value_error, "step", T + 3, length=5)
    makers = [partial(Walk, 5), failing]
    with cluster_env(transport, makers, num_workers=2) as envs:
        policy = numpy_policy(envs)
        with pytest.raises(ValueError, match="the walk was blocked"):
            # It may fail before the first one is there, or after.
            [envs.rollout(policy, T, ahead=1) for _ in range(2)]
        envs.reset(seed=SEED)
        again = envs.rollout(policy, T)
        envs.reset(seed=SEED)
        assert_same_rollouts([envs.rollout(policy, T, ahead=1)], [again])


# Not in-process: there a worker at the gate has the turn, and the first rollout may wait for it.
@pytest.mark.parametrize("transport", ["shared_memory", "tcp"])
def test_an_error_in_the_rollout_ahead_that_another_call_hears_of_resets_the_envs(
    transport, tmp_path
):
    gate = tmp_path / "gate"
    trouble = partial(wait_and_raise, str(gate))
    makers = [partial(Troubled, trouble, "step", T + 3), Walk]
    with cluster_env(transport, makers, num_workers=2) as envs:
        policy = numpy_policy(envs)
        envs.rollout(policy, T, ahead=1)
        gate.touch()
        with pytest.raises(ValueError, match="the walk was blocked"):
            envs.call("poke")
        envs.rollout(policy, 2)
        assert envs.call("poke") == (2, 2)


def wait_and_raise(gate):
    troubles.Gate(gate)()
    troubles.raise_value_error()


@pytest.mark.parametrize("transport", ["shared_memory", "tcp"])
def test_a_worker_that_is_killed_while_the_learner_learns_costs_no_other_rows(transport):
    with cluster_env(transport, Count, NUM_ENVS, 2) as envs:
        policy, followed = numpy_policy(envs), Followed(envs, Count, SEED)
        envs.reset(seed=SEED)
        for call in range(6):
            change(policy, seed=call)
            followed.check(envs.rollout(policy, T, ahead=1))
            if call in (1, 3):
                kill(envs.workers[call % 2].pid)
        assert followed.restarts


def test_a_host_that_is_killed_while_the_learner_learns_costs_no_other_rows():
    with ClusterEnv(Count, 4, 2, launcher=LocalLauncher(hosts=2)) as envs:
        policy, followed = numpy_policy(envs), Followed(envs, Count, SEED)
        envs.reset(seed=SEED)
        for call in range(5):
            change(policy, seed=call)
            followed.check(envs.rollout(policy, T, ahead=1))
            if call == 1:
                kill(inside.host_pid(envs, "host-1.0"))
        assert followed.restarts
