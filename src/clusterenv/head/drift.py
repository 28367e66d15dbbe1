"""Watches how far the hosts' copies drift, if the sync rule asks for it."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
from gymnasium import Space

from clusterenv.arrays import Array
from clusterenv.head.divergence import Accuse, DivergenceMeter
from clusterenv.head.fleet import Host
from clusterenv.head.publisher import Publisher
from clusterenv.head.stall_alarm import StallAlarm
from clusterenv.plain.spaces import leaves_of
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Newest
from clusterenv.sync.ledger import Ledger
from clusterenv.sync.rules import SyncRule


class Drift:
    """Feeds the meter with rows, and the ledger and the alarm with its measurements."""

    def __init__(
        self,
        rule: SyncRule,
        observation_space: Space[Any],
        action_space: Space[Any],
        publisher: Publisher,
        ledger: Ledger,
        accuse: Accuse,
    ) -> None:
        self._publisher, self._ledger, self._action_space = publisher, ledger, action_space
        self._alarm = StallAlarm()
        self._meter: DivergenceMeter | None = None
        if rule.rows:
            self._meter = DivergenceMeter(rule, observation_space, action_space, accuse)

    @property
    def is_measured(self) -> bool:
        """Whether the sync rule uses divergences."""
        return self._meter is not None

    def news_for(self, host: Host) -> Newest:
        """The news to send to this host."""
        measured = None if self._meter is None else self._meter.latest(host.name)
        return self._publisher.news(measured)

    def note_fragment(self, host: Host, part: FragmentPart) -> None:
        """Take the rows of a fragment that has come back."""
        if self._meter is not None:
            self._meter.note_fragment(host.name, len(host.slots), part)

    def note_step(
        self, host: Host, first_slot: int, observations: list[Array], acted: dict[str, Any]
    ) -> None:
        """Take the rows of a step with the policy that has come back."""
        if self._meter is not None:
            actions = [leaf.of(acted["action"]) for leaf in leaves_of(self._action_space)]
            self._meter.note_step(host.name, first_slot, observations, actions, acted)

    def forget(self, host: Host) -> None:
        """Forget a host that is gone."""
        if self._meter is not None:
            self._meter.forget(host.name)

    def measure(self, sparingly: bool) -> None:
        """Measure how far the newest version, if there is one, is from the copies that act.

        ``sparingly`` is for learners that publish after every gradient step.
        """
        newest = self._publisher.newest
        if self._meter is None or newest is None:
            return
        for host, survey in self._meter.measure(newest, sparingly).items():
            measured = survey.measured
            self._ledger.record_measurement(
                host,
                newest=newest.version,
                realised=survey.realised,
                **msgspec.structs.asdict(measured),
            )
            if self._alarm.note(host, measured.held, measured.divergence):
                frozen = (
                    f"{host} is {newest.version - measured.held} versions behind, and the "
                    f"divergence stays at {measured.divergence:.3g}: training seems frozen. "
                    "A loss that clips against the acting policy cannot leave it; set max_lag, "
                    "lower the threshold, or use clusterenv.learning.decoupled_loss"
                )
                self._ledger.record_warning(frozen)
                warnings.warn(frozen, stacklevel=4)
