"""Answers hosts that pull weights; while the user's thread computes, the I/O thread does so."""

from __future__ import annotations

from clusterenv.errors import ProtocolError
from clusterenv.head.publisher import Publisher
from clusterenv.head.remote_host import RemoteHost
from clusterenv.host.events import PullWanted
from clusterenv.sync.ledger import Ledger
from clusterenv.wire.driver import Driver
from clusterenv.wire.messages import Pull, Weights


class Pulls:
    """Sends the newest weights, and the policy if a host does not have it. Only while driving.

    Args:
        driver: Sends the answers.
        publisher: Has what hosts pull.
        ledger: Where latencies are recorded.
    """

    def __init__(self, driver: Driver, publisher: Publisher, ledger: Ledger) -> None:
        self._driver, self._publisher, self._ledger = driver, publisher, ledger

    def answer(self, host: RemoteHost, pull: Pull) -> None:
        """Send a host the weights that it asks for."""
        if not 0 <= pull.held <= self._publisher.version:
            raise ProtocolError(f"it holds version {pull.held}, which was never published")
        if self._publisher.newest is None:
            raise ProtocolError("it pulls before anything was published")
        host.note_pull()
        wanted = PullWanted(pull.policy_id, pull.held, pull.cause, pull.threshold, pull.version)
        encoded = self._publisher.encode_for(host.name, wanted)
        newest = encoded.publication
        policy, snapshot = newest.policy, newest.snapshot
        weights = Weights(
            policy.policy_id,
            newest.version,
            snapshot.checksum,
            encoded.encoding,
            pull.cause,
            encoded.base,
        )
        if pull.policy_id != policy.policy_id:
            self._driver.send(host.name, policy)
        self._driver.send(host.name, weights, [encoded.weights])

    def note_loaded(self, host: RemoteHost, seconds: float) -> None:
        """Note that a host has loaded what it asked for ``seconds`` ago."""
        host.note_pulled(seconds)
        self._ledger.record_latency(seconds)

    def forget(self, host: RemoteHost) -> None:
        """Forget a host that is gone."""
        self._publisher.forget(host.name)
