"""Recovers lost slots: each gets a row that reports the loss, and then starts over.

It does not matter whether a worker was lost, a whole host, or the slots moved to another host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv.head.batch import Batch
from clusterenv.head.host_requests import HostRequests
from clusterenv.host.events import Voided
from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.requests import Act, Collect, Reset, Step


class Recovery:
    """Each lost slot gets one ``env_lost`` row, and starts over.

    When it starts over depends on the autoreset mode: at the next step (NEXT_STEP), within the
    step that reports the loss (SAME_STEP), or when the user resets it (DISABLED).
    """

    def __init__(
        self, asking: HostRequests, batch: Batch, autoreset_mode: AutoresetMode, ready: list[int]
    ) -> None:
        self._asking, self._batch, self._mode, self._ready = asking, batch, autoreset_mode, ready
        self._unreported: set[int] = set()
        self._to_restart: set[int] = set()
        self._seed = 0
        self._incarnations: dict[int, int] = {}
        self._last_asked: dict[int, int] = {}
        """By slot: the number of the last request before its loss was known."""

    @property
    def has_lost_slots(self) -> bool:
        """Whether any slot needs more than a plain step."""
        return bool(self._unreported or self._to_restart)

    def forget(self, slots: Sequence[int], run_seed: int) -> None:
        """Forget the losses of these slots, which the user resets."""
        self._seed = run_seed
        self._unreported.difference_update(slots)
        self._to_restart.difference_update(slots)

    def rest_of_workers(self, slots: Sequence[int], blocks: Iterable[Sequence[int]]) -> list[int]:
        """Lost slots that share a worker, with one VectorEnv for its block, with some of ``slots``.

        A new VectorEnv begins with all its envs at once. The loss of these slots is then
        reported in the answer to the reset.
        """
        chosen, lost = set(slots), self._unreported | self._to_restart
        rest = [s for block in blocks if chosen & set(block) for s in block if s in lost - chosen]
        for slot in self._unreported.intersection(rest):
            self._batch.note_info(slot, {"env_lost": True})
        return rest

    def restart_later(self, slots: Iterable[int]) -> None:
        """Restart these slots later: their reset was abandoned before it began."""
        self._to_restart.update(slots)

    def lost(
        self, slots: Iterable[int], voided: Sequence[Voided], *, in_vain: bool = False
    ) -> list[Voided]:
        """Recover these slots, whose envs are gone, and these requests with them.

        Resets are repeated; steps are answered with a row that reports the loss, now or at the next
        step. Requests that were ``in_vain`` met envs that were already gone: that is news only if
        they were sent after the earlier loss was known, if it was.

        Returns:
            The fragments that have to be collected again.
        """
        collects = [one for one in voided if isinstance(one.request, Collect)]
        collected, reset, stepped = (
            {slot for one in voided if isinstance(one.request, kind) for slot in one.slots}
            for kind in (Collect, Reset, Step | Act)
        )
        lost = set(slots)
        if in_vain:
            lost -= self._known(voided)
        self._batch.lose_episodes(sorted(lost))
        # Fragments of slots that are still there fail with those of their neighbours.
        doomed = lost | collected if lost else lost
        self._last_asked.update(dict.fromkeys(doomed, self._asking.last_number))
        self._unreported.update(lost - collected - reset - self._to_restart)
        # Collecting again restarts these first, unless a reset does so anyway.
        self._to_restart.update(lost & collected - reset)
        for one in voided:
            # Where a step was to follow, its row reports the loss, and the slot starts over then.
            again = tuple(slot for slot in one.slots if slot not in stepped)
            if isinstance(one.request, Reset) and again:
                self._reset_again(Voided(one.request, again))
        # Where a reset is on its way to the replacement, its row answers the step too.
        self._report(sorted(stepped.intersection(slots)))
        return collects

    def _known(self, voided: Sequence[Voided]) -> set[int]:
        """The slots of these requests that were asked before their loss was known."""
        return {
            slot
            for one in voided
            for slot in one.slots
            if self.is_doomed(slot, one.request.request)
        }

    def is_doomed(self, slot: int, number: int) -> bool:
        """Whether this request was sent before the last loss of the slot's env was known.

        If the env had not answered it by then, it never will.
        """
        return number <= self._last_asked.get(slot, 0)

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
        """Reset those of these slots that were lost, before a policy acts in them."""
        lost = [slot for slot in slots if slot in self._unreported or slot in self._to_restart]
        self._unreported.difference_update(lost)
        self._restart(lost, reports_loss=False)

    def deal_with_lost(self, slots: Sequence[int], together: bool = True) -> Sequence[int]:
        """Report or restart the lost slots among ``slots``; returns those that can be stepped.

        ``together``: whether their rows are wanted all at once, or as they come.
        """
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
        self._restart(waiting, reports_loss=False, together=together)
        dealt_with = {*unreported, *waiting}
        return [slot for slot in slots if slot not in dealt_with]

    def _report(self, slots: Sequence[int]) -> None:
        self._unreported.difference_update(slots)
        if self._mode is AutoresetMode.SAME_STEP:
            for slot in slots:
                final = {"final_obs": self._batch.observation_of(slot), "final_info": {}}
                self._batch.note_info(slot, {**final, "env_lost": True})
            self._restart(slots, reports_loss=True)
            return
        for slot in slots:
            self._batch.mark_lost(slot)
        self._to_restart.update(slots)
        self._ready.extend(slots)

    def _restart(self, slots: Sequence[int], *, reports_loss: bool, together: bool = True) -> None:
        if not slots:
            return
        self._to_restart.difference_update(slots)
        seeds = [self._next_seed(slot) for slot in slots]
        packed = pack(seeds, allow_pickle=False)
        number = self._asking.new_number()
        reset = Reset(
            number, tuple(slots), seeds[0], packed, reports_loss=reports_loss, together=together
        )
        self._asking.ask(reset)

    def _next_seed(self, slot: int) -> int:
        """The seed with which this slot starts over, a new one each time."""
        self._incarnations[slot] = self._incarnations.get(slot, 0) + 1
        return restart_seed(self._seed, slot, self._incarnations[slot])


def restart_seed(run_seed: int, slot: int, incarnation: int) -> int:
    """The seed of a slot that starts over."""
    return int(np.random.SeedSequence((run_seed, slot, incarnation)).generate_state(1)[0])
