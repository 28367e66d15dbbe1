"""What a host says its policy did is checked before it is joined with what others did."""

import dataclasses
import threading
import time

import msgspec
import numpy as np
import pytest

from clusterenv import AdaptiveSync
from clusterenv.arrays import bytes_of
from clusterenv.errors import ProtocolError
from clusterenv.plain.values import pack
from clusterenv.wire.messages import Extra, FragmentMade, RowsMade, ValuesMade, WorkerLost
from tests import inside
from tests.contract.policies import numpy_policy
from tests.environments.vectors import walks
from tests.integration.security.liars import (
    LIAR,
    NUM_ENVS,
    LyingLauncher,
    assert_nobody_was_replaced,
    assert_only_the_liar_was_replaced,
    instead,
    instead_of,
    ran_with,
)

OWN = (2, 3)
replace = msgspec.structs.replace


def named(change):
    """A lie about a fragment: `change` gets its arrays by name."""

    def make(message, frames):
        arrays = {
            name: np.frombuffer(frame, dtype).reshape(shape)
            for name, (dtype, shape), frame in zip(
                message.names, message.arrays, frames, strict=True
            )
        }
        change(arrays)
        kinds = tuple((array.dtype.str, array.shape) for array in arrays.values())
        lie = replace(message, names=tuple(arrays), arrays=kinds)
        return [(lie, [bytes_of(array) for array in arrays.values()])]

    return make


def setting(name, change):
    return named(lambda arrays: arrays.update({name: change(arrays[name])}))


def changed(**changes):
    return lambda message, frames: [(replace(message, **changes), frames)]


FRAGMENT_LIES = {
    "without rewards": named(lambda arrays: arrays.pop("rewards")),
    "of fewer steps": setting("rewards", lambda array: array[1:]),
    "rewards of another dtype": setting("rewards", lambda array: array.astype("<f4")),
    "observations of another shape": setting("observations/0", lambda array: array[..., :1]),
    "observations that are times": setting("observations/0", lambda array: array.view("<M8[s]")),
    "actions of another shape": setting("actions/0", lambda array: array[:, :1]),
    "actions of another leaf": named(lambda a: a.update({"actions/1": a["actions/0"]})),
    "log-probabilities of another shape": setting("outputs/log_prob", lambda a: a[0]),
    "values of another shape": setting("last_values", lambda array: array[:1]),
    "values without those of the ends": named(lambda arrays: arrays.pop("finals/values")),
    "finals of another's slot": setting("finals/slots", lambda array: np.zeros_like(array)),
    "finals of a step to come": setting("finals/steps", lambda array: np.full_like(array, 9)),
    "finals of a step before": setting("finals/steps", lambda array: np.full_like(array, -1)),
    "more finals than observations of them": setting("finals/returns", lambda a: np.zeros(99)),
    "arrays that nobody knows": named(lambda a: a.update({"odd": a["rewards"]})),
    "objects": changed(arrays=(("|O", (1,)),) * 13),
    "a huge shape": changed(arrays=(("<f8", (2**62, 4)),) * 13),
    "very many dimensions": changed(arrays=(("<f8", (2**62,) * 100_000),) * 13),
    "too few names": lambda message, frames: [(replace(message, names=message.names[1:]), frames)],
    "a name twice": lambda m, f: [(replace(m, names=(m.names[0], *m.names[:-1])), f)],
    "too few frames": lambda message, frames: [(message, frames[1:])],
    "of another's slots": changed(slots=(0, 1)),
    "of a slot twice": changed(slots=(2, 2)),
    "of slots in another order": changed(slots=(3, 2)),
    "of another request": changed(request=99),
    "of no version": changed(version=0),
    "of a version to come": changed(version=99),
    "of an epoch to come": changed(epoch=99),
    "rows instead": instead(lambda m: RowsMade(m.epoch, None)),
    "values instead": instead(lambda m: ValuesMade(m.epoch, m.request, OWN, b"")),
    "a loss of another's": instead(
        lambda m: WorkerLost(m.epoch, (0, 1), "x", "x", ((m.request, (0, 1)),))
    ),
    "twice": lambda message, frames: [(message, frames), (message, frames)],
}


def roll_out(envs, num=3):
    policy = numpy_policy(envs)
    envs.reset(seed=1)
    rollouts = [envs.rollout(policy, num_steps=5) for _ in range(num)]
    for rollout in rollouts:
        assert rollout.rewards.shape == (5, NUM_ENVS)
        assert rollout.slots.tolist() == list(range(NUM_ENVS))


@pytest.mark.parametrize("make", FRAGMENT_LIES.values(), ids=FRAGMENT_LIES)
def test_a_lie_in_a_fragment_ends_the_liar_alone(make):
    lie = instead_of(FragmentMade, make)
    with ran_with(lie, env=short_walks()) as envs:
        roll_out(envs)
        assert lie.told
        assert_only_the_liar_was_replaced(envs)


def short_walks():
    """Episodes end within every fragment."""
    return walks(NUM_ENVS, length=3)


@pytest.mark.parametrize("name", ["without rewards", "of a slot twice", "of a version to come"])
def test_a_lie_in_a_stream_ends_the_liar_alone(name):
    lie = instead_of(FragmentMade, FRAGMENT_LIES[name])
    with ran_with(lie, env=short_walks()) as envs:
        envs.reset(seed=1)
        envs.publish(numpy_policy(envs))
        seen = set()
        for number, fragment in enumerate(envs.stream(num_steps=5)):
            assert fragment.rewards.shape == (5, len(fragment.slots))
            seen.update(fragment.slots.tolist())
            if number > 20 and seen == set(range(NUM_ENVS)):
                break
        assert lie.told
        assert_only_the_liar_was_replaced(envs)


DISAGREEMENTS = {
    "without an output": named(lambda arrays: arrays.pop("outputs/log_prob")),
    "with an output of its own": named(lambda a: a.update({"outputs/odd": a["rewards"]})),
    "an output of another dtype": setting("outputs/log_prob", lambda array: array.astype("<M8[s]")),
    "an output of another shape": setting("outputs/log_prob", lambda a: np.stack([a, a], -1)),
    "with a state": named(lambda a: a.update({"state/": a["rewards"][0]})),
    "no values": named(lambda arrays: [arrays.pop(n) for n in ("last_values", "finals/values")]),
}


@pytest.mark.parametrize("make", DISAGREEMENTS.values(), ids=DISAGREEMENTS)
@pytest.mark.parametrize("is_first", [True, False], ids=["answers first", "answers last"])
def test_other_outputs_than_the_policy_has_end_the_liar_alone_whoever_is_first(make, is_first):
    """The head knows what its policy makes: it need not ask another host."""
    lie = instead_of(FragmentMade, make)
    launcher = Delayed(lie, "host-0.0" if is_first else LIAR)
    with ran_with(lie, env=short_walks(), launcher=launcher) as envs:
        roll_out(envs)
        assert lie.told
        assert_only_the_liar_was_replaced(envs)


class Delayed(LyingLauncher):
    """One of the hosts is a little slower than the other."""

    def __init__(self, lie, slow):
        super().__init__(lie)
        self._slow = slow

    def lie_of(self, host):
        lie = super().lie_of(host)

        def delayed(message, frames):
            if host == self._slow and isinstance(message, FragmentMade | RowsMade):
                time.sleep(0.1)
            return lie(message, frames)

        return delayed


def test_where_the_policy_cannot_act_at_the_head_a_disagreement_is_an_error_and_ends_nobody():
    lie = instead_of(FragmentMade, DISAGREEMENTS["without an output"])
    with ran_with(lie, env=short_walks()) as envs:
        envs.reset(seed=1)
        with pytest.raises(ProtocolError, match="outputs differ between slots"):
            envs.rollout(OnlyElsewhere(numpy_policy(envs)), num_steps=5)
        assert lie.told
        assert_nobody_was_replaced(envs)
        roll_out(envs)
        assert_nobody_was_replaced(envs)


class OnlyElsewhere:
    """A policy that does not act in the user's thread."""

    def __init__(self, policy):
        self._policy = policy

    def act(self, observations, state, rng):
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("not here")
        return self._policy.act(observations, state, rng)

    def weights(self):
        return self._policy.weights()

    def load(self, weights):
        self._policy.load(weights)


def test_another_policy_may_say_other_things():
    with ran_with(lambda message, frames: None) as envs:
        for value in (True, False, True):
            policy = numpy_policy(envs) if value else WithoutValue(numpy_policy(envs))
            envs.reset(seed=1)
            rollout = envs.rollout(policy, num_steps=5)
            assert (rollout.last_values is not None) == value
            assert ("value" in envs.step(policy)[-1]) == value
        assert inside.host_names(envs) == ["host-0.0", LIAR]


class WithoutValue:
    """The same policy, which does not say what it expects."""

    def __init__(self, policy):
        self._policy = policy

    def act(self, observations, state, rng):
        acted = self._policy.act(observations, state, rng)
        outputs = {name: array for name, array in acted.outputs.items() if name != "value"}
        return dataclasses.replace(acted, outputs=outputs)

    def weights(self):
        return self._policy.weights()

    def load(self, weights):
        self._policy.load(weights)


ONES = np.ones(2, np.int64)
LOG_PROB = {"log_prob": np.zeros(2)}
ACTED_LIES = {
    "nothing": None,
    "a list": [],
    "without actions": {"version": ONES},
    "without versions": {"action": np.zeros((2, 2))},
    "too few rows": {"action": np.zeros((1, 2)), "version": ONES},
    "rows of another shape": {"action": np.zeros((2, 3)), "version": ONES},
    "no arrays": {"action": np.zeros((2, 2)), "version": 1},
    "versions of another dtype": {"action": np.zeros((2, 2)), "version": np.ones(2)},
    "of no version": {"action": np.zeros((2, 2)), "version": np.zeros(2, np.int64)},
    "of a version to come": {"action": np.zeros((2, 2)), "version": np.full(2, 99)},
    "another structure": {"action": {"a": np.zeros((2, 2))}, "version": ONES},
    "outputs that are no arrays": {"action": np.zeros((2, 2)), "version": ONES, "x": [1, 2]},
}


def a_lie_about_a_step(acted):
    data = pack(acted, allow_pickle=False)
    # After the reset and a true step.
    return instead_of(
        RowsMade,
        lambda m, frames: [(replace(m, extras=(Extra(OWN, acted=data),)), frames)],
        skip=2,
    )


@pytest.mark.parametrize("sync", [None, AdaptiveSync(0.1)], ids=["every version", "adaptive"])
@pytest.mark.parametrize("acted", ACTED_LIES.values(), ids=ACTED_LIES)
def test_a_lie_about_what_a_policy_did_ends_the_liar_alone(acted, sync):
    with ran_with(lie := a_lie_about_a_step(acted), sync=sync) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=1)
        infos = [envs.step(policy)[-1] for _ in range(5)]
        assert lie.told
        assert_only_the_liar_was_replaced(envs)
    assert all(info["action"].shape == (NUM_ENVS, 2) for info in infos)


OTHER_OUTPUTS = {
    "less than others": {"action": np.zeros((2, 2)), "version": ONES},
    "more than others": {"action": np.zeros((2, 2)), "version": ONES, "x": ONES, **LOG_PROB},
}


@pytest.mark.parametrize("acted", OTHER_OUTPUTS.values(), ids=OTHER_OUTPUTS)
@pytest.mark.parametrize("is_first", [True, False], ids=["answers first", "answers last"])
def test_other_outputs_of_a_step_end_the_liar_alone_whoever_is_first(acted, is_first):
    lie = a_lie_about_a_step(acted)
    launcher = Delayed(lie, "host-0.0" if is_first else LIAR)
    with ran_with(lie, launcher=launcher) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=1)
        infos = [envs.step(policy)[-1] for _ in range(5)]
        assert lie.told
        assert_only_the_liar_was_replaced(envs)
    assert all(info["action"].shape == (NUM_ENVS, 2) for info in infos)


EVALUATIONS = {
    "too few slots": [[(1.0, 3)]],
    "too few episodes": [[], []],
    "too many episodes": [[(1.0, 3)] * 9, [(1.0, 3)] * 9],
    "no episodes": [None, None],
    "no numbers": [[("x", "y")], [("x", "y")]],
    "no pairs": [[1.0], [1.0]],
}


@pytest.mark.parametrize("values", EVALUATIONS.values(), ids=EVALUATIONS)
def test_a_lie_about_an_evaluation_ends_the_liar_alone(values):
    lie = instead_of(ValuesMade, changed(values=pack(values, allow_pickle=False)))
    with ran_with(lie, env=short_walks()) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=1)
        with pytest.raises(Exception, match=r"broke the protocol.*call it again"):
            envs.evaluate(policy, episodes=NUM_ENVS)
        assert lie.told
        assert envs.evaluate(policy, episodes=NUM_ENVS).slots.tolist() == list(range(NUM_ENVS))
        assert_only_the_liar_was_replaced(envs)
