"""What becomes of the slots of a lost worker: a row that says so, then a new start."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec
from gymnasium.vector import AutoresetMode

from clusterenv.errors import WorkerLostError
from clusterenv.head.batch import Batch
from clusterenv.head.crew import Crew
from clusterenv.head.exchange import Exchange
from clusterenv.head.flights import Flight, Loss
from clusterenv.head.roster import Member, Roster
from clusterenv.head.staffing import Staffing
from clusterenv.plain.values import pack, unpack
from clusterenv.wire.messages import (
    Call,
    Collect,
    Evaluate,
    Profile,
    Reset,
    SetAttr,
    Step,
    StepWithPolicy,
)

_log = logging.getLogger("clusterenv")
# What was lost with its worker is for the caller to ask again.
_UNREPEATABLE = Call | SetAttr | Evaluate | Profile


class Recovery:
    """Each lost slot gets one ``env_lost`` row, and starts over under a replacement.

    When it starts over depends on the autoreset mode: at the next step (NEXT_STEP), within the
    step that reports the loss (SAME_STEP), or when the user resets it (DISABLED).
    """

    def __init__(
        self,
        crew: Crew,
        roster: Roster,
        exchange: Exchange,
        staffing: Staffing,
        batch: Batch,
        autoreset_mode: AutoresetMode,
        ready: list[int],
    ) -> None:
        self._crew, self._roster, self._exchange = crew, roster, exchange
        self._staffing = staffing
        self._batch, self._mode, self._ready = batch, autoreset_mode, ready
        self._unreported: set[int] = set()
        self._to_restart: set[int] = set()
        self._seed = 0

    @property
    def has_lost_slots(self) -> bool:
        """Whether any slot needs more than a plain step."""
        return bool(self._unreported or self._to_restart)

    def forget(self, slots: Sequence[int], run_seed: int) -> None:
        """The user resets these slots: nothing is left to report or restart."""
        self._seed = run_seed
        self._unreported.difference_update(slots)
        self._to_restart.difference_update(slots)

    def restart_later(self, slots: Sequence[int]) -> None:
        """The reset of these slots was abandoned before their worker was there."""
        self._to_restart.update(slots)

    def moved(self, slots: Iterable[int]) -> None:
        """The envs of these slots are gone, since the slots were dealt to other workers."""
        self._unreported.update(set(slots) - self._to_restart)

    def lost(self, loss: Loss) -> Sequence[Flight]:
        """Replace the worker, or do without it, and answer for it.

        Returns:
            The requests to collect that have to be made again.
        """
        member = loss.member
        if loss.kind == "absent" and self._roster.can_do_without(member):
            return self._do_without(member, loss.flights)
        error = self._replace(loss)
        # Only now that it cannot write any more.
        for flight in loss.flights:
            self._batch.take_back(flight.slots, member.index, flight.request.request)
        if error is not None and self._roster.can_do_without(member):
            _log.warning("%s; its slots go to the other workers", error)
            return self._do_without(member, loss.flights)
        if error is not None:
            self._roster.incomplete = str(error)
            self._exchange.fail(error)
            return ()
        self._start_over(member.slots, loss.flights)
        if any(isinstance(flight.request, _UNREPEATABLE) for flight in loss.flights):
            self._exchange.fail(
                WorkerLostError(
                    f"{member.worker} replaces a worker that was lost during this call "
                    f"({loss.reason}): call it again"
                )
            )
        return _collects(loss.flights)

    def _replace(self, loss: Loss) -> WorkerLostError | None:
        """End the worker, and start another; or why there will be none."""
        try:
            self._crew.replace(loss.member, loss.reason, counts=loss.kind != "leaving")
        except WorkerLostError as error:
            return error
        return None

    def _do_without(self, absent: Member, flights: Sequence[Flight]) -> Sequence[Flight]:
        slots, voided = self._staffing.deal(self._roster.others(absent))
        self._start_over(slots, [*flights, *voided])
        return _collects([*flights, *voided])

    def _start_over(self, slots: Sequence[int], flights: Sequence[Flight]) -> None:
        """Repeat the resets among these flights; report the steps, now or with the next step."""
        starting_over = {
            slot
            for flight in flights
            if isinstance(flight.request, Reset | Collect)
            for slot in flight.slots
        }
        self.moved(set(slots) - starting_over)
        # Whoever collects again asks for a new start first.
        self._to_restart.update(slot for flight in _collects(flights) for slot in flight.slots)
        for flight in flights:
            if isinstance(flight.request, Reset):
                self._reset_again(flight)
        steps = [f for f in flights if isinstance(f.request, Step | StepWithPolicy)]
        self._report(sorted(slot for flight in steps for slot in flight.slots))

    def _reset_again(self, flight: Flight) -> None:
        reset = flight.request
        assert isinstance(reset, Reset)
        seeds = unpack(reset.seeds, allow_pickle=False) if reset.seeds else []
        for member, group, part in self._roster.split_by_member(flight.slots):
            own = pack(seeds[part], allow_pickle=False) if seeds else b""
            # A new id: one member may have to repeat the resets of several.
            request = self._exchange.new_request()
            again = msgspec.structs.replace(reset, request=request, slots=group, seeds=own)
            self._exchange.send(Flight(member, again, group, reports_loss=flight.reports_loss))

    def restart_lost(self, slots: Sequence[int]) -> None:
        """A policy is going to act in these slots: reset those that were lost meanwhile."""
        lost = [slot for slot in slots if slot in self._unreported | self._to_restart]
        self._unreported.difference_update(lost)
        self._restart(lost, reports_loss=False)

    def deal_with_lost(self, slots: Sequence[int]) -> Sequence[int]:
        """Report or restart what was lost among ``slots``; give back those that can be stepped."""
        if not self.has_lost_slots:
            return slots
        unreported = [slot for slot in slots if slot in self._unreported]
        waiting = [slot for slot in slots if slot in self._to_restart]
        if waiting and self._mode is AutoresetMode.DISABLED:
            raise AssertionError(
                f"the envs of slots {waiting} were lost and autoreset_mode is DISABLED: reset them "
                "first with reset(options={'reset_mask': info['env_lost']})"
            )
        self._report(unreported)
        self._restart(waiting, reports_loss=False)
        dealt_with = {*unreported, *waiting}
        return [slot for slot in slots if slot not in dealt_with]

    def _report(self, slots: Sequence[int]) -> None:
        self._unreported.difference_update(slots)
        if self._mode is AutoresetMode.SAME_STEP:
            for slot in slots:
                final = {"final_obs": self._batch.observation_of(slot), "final_info": {}}
                self._batch.infos.note(slot, {**final, "env_lost": True})
            self._restart(slots, reports_loss=True)
            return
        for slot in slots:
            self._batch.mark_lost(slot)
        self._to_restart.update(slots)
        self._ready.extend(slots)

    def _restart(self, slots: Sequence[int], *, reports_loss: bool) -> None:
        if not slots:
            return
        self._to_restart.difference_update(slots)
        request = self._exchange.new_request()
        for member, group, _ in self._roster.split_by_member(slots):
            seeds = [self._roster.next_seed(self._seed, slot) for slot in group]
            reset = Reset(request, group, seeds[0], pack(seeds, allow_pickle=False))
            self._exchange.send(Flight(member, reset, group, reports_loss=reports_loss))


def _collects(flights: Sequence[Flight]) -> Sequence[Flight]:
    return [flight for flight in flights if isinstance(flight.request, Collect)]
