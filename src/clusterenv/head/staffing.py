"""Which workers own which slots: dealt at the start, and again as workers come and stay away."""

from __future__ import annotations

from collections.abc import Sequence

from gymnasium.vector import AutoresetMode

from clusterenv.backends.base import Backend
from clusterenv.head.crew import Crew
from clusterenv.head.exchange import Exchange
from clusterenv.head.flights import Flight
from clusterenv.head.roster import Member, Roster
from clusterenv.sync import SyncRule
from clusterenv.wire.messages import Build
from clusterenv.wire.parcels import Packer


class Blueprint:
    """What workers are to build."""

    def __init__(
        self,
        backend: Backend,
        autoreset_mode: AutoresetMode,
        sync_rule: SyncRule,
        trusted: bool,
        packer: Packer,
    ) -> None:
        self._backend, self._mode, self._trusted = backend, autoreset_mode, trusted
        self._packer, self._sync_rule = packer, packer.pack(sync_rule)

    def build_for(self, member: Member) -> Build | None:
        """For a member's worker; None if it has no slots."""
        if not member.slots:
            return None
        return Build(
            slots=member.slots,
            backend=self._packer.pack(self._backend.for_slots(member.slots), with_env_ids=True),
            autoreset_mode=self._mode.value,
            sync_rule=self._sync_rule,
            search_path=self._packer.search_path,
            trusted=self._trusted,
            deal=member.deal,
            working_directory=self._packer.working_directory,
            place=member.index,
        )


class Staffing:
    """Deals the slots, and tells the workers."""

    def __init__(self, roster: Roster, crew: Crew, exchange: Exchange) -> None:
        self._roster, self._crew, self._exchange = roster, crew, exchange
        self.num_deals = 0

    def arrivals(self) -> list[Member]:
        """Members without slots whose workers have come."""
        if len(self._roster.staffed) == len(self._roster.members):
            return []
        here = self._crew.reception.is_here
        return [m for m in self._roster.members if not m.slots and here(m.worker)]

    def deal(
        self, present: Sequence[Member], speeds: Sequence[float] = ()
    ) -> tuple[list[int], list[Flight]]:
        """Deal all slots to these members.

        Returns:
            The slots whose envs are gone with it, and what their workers were doing.
        """
        changed = self._roster.deal(present, speeds)
        self.num_deals += 1
        flights = [flight for member in changed for flight in self._exchange.cancel(member)]
        for member in changed:
            self._exchange.description_by_member.pop(member.index, None)
            self._crew.reassign(member)
        return [slot for member in changed for slot in member.slots], flights
