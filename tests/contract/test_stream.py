"""Fragments as they finish: in order, bounded, and never held up by other workers."""

import threading
from collections import Counter
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests import inside
from tests.contract.policies import change, distribution_of, numpy_policy
from tests.contract.replay import Lives, arrays_of, assert_same_fragment, episodes_of
from tests.contract.transports import (
    PROCESSES,
    TRANSPORTS,
    assert_are_of_whole_workers,
    cluster_env,
)
from tests.environments.counting import Count, Swell
from tests.environments.faults import GateEnv
from tests.integration.polling import eventually

NUM_ENVS = 5
WORKERS = 2
SEED = 40
T = 7


@pytest.fixture(scope="module", params=TRANSPORTS)
def live(request, tmp_path_factory):
    """Envs that count their steps in a file, and that file."""
    trace = tmp_path_factory.mktemp("steps") / "trace"
    trace.touch()
    make = partial(Count, trace=str(trace))
    with cluster_env(request.param, make, NUM_ENVS, WORKERS) as envs:
        yield envs, trace


@pytest.fixture
def envs(live):
    envs, _ = live
    envs.reset(seed=SEED)
    envs.publish(numpy_policy(envs))
    return envs


@pytest.fixture
def num_steps_of_envs(live):
    """How many steps the envs have made since the test began."""
    _, trace = live
    before = trace.stat().st_size
    return lambda: trace.stat().st_size - before


def test_each_workers_fragments_continue_each_other(envs):
    lives, fragments, seen = Lives(Count, NUM_ENVS, SEED), [], Counter()
    with closing(envs.stream(T)) as stream:
        # On a busy machine one worker may be far ahead of the other.
        for fragment in islice(stream, 5000):
            fragments.append(fragment)
            seen.update(fragment.slots.tolist())
            if len(fragments) >= 24 and min(seen[slot] for slot in range(NUM_ENVS)) >= 4:
                break
    assert min(seen[slot] for slot in range(NUM_ENVS)) >= 4
    for fragment in fragments:
        assert_are_of_whole_workers(fragment.slots, envs)
        assert fragment.rewards.shape == fragment.versions.shape == (T, len(fragment.slots))
        lives.assert_lived(fragment)
    assert episodes_of(fragments) == lives.episodes()
    assert all(lives.ends)


def test_a_stream_goes_on_where_a_rollout_ended(envs):
    lives = Lives(Count, NUM_ENVS, SEED)
    lives.assert_lived(envs.rollout(numpy_policy(envs), 11))
    with closing(envs.stream(T)) as stream:
        for fragment in islice(stream, 6):
            lives.assert_lived(fragment)


def test_fragments_are_the_callers_own(envs):
    lives = Lives(Count, NUM_ENVS, SEED)
    with closing(envs.stream(T)) as stream:
        for fragment in islice(stream, 8):
            lives.assert_lived(fragment)
            named = arrays_of(fragment)
            for name, array in named.items():
                assert array.flags.writeable, name
                array[...] = 0
            each = {id(array): array for array in named.values() if array.size}.values()
            assert not any(np.shares_memory(a, b) for a in each for b in each if a is not b)


def learn_slowly(stream, num_steps_of_envs, in_flight):
    """Take fragments, each only when every worker has done all that it may do ahead of that."""
    wanted, ahead = 0, in_flight * NUM_ENVS * T
    for fragment in islice(stream, 24):
        wanted += len(fragment.slots) * T
        expected = wanted + ahead
        assert eventually(lambda: num_steps_of_envs() >= expected)
        yield fragment, expected


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_a_slow_learner_bounds_what_is_in_flight(envs, num_steps_of_envs, in_flight):
    with closing(envs.stream(T, in_flight)) as stream:
        for _, expected in learn_slowly(stream, num_steps_of_envs, in_flight):
            assert num_steps_of_envs() == expected
            assert inside.num_fragments_on_their_way(envs) <= in_flight * len(envs.workers)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_a_slow_learner_gets_each_workers_fragments_in_order(transport, in_flight, tmp_path):
    """Also where a large one has to take another way than the small ones around it."""
    trace = tmp_path / "trace"
    trace.touch()
    make, lives = partial(Swell, T, trace=str(trace)), Lives(partial(Swell, T), NUM_ENVS, SEED)
    with cluster_env(transport, make, NUM_ENVS, WORKERS) as envs:
        envs.reset(seed=SEED)
        envs.publish(numpy_policy(envs))
        with closing(envs.stream(T, in_flight)) as stream:
            for fragment, _ in learn_slowly(stream, lambda: trace.stat().st_size, in_flight):
                lives.assert_lived(fragment)


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_slow_worker_does_not_hold_up_the_fragments_of_others(transport, tmp_path):
    gate, no_gate = tmp_path / "gate", Path("/")
    makers = [partial(GateEnv, str(path), "step") for path in (no_gate, no_gate, gate, gate)]
    with cluster_env(transport, makers, num_workers=2) as envs:
        envs.publish(numpy_policy(envs))
        with closing(envs.stream(T)) as stream:
            assert all(set(next(stream).slots) <= {0, 1} for _ in range(10))
            gate.touch()
            assert any(2 in fragment.slots for fragment in islice(stream, 10_000))


@pytest.mark.always_on_four_hosts
def test_publishing_from_another_thread_reaches_the_stream(envs):
    policy = numpy_policy(envs)
    first = envs.publish(policy)
    weights = {first: {name: array.copy() for name, array in policy.weights().items()}}

    def learn():
        for number in range(50):
            changed = change(policy, seed=number + 1)
            weights[envs.publish(policy)] = changed

    learner = threading.Thread(target=learn)
    seen = []
    with closing(envs.stream(T)) as stream:
        for fragment in stream:
            if not seen:
                learner.start()
            seen.append(fragment)
            if (fragment.versions == first + 50).all():
                break
    learner.join()
    assert sorted(weights) == list(range(first, first + 51))
    for fragment in seen:
        acted = distribution_of(
            envs.single_action_space, weights[fragment.versions[0, 0]], fragment.observations[0]
        )
        recorded = fragment.outputs["log_prob"][0]
        assert np.allclose(acted.log_prob(fragment.actions[0]), recorded)


def test_a_seeded_stream_of_one_worker_repeats():
    with cluster_env("in-process", Count, 3, 1) as envs:
        envs.publish(numpy_policy(envs))
        runs = []
        for _ in range(2):
            envs.reset(seed=SEED)
            with closing(envs.stream(T)) as stream:
                runs.append(list(islice(stream, 5)))
    for fragment, again in zip(*runs, strict=True):
        assert_same_fragment(again, fragment)
