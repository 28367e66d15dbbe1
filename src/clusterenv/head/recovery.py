"""What becomes of lost slots: a row that says so, then a new start.

It makes no difference whether a worker was lost, a whole host, or the slots moved to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv.head.asking import Asking
from clusterenv.head.batch import Batch
from clusterenv.host.events import Voided
from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.requests import Act, Collect, Reset, Step


class Recovery:
    """Each lost slot gets one ``env_lost`` row, and starts over.

    When it starts over depends on the autoreset mode: at the next step (NEXT_STEP), within the
    step that reports the loss (SAME_STEP), or when the user resets it (DISABLED).
    """

    def __init__(
        self, asking: Asking, batch: Batch, autoreset_mode: AutoresetMode, ready: list[int]
    ) -> None:
        self._asking, self._batch, self._mode, self._ready = asking, batch, autoreset_mode, ready
        self._unreported: set[int] = set()
        self._to_restart: set[int] = set()
        self._seed = 0
        self._incarnations: dict[int, int] = {}

    @property
    def has_lost_slots(self) -> bool:
        """Whether any slot needs more than a plain step."""
        return bool(self._unreported or self._to_restart)

    def forget(self, slots: Sequence[int], run_seed: int) -> None:
        """The user resets these slots: nothing is left to report or restart."""
        self._seed = run_seed
        self._unreported.difference_update(slots)
        self._to_restart.difference_update(slots)

    def restart_later(self, slots: Iterable[int]) -> None:
        """The reset of these slots was abandoned before anybody began with it."""
        self._to_restart.update(slots)

    def lost(self, slots: Iterable[int], voided: Sequence[Voided]) -> list[Voided]:
        """The envs of these slots are gone, and these requests with them.

        Resets are repeated; steps are answered with a row that says what happened, now or with the
        next step.

        Returns:
            The fragments that have to be collected again.
        """
        collects = [one for one in voided if isinstance(one.request, Collect)]
        resets = [one for one in voided if isinstance(one.request, Reset)]
        steps = [one for one in voided if isinstance(one.request, Step | Act)]
        starting_over = {slot for one in (*collects, *resets) for slot in one.slots}
        self._unreported.update(set(slots) - starting_over - self._to_restart)
        # Whoever collects again asks for a new start first.
        self._to_restart.update(slot for one in collects for slot in one.slots)
        for one in resets:
            self._reset_again(one)
        self._report(sorted({slot for one in steps for slot in one.slots}))
        return collects

    def _reset_again(self, voided: Voided) -> None:
        reset = voided.request
        assert isinstance(reset, Reset)
        seeds = b""
        if reset.seeds:
            by_slot = dict(zip(reset.slots, unpack(reset.seeds, allow_pickle=False), strict=True))
            seeds = pack([by_slot[slot] for slot in voided.slots], allow_pickle=False)
        number = self._asking.new_number()
        again = msgspec.structs.replace(reset, request=number, slots=voided.slots, seeds=seeds)
        self._asking.ask(again)

    def restart_lost(self, slots: Iterable[int]) -> None:
        """A policy is going to act in these slots: reset those that were lost meanwhile."""
        lost = [slot for slot in slots if slot in self._unreported or slot in self._to_restart]
        self._unreported.difference_update(lost)
        self._restart(lost, reports_loss=False)

    def deal_with_lost(self, slots: Sequence[int]) -> Sequence[int]:
        """Report or restart what was lost among ``slots``; give back those that can be stepped."""
        if not self.has_lost_slots:
            return slots
        unreported = [slot for slot in slots if slot in self._unreported]
        waiting = [slot for slot in slots if slot in self._to_restart - self._unreported]
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
        seeds = [self._next_seed(slot) for slot in slots]
        packed = pack(seeds, allow_pickle=False)
        number = self._asking.new_number()
        reset = Reset(number, tuple(slots), seeds[0], packed, reports_loss=reports_loss)
        self._asking.ask(reset)

    def _next_seed(self, slot: int) -> int:
        """The seed with which this slot starts over, another each time."""
        self._incarnations[slot] = self._incarnations.get(slot, 0) + 1
        return restart_seed(self._seed, slot, self._incarnations[slot])


def restart_seed(run_seed: int, slot: int, incarnation: int) -> int:
    """The seed of a slot that starts over."""
    return int(np.random.SeedSequence((run_seed, slot, incarnation)).generate_state(1)[0])
