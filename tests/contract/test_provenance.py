"""Every step says which version acted, and carries the log-prob of the weights that were used."""

import threading
from collections import defaultdict
from contextlib import closing
from itertools import islice

import numpy as np
import pytest

from clusterenv import EveryNth, EveryVersion
from tests.contract.policies import change, distribution_of, numpy_policy
from tests.contract.transports import TRANSPORTS, cluster_env, hosts_of, weight_bytes

NUM_ENVS = 5
WORKERS = 2
PUBLISHES = 12


class Learner:
    """Publishes other weights each time, and remembers which version they became."""

    def __init__(self, envs):
        self.envs, self.policy = envs, numpy_policy(envs)
        self.weights = {}

    def publish(self):
        weights = change(self.policy, seed=len(self.weights))
        version = self.envs.publish(self.policy)
        self.weights[version] = weights
        return version

    def rollout(self, num_steps=7):
        version = self.publish()
        rollout = self.envs.rollout(self.policy, num_steps)
        assert self.envs.publish(self.policy) == version
        return rollout

    def log_probs(self, fragment, version):
        """What the policy of `version` gives for the recorded observations and actions."""
        space = self.envs.single_action_space
        rows = zip(fragment.observations, fragment.actions, strict=False)
        weights = self.weights[version]
        return np.array([distribution_of(space, weights, o).log_prob(a) for o, a in rows])

    def assert_acted(self, fragment):
        """Fail unless each column's log-probs are those of its version, and of no other."""
        for column, version in enumerate(fragment.versions[0]):
            assert (fragment.versions[:, column] == version).all()
            recorded = fragment.outputs["log_prob"][:, column]
            fits = {
                other: np.allclose(self.log_probs(fragment, other)[:, column], recorded)
                for other in self.weights
            }
            assert [other for other, fit in fits.items() if fit] == [version]


@pytest.fixture
def every_version(envs):
    """A new learner, whose hosts pull always; versions go on where the last one stopped."""
    return Learner(envs)


@pytest.fixture(params=TRANSPORTS)
def every_third(request):
    with cluster_env(request.param, "CartPole-v1", NUM_ENVS, WORKERS, sync=EveryNth(3)) as envs:
        yield Learner(envs)


def test_log_probs_are_those_of_the_version_that_acted(every_version):
    before = every_version.publish()
    for number in range(1, PUBLISHES + 1):
        rollout = every_version.rollout()
        assert (rollout.versions == before + number).all()
        every_version.assert_acted(rollout)


def test_a_host_that_lags_says_which_older_version_acted(every_third):
    for version in range(1, PUBLISHES + 1):
        rollout = every_third.rollout()
        assert (rollout.versions == 3 * ((version - 1) // 3) + 1).all()
        every_third.assert_acted(rollout)


def test_a_host_that_is_behind_pulls_the_newest_version_and_not_the_next(every_version):
    every_version.rollout()
    for _ in range(5):
        newest = every_version.publish()
    rollout = every_version.envs.rollout(every_version.policy, 4)
    assert (rollout.versions == newest).all()
    every_version.assert_acted(rollout)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("sync", [EveryVersion(), EveryNth(3)])
def test_fragments_of_a_stream_say_which_version_acted_while_others_are_published(transport, sync):
    with cluster_env(transport, "CartPole-v1", NUM_ENVS, WORKERS, sync=sync) as envs:
        learner, versions = Learner(envs), defaultdict(set)
        learner.publish()
        with closing(envs.stream(num_steps=5)) as stream:
            for fragment in islice(stream, 40):
                learner.assert_acted(fragment)
                for slot, version in zip(fragment.slots, fragment.versions[0], strict=True):
                    versions[slot].add(version)
                learner.publish()
        for held in versions.values():
            assert (np.diff(sorted(held)) >= sync.n).all()


def test_a_stream_catches_up_when_publishing_ends(every_version):
    every_version.publish()
    with closing(every_version.envs.stream(num_steps=5, in_flight=2)) as stream:
        for _ in range(10):
            every_version.assert_acted(next(stream))
            newest = every_version.publish()
        # Of each slot, two fragments may have been begun before the last publish.
        late = defaultdict(list)
        while len(late) < NUM_ENVS or min(map(len, late.values())) < 4:
            fragment = next(stream)
            every_version.assert_acted(fragment)
            for slot, version in zip(fragment.slots, fragment.versions.min(0), strict=True):
                late[slot].append(version)
    assert all(min(versions[-2:]) == newest for versions in late.values())


def test_weights_that_change_while_they_are_pulled_are_never_seen_half(every_version):
    """The learner trains on in the very arrays that it published."""
    every_version.publish()
    stop = threading.Event()
    arrays = every_version.policy.weights()

    def train():
        rng = np.random.default_rng(9)
        while not stop.is_set():
            for array in arrays.values():
                array[...] = rng.normal(size=array.shape)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        with closing(every_version.envs.stream(num_steps=5)) as stream:
            fragments = list(islice(stream, 20))
    finally:
        stop.set()
        trainer.join()
    for fragment in fragments:
        every_version.assert_acted(fragment)


def test_bit_equal_weights_are_no_new_version_and_move_no_bytes(every_version):
    before = weight_bytes(every_version.envs)
    first = every_version.rollout()
    moved = weight_bytes(every_version.envs)
    assert moved > before
    for _ in range(3):
        again = every_version.envs.rollout(every_version.policy, 7)
        assert np.array_equal(again.versions, first.versions)
    assert weight_bytes(every_version.envs) == moved


def test_each_host_pulls_each_version_once(every_version):
    hosts = len(hosts_of(every_version.envs))
    vector_bytes = sum(array.nbytes for array in every_version.policy.weights().values())
    moved = [weight_bytes(every_version.envs)]
    for _ in range(4):
        every_version.rollout()
        moved.append(weight_bytes(every_version.envs))
    for pulled in np.diff(moved):
        # The vector, and through a socket a header of a few numbers.
        assert hosts * vector_bytes <= pulled < hosts * (vector_bytes + 40)


def test_a_skipped_pull_moves_no_weight_bytes(every_third):
    moved = [0]
    for _ in range(7):
        every_third.rollout()
        moved.append(weight_bytes(every_third.envs))
    assert [pulled > 0 for pulled in np.diff(moved)] == [True, False, False] * 2 + [True]


def test_publishing_moves_no_bytes(every_version):
    every_version.rollout()
    before, ledger = weight_bytes(every_version.envs), every_version.envs.ledger
    moved = ledger.bytes_by_kind
    for _ in range(20):
        every_version.publish()
    assert ledger.bytes_by_kind == moved
    assert weight_bytes(every_version.envs) == before


def test_a_step_with_a_policy_uses_and_pulls_the_newest_version(every_version):
    envs = every_version.envs
    observations, _ = envs.reset(seed=0)
    for _ in range(5):
        version = every_version.publish()
        before = weight_bytes(every_version.envs)
        following, *_, infos = envs.step(every_version.policy)
        distribution = distribution_of(
            envs.single_action_space, every_version.weights[version], observations
        )
        assert np.allclose(infos["log_prob"], distribution.log_prob(infos["action"]))
        assert weight_bytes(every_version.envs) > before
        observations = following


def test_two_policies_that_take_turns_are_told_apart(every_version):
    policies = every_version.policy, numpy_policy(every_version.envs)
    for turn in range(6):
        every_version.policy = policies[turn % 2]
        every_version.assert_acted(every_version.rollout())


def test_the_ledger_names_host_version_and_cause_of_every_pull(every_third):
    for _ in range(4):
        every_third.rollout()
    pulls = every_third.envs.ledger.pulls
    assert sorted((pull.host, pull.version, pull.cause) for pull in pulls) == [
        (host, version, cause)
        for host in hosts_of(every_third.envs)
        for version, cause in [(1, "first"), (4, "version")]
    ]


def test_the_ledger_says_how_often_each_host_pulled_and_what_it_holds(every_third):
    for _ in range(4):
        every_third.rollout()
    ledger, hosts = every_third.envs.ledger, hosts_of(every_third.envs)
    assert ledger.pulls_by_host == dict.fromkeys(hosts, 2)
    assert ledger.held_by_host == dict.fromkeys(hosts, 4)
