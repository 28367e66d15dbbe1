"""What becomes of the slots of a lost worker: a row that says so, then a new start."""

from __future__ import annotations

from collections.abc import Sequence

from gymnasium.vector import AutoresetMode

from clusterenv.errors import WorkerLostError
from clusterenv.head.batch import Batch
from clusterenv.head.crew import Crew
from clusterenv.head.exchange import Exchange, Flight, Loss
from clusterenv.head.roster import Roster, restart_seed
from clusterenv.wire.messages import Collect, Reset, Step, StepWithPolicy
from clusterenv.wire.values import pack


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
        batch: Batch,
        autoreset_mode: AutoresetMode,
        ready: list[int],
    ) -> None:
        self._crew, self._roster, self._exchange = crew, roster, exchange
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

    def lost(self, loss: Loss) -> None:
        """Replace the worker, and answer for it."""
        try:
            self._crew.replace(loss.member, loss.reason, counts=not loss.is_orderly)
        except WorkerLostError as error:
            self._exchange.fail(error)
            return
        steps = [f for f in loss.flights if isinstance(f.request, Step | StepWithPolicy)]
        resets = [flight for flight in loss.flights if isinstance(flight.request, Reset)]
        rollouts = [flight for flight in loss.flights if isinstance(flight.request, Collect)]
        starting_over = {slot for flight in resets + rollouts for slot in flight.slots}
        self._unreported.update(set(loss.member.slots) - starting_over - self._to_restart)
        for flight in resets:
            self._exchange.send(flight)
        if rollouts:
            self._restart(rollouts[0].slots, reports_loss=False)
        for flight in rollouts:
            self._exchange.send(flight)
        self._report(sorted(slot for flight in steps for slot in flight.slots))
        if len(steps) + len(resets) + len(rollouts) < len(loss.flights):
            self._exchange.fail(
                WorkerLostError(
                    f"{self._roster.members[loss.member.index].worker} replaces a worker that was "
                    f"lost during this call ({loss.reason}): call it again"
                )
            )

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
                self._batch.put_infos([(slot, {**final, "env_lost": True})])
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
            seeds = [restart_seed(self._seed, slot, member.incarnation) for slot in group]
            reset = Reset(request, group, seeds[0], pack(seeds, allow_pickle=False))
            self._exchange.send(Flight(member, reset, group, reports_loss=reports_loss))
