"""What was published last is handed out as a whole, and every pull is in the ledger."""

import numpy as np
import pytest

from clusterenv.head.publisher import Publisher
from clusterenv.host.events import PullWanted
from clusterenv.policies.copy import Received
from clusterenv.protocol.requests import Measured, Newest
from clusterenv.sync.ledger import Ledger
from clusterenv.sync.rules import EVALUATION, FIRST, VERSION


class PaperPacker:
    """Packs nothing, and says what it was given."""

    def pack(self, policy):
        return f"packed {policy.name}".encode()


class PaperPolicy:
    """Weights to publish."""

    def __init__(self, name="policy", **arrays):
        self.name = name
        self.arrays = arrays or {"a": np.zeros(1000, np.float32)}

    def weights(self):
        return self.arrays


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def make_publisher(ledger):
    return lambda encoding="raw": Publisher(ledger, encoding, PaperPacker())


def train(policy, amount=1.0):
    policy.arrays = {
        name: array + array.dtype.type(amount) for name, array in policy.arrays.items()
    }


def pull(held=0, cause=VERSION, policy_id=1):
    return PullWanted(policy_id, held, cause, 0.25)


# Publishing.


def test_nothing_was_published_at_first(make_publisher):
    publisher = make_publisher()
    assert publisher.version == 0
    assert publisher.newest is None
    assert publisher.news() == Newest(0, 0)


def test_every_change_is_a_version(make_publisher, ledger):
    publisher, policy = make_publisher(), PaperPolicy()
    assert publisher.publish(policy) == 1
    train(policy)
    assert publisher.publish(policy) == 2
    assert publisher.news() == Newest(1, 2)
    assert [(one.version, one.bytes) for one in ledger.versions] == [(1, 4000), (2, 4000)]


def test_equal_weights_are_no_version(make_publisher, ledger):
    publisher, policy = make_publisher(), PaperPolicy()
    publisher.publish(policy)
    policy.arrays = {name: array.copy() for name, array in policy.arrays.items()}
    assert publisher.publish(policy) == 1
    assert len(ledger.versions) == 1


def test_a_policy_that_comes_back_after_another_one_is_known_by_its_id(make_publisher):
    publisher = make_publisher()
    trained, evaluated, third = PaperPolicy("trained"), PaperPolicy("evaluated"), PaperPolicy("3rd")
    for policy, policy_id in [(trained, 1), (evaluated, 2), (trained, 1), (evaluated, 2)]:
        version = publisher.publish(policy)
        assert publisher.news() == Newest(policy_id, version)
    # Each change is one all the same: no rows of the policy before are believed.
    assert [publisher.policy_of(version) for version in range(1, 5)] == [1, 2, 3, 4]
    publisher.publish(third)
    assert publisher.news().policy_id == 3
    publisher.publish(trained)
    assert publisher.news().policy_id == 4


def test_a_policy_that_comes_back_with_another_layout_is_a_new_one(make_publisher):
    publisher, policy = make_publisher(), PaperPolicy("first")
    publisher.publish(policy)
    publisher.publish(PaperPolicy("second"))
    policy.arrays = {"b": np.zeros(3)}
    publisher.publish(policy)
    assert publisher.news().policy_id == 3


def test_another_policy_object_is_introduced_with_a_version_of_its_own(make_publisher):
    publisher, first, second = make_publisher(), PaperPolicy("first"), PaperPolicy("second")
    publisher.publish(first)
    train(first)
    publisher.publish(first)
    assert publisher.newest.policy.policy == b"packed first"
    assert publisher.newest.policy_since == 1
    # Even with weights that are the same to the last bit.
    second.arrays = dict(first.arrays)
    assert publisher.publish(second) == 3
    assert publisher.newest.policy.policy == b"packed second"
    assert publisher.newest.policy_since == 3
    assert publisher.news() == Newest(2, 3)


def test_what_was_only_evaluated_is_taken_back(make_publisher, ledger):
    publisher = make_publisher()
    trained, evaluated = PaperPolicy("trained"), PaperPolicy("evaluated")
    publisher.publish(trained)
    before = publisher.newest
    train(trained)
    publisher.take_back(publisher.publish(evaluated), before)
    assert publisher.newest.policy == before.policy
    assert publisher.newest.snapshot is before.snapshot
    assert publisher.version == publisher.newest.policy_since == 3
    assert publisher.policy_id_of(3) == publisher.policy_id_of(1)
    assert [version.version for version in ledger.versions] == [1, 2, 3]
    # And it is trained on.
    assert publisher.publish(trained) == 4
    assert publisher.newest.policy == before.policy


@pytest.mark.parametrize("by", ["trained", "third"])
def test_what_was_published_meanwhile_is_not_taken_back(make_publisher, by):
    publisher = make_publisher()
    policies = {name: PaperPolicy(name) for name in ("trained", "evaluated", "third")}
    publisher.publish(policies["trained"])
    before = publisher.newest
    version = publisher.publish(policies["evaluated"])
    publisher.publish(policies[by])
    newest = publisher.newest
    publisher.take_back(version, before)
    assert publisher.newest is newest


def test_weights_of_another_shape_are_refused_by_name(make_publisher):
    publisher, policy = make_publisher(), PaperPolicy(a=np.zeros(3), b=np.zeros(2))
    publisher.publish(policy)
    policy.arrays = {"a": np.zeros(4), "b": np.zeros(2)}
    with pytest.raises(ValueError, match=r"the weights \['a'\] have another name, dtype or shape"):
        publisher.publish(policy)
    assert publisher.version == 1


def test_what_was_measured_travels_with_the_news(make_publisher):
    publisher, measured = make_publisher(), Measured(1, 0.5, 0.1, 0.9)
    publisher.publish(PaperPolicy())
    assert publisher.news(measured) == Newest(1, 1, measured)


# Handing over, in this process.


def test_a_host_in_this_process_gets_the_newest_as_it_is(make_publisher, ledger):
    publisher, policy = make_publisher(), PaperPolicy()
    publisher.publish(policy)
    newest = publisher.hand_over("host-0.0", pull(cause=FIRST))
    assert newest is publisher.newest
    (record,) = ledger.pulls
    assert (record.host, record.version, record.held, record.cause) == ("host-0.0", 1, 0, FIRST)
    assert record.threshold == 0.25


def test_what_went_through_no_socket_is_counted_apart(make_publisher, ledger):
    publisher = make_publisher()
    publisher.publish(PaperPolicy())
    publisher.hand_over("host-0.0", pull())
    assert ledger.shared_bytes == 4000
    assert ledger.sync_bytes == 0
    assert ledger.pulls[0].bytes == 0


def test_what_was_handed_over_does_not_change_when_more_is_published(make_publisher):
    publisher, policy = make_publisher(), PaperPolicy()
    publisher.publish(policy)
    newest = publisher.hand_over("host-0.0", pull())
    before = bytes(newest.snapshot.vector)
    policy.arrays["a"][...] = 7.0
    publisher.publish(policy)
    assert newest.version == 1
    assert newest.snapshot.vector == before


# Encoding, for hosts behind a socket.


class PaperHost:
    """Pulls, and decodes what it gets, as a host on another machine does."""

    def __init__(self, publisher, name="host-0.0"):
        self.publisher, self.name, self.received = publisher, name, Received()
        self.held = {VERSION: 0, EVALUATION: 0}
        self.policy_id = 0

    def pull(self, cause=VERSION):
        wanted = PullWanted(self.policy_id, self.held[cause], cause, 0.0)
        encoded = self.publisher.encode_for(self.name, wanted)
        newest = encoded.publication
        # What is pulled for an evaluation is nothing that a difference starts from.
        received = Received() if cause == EVALUATION else self.received
        vector = received.decode(
            newest.policy.layout,
            newest.version,
            encoded.encoding,
            encoded.base,
            newest.snapshot.checksum,
            encoded.weights,
        )
        assert vector == newest.snapshot.vector
        self.held[cause], self.policy_id = newest.version, newest.policy.policy_id
        return encoded


@pytest.mark.parametrize("encoding", ["raw", "bf16", "delta"])
def test_hosts_decode_what_was_published(make_publisher, encoding):
    publisher, policy = make_publisher(encoding), PaperPolicy()
    host = PaperHost(publisher)
    for _ in range(4):
        train(policy)
        publisher.publish(policy)
        host.pull()
    assert host.held[VERSION] == 4


def test_a_difference_starts_from_what_the_host_was_sent_last(make_publisher, ledger):
    publisher, policy = make_publisher("delta"), PaperPolicy()
    host, late = PaperHost(publisher), PaperHost(publisher, "host-1.0")
    bases = []
    for version in range(1, 6):
        train(policy)
        publisher.publish(policy)
        bases.append(host.pull().base)
        if version == 3:
            assert late.pull().base == 0
    assert bases == [0, 1, 2, 3, 4]
    assert late.pull().base == 3
    sizes = [record.bytes for record in ledger.pulls if record.host == "host-0.0"]
    assert all(size < sizes[0] for size in sizes[1:])


def test_an_evaluation_in_between_does_not_break_the_differences(make_publisher):
    publisher, policy = make_publisher("delta"), PaperPolicy()
    host = PaperHost(publisher)
    for cause in (VERSION, EVALUATION, VERSION, VERSION, EVALUATION, VERSION):
        train(policy)
        publisher.publish(policy)
        host.pull(cause)
    assert host.held[VERSION] == 6


def test_a_host_that_does_not_have_what_it_was_sent_gets_everything(make_publisher):
    publisher, policy = make_publisher("delta"), PaperPolicy()
    host = PaperHost(publisher)
    for _ in range(2):
        publisher.publish(policy)
        host.pull()
        train(policy)
    publisher.publish(policy)
    # As if the answer had been lost on the way.
    publisher.encode_for(host.name, pull(held=2))
    assert publisher.encode_for(host.name, pull(held=2)).base == 0


def test_another_policy_is_sent_in_full(make_publisher):
    publisher, policy = make_publisher("delta"), PaperPolicy()
    host = PaperHost(publisher)
    publisher.publish(policy)
    host.pull()
    publisher.publish(PaperPolicy("other"))
    assert host.pull().base == 0


def test_a_host_that_is_gone_is_forgotten(make_publisher, ledger):
    publisher, policy = make_publisher("delta"), PaperPolicy()
    publisher.publish(policy)
    PaperHost(publisher).pull()
    publisher.forget("host-0.0")
    publisher.forget("never-there")
    train(policy)
    publisher.publish(policy)
    # Its successor of the same name has nothing.
    assert publisher.encode_for("host-0.0", pull(held=1)).base == 0
    assert publisher._held.keys() == {"host-0.0"}


def test_the_same_for_many_hosts_is_encoded_once(make_publisher):
    publisher, policy = make_publisher("delta"), PaperPolicy()
    publisher.publish(policy)
    first, second = (
        publisher.encode_for(f"host-{number}.0", pull(cause=FIRST)) for number in range(2)
    )
    assert first.weights is second.weights


def test_what_was_encoded_for_older_versions_is_not_kept(make_publisher):
    publisher, policy = make_publisher("delta"), PaperPolicy()
    host = PaperHost(publisher)
    for _ in range(10):
        train(policy)
        publisher.publish(policy)
        host.pull()
    assert len(publisher._encoded) == 1


def test_the_ledger_has_the_bytes_of_the_weights_as_encoded(make_publisher, ledger):
    publisher = make_publisher("bf16")
    publisher.publish(PaperPolicy())
    encoded = publisher.encode_for("host-0.0", pull(cause=FIRST))
    (record,) = ledger.pulls
    assert record.bytes == len(encoded.weights) == 2000
    assert ledger.shared_bytes == 0


def named(version):
    return PullWanted(1, 0, VERSION, 0.0, version)


def test_a_version_that_was_promised_is_handed_over_until_two_others_were(make_publisher):
    publisher, policy = make_publisher(), PaperPolicy()
    for _ in range(4):
        train(policy)
        publisher.publish(policy)
        publisher.promise()
        publisher.promise()
    assert publisher.hand_over("host-0.0", named(3)).version == 3
    assert publisher.hand_over("host-0.0", named(4)).version == 4
    # The next that there is, where that one is gone.
    assert publisher.hand_over("host-0.0", named(1)).version == 3
    train(policy)
    publisher.publish(policy)
    assert publisher.hand_over("host-0.0", named(0)).version == 5


def test_who_wants_a_version_gets_none_of_another_policy(make_publisher):
    publisher, policy = make_publisher(), PaperPolicy()
    for _ in range(3):
        train(policy)
        publisher.publish(policy)
        publisher.promise()
    publisher.publish(PaperPolicy("other"))
    assert publisher.hand_over("host-0.0", named(1)).version == 2
