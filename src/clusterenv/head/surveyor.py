"""Watches how far the workers' copies drift, where the sync rule wants to know."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
from gymnasium import Space

from clusterenv.arrays import Array
from clusterenv.head.crew import Crew
from clusterenv.head.divergence import DivergenceMeter
from clusterenv.head.roster import Member, Roster
from clusterenv.head.stall_alarm import StallAlarm
from clusterenv.plain.spaces import leaves_of
from clusterenv.rollout import FragmentPart
from clusterenv.sync import SyncRule
from clusterenv.wire.messages import Measured


class Surveyor:
    """Feeds the meter with rows, and the ledger and the alarm with what it measures."""

    def __init__(self, rule: SyncRule, crew: Crew, roster: Roster) -> None:
        self._rule, self._crew, self._roster = rule, crew, roster
        self._alarm = StallAlarm()
        self._meter: DivergenceMeter | None = None
        self._action_space: Space[Any]

    def agree(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """The spaces are known."""
        self._action_space = action_space
        if self._rule.rows:
            self._meter = DivergenceMeter(self._rule, observation_space, action_space)

    @property
    def is_on(self) -> bool:
        """Whether the sync rule wants to know divergences."""
        return self._meter is not None

    def latest(self, member: Member) -> Measured | None:
        """What the member's worker is to be told."""
        return None if self._meter is None else self._meter.latest(member.index)

    def note_fragment(self, member: Member, part: FragmentPart) -> None:
        """A fragment has come back."""
        if self._meter is not None:
            self._meter.note_fragment(member.index, part)

    def note_step(self, member: Member, observations: list[Array], acted: dict[str, Any]) -> None:
        """A step with the policy has come back."""
        if self._meter is not None:
            actions = [leaf.of(acted["action"]) for leaf in leaves_of(self._action_space)]
            self._meter.note_step(member.index, observations, actions, acted)

    def survey(self, sparingly: bool) -> None:
        """There may be a new version: measure how far it is from what acts.

        ``sparingly`` where learners publish after every gradient step.
        """
        newest = self._crew.publisher.newest
        if self._meter is None or newest is None:
            return
        for place, survey in self._meter.measure(newest, sparingly).items():
            worker, measured = self._roster.members[place].worker, survey.measured
            self._crew.ledger.record_measurement(
                worker,
                newest=newest.version,
                realised=survey.realised,
                **msgspec.structs.asdict(measured),
            )
            if self._alarm.note(place, measured.held, measured.divergence):
                warnings.warn(
                    f"{worker} is {newest.version - measured.held} versions behind, and the "
                    f"divergence stays at {measured.divergence:.3g}: training seems frozen. "
                    "A loss that clips against the acting policy cannot leave it; set max_lag, "
                    "lower the threshold, or use clusterenv.learning.decoupled_loss",
                    stacklevel=4,
                )
