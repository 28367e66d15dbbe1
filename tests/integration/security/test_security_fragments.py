"""What a worker says its policy did is checked before it is joined with what others did."""

import msgspec
import numpy as np
import pytest

from clusterenv.plain.values import pack
from clusterenv.wire.codec import frame_of, header_of
from clusterenv.wire.messages import Collected, Stepped
from tests import inside
from tests.contract.policies import numpy_policy
from tests.integration.security.liars import (
    NUM_ENVS,
    assert_only_the_liar_was_replaced,
    instead_of,
    ran_with,
)

replace = msgspec.structs.replace


def named(change):
    """A lie about a fragment: `change` gets its arrays by name."""

    def make(message, frames):
        arrays = {
            name: np.frombuffer(bytes(frame), header.dtype).reshape(header.shape)
            for name, header, frame in zip(message.names, message.arrays, frames, strict=True)
        }
        change(arrays)
        headers = tuple(map(header_of, arrays.values()))
        lie = replace(message, names=tuple(arrays), arrays=headers)
        return [(lie, [frame_of(array) for array in arrays.values()])]

    return make


def setting(name, change):
    return named(lambda arrays: arrays.update({name: change(arrays[name])}))


FRAGMENT_LIES = {
    "without rewards": named(lambda arrays: arrays.pop("rewards")),
    "of fewer steps": setting("rewards", lambda array: array[1:]),
    "rewards of another dtype": setting("rewards", lambda array: array.astype("<f4")),
    "observations of another shape": setting("observations/0", lambda array: array[..., :1]),
    "observations that are times": setting("observations/0", lambda array: array.view("<M8[s]")),
    "actions of another shape": setting("actions/0", lambda array: array[:, :1]),
    "log-probabilities of another shape": setting("outputs/log_prob", lambda a: a[0]),
    "finals of another's slot": setting("finals/slots", lambda array: np.zeros(1, np.int64)),
    "too few names": lambda message, frames: [(replace(message, names=message.names[1:]), frames)],
    "of no version": lambda message, frames: [(replace(message, version=99), frames)],
    "rows instead": lambda message, frames: [(Stepped(message.request), ())],
    "twice": lambda message, frames: [(message, frames), (message, frames)],
}


@pytest.mark.parametrize("make", FRAGMENT_LIES.values(), ids=FRAGMENT_LIES)
def test_a_lie_in_a_fragment_ends_the_liar_alone(make):
    lie = instead_of(Collected, make)
    with ran_with(lie) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=1)
        rollouts = [envs.rollout(policy, num_steps=5) for _ in range(3)]
        assert lie.told
        assert_only_the_liar_was_replaced(envs)
    for rollout in rollouts:
        assert rollout.rewards.shape == (5, NUM_ENVS)


DISAGREEMENTS = {
    "without an output": named(lambda arrays: arrays.pop("outputs/log_prob")),
    "with an output of its own": named(lambda a: a.update({"outputs/odd": a["rewards"]})),
    "no values": named(lambda arrays: [arrays.pop(n) for n in ("last_values", "finals/values")]),
}


@pytest.mark.parametrize("make", DISAGREEMENTS.values(), ids=DISAGREEMENTS)
def test_of_two_fragments_that_do_not_fit_together_the_later_one_is_refused(make):
    lie = instead_of(Collected, make)
    with ran_with(lie) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=1)
        rollouts = [envs.rollout(policy, num_steps=5) for _ in range(3)]
        assert lie.told
        assert_one_was_replaced(envs)
    assert [rollout.rewards.shape for rollout in rollouts] == [(5, NUM_ENVS)] * 3


def assert_one_was_replaced(envs):
    workers = inside.worker_names(envs)
    assert len(set(workers) & {"worker-0.0", "worker-1.0"}) == 1


ACTED_LIES = {
    "nothing": None,
    "a list": [],
    "without actions": {"version": np.ones(2, np.int64)},
    "too few rows": {"action": np.zeros((1, 2)), "version": np.ones(2, np.int64)},
    "no arrays": {"action": np.zeros((2, 2)), "version": 1},
    "of no version": {"action": np.zeros((2, 2)), "version": np.full(2, 99)},
    "another structure": {"action": {"a": np.zeros((2, 2))}, "version": np.ones(2, np.int64)},
    "less than others": {"action": np.zeros((2, 2)), "version": np.ones(2, np.int64)},
}


@pytest.mark.parametrize("acted", ACTED_LIES.values(), ids=ACTED_LIES)
def test_a_lie_about_what_a_policy_did_ends_the_liar_alone(acted):
    data = pack(acted, allow_pickle=False)
    lie = instead_of(Stepped, lambda message, frames: [(replace(message, acted=data), frames)])
    with ran_with(lambda m, f: lie(m, f) if getattr(m, "acted", b"") else None) as envs:
        policy = numpy_policy(envs)
        envs.reset(seed=1)
        infos = [envs.step(policy)[-1] for _ in range(4)]
        assert lie.told
        assert_one_was_replaced(envs)
    assert all(info["action"].shape == (NUM_ENVS, 2) for info in infos)
