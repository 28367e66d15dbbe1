"""A running session: requests about slots go out to hosts, rows by slot come back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import Space
from gymnasium.vector import AutoresetMode

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError, WorkerLostError
from clusterenv.head.asking import Asking
from clusterenv.head.batch import Batch
from clusterenv.head.drift import Drift
from clusterenv.head.fleet import Deal, Fleet, Host
from clusterenv.head.gathered import Gathered, join_acted
from clusterenv.head.publisher import Publisher
from clusterenv.head.recovery import Recovery
from clusterenv.head.remote_errors import rebuild
from clusterenv.host.events import Event, Failed, Lost, Rows, Values, Voided, WorkerWarned
from clusterenv.launchers.base import THREAD_NAME
from clusterenv.plain.infos import unpack_infos
from clusterenv.plain.spaces import Leaf, pick_rows
from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Act, Call, Collect, CountTime, Reset, SetAttr, Step
from clusterenv.status.channel import StatusServer
from clusterenv.wire.parcels import Packer
from clusterenv.wire.reply_checks import OTHER_OUTPUTS, check_values

_log = logging.getLogger("clusterenv")
_TICK_S = 1.0
# What is asked again, or made up for, where a worker is lost; other calls fail.
_FORGIVEN = Reset | Step | Act | Collect | CountTime


@dataclass(frozen=True)
class Agreement:
    """What is known about the envs once all have been built."""

    observation_space: Space[Any]
    action_space: Space[Any]
    action_leaf: Leaf | None
    """Where the action space is a single array."""
    autoreset_mode: AutoresetMode
    steps_together: bool
    """Whether a worker can only step all of its slots at once (a ready VectorEnv)."""
    worker_sizes: tuple[int, ...]
    """How many slots each worker had at the start."""
    trusted: bool
    """Whether hosts may send pickles."""


class Session:
    """The head as the user's thread sees it: work on slots, wherever their envs are.

    It knows much because every request goes out and every event comes in here.
    """

    def __init__(
        self,
        fleet: Fleet,
        agreed: Agreement,
        publisher: Publisher,
        drift: Drift,
        packer: Packer,
        ready: list[int],
        status: StatusServer,
    ) -> None:
        self.fleet, self.agreed, self.publisher, self.drift = fleet, agreed, publisher, drift
        self.num_envs = len(fleet.results.rewards)
        self.ready = ready
        """Slots whose answers have come, in that order."""
        self.asking = Asking(fleet)
        self.batch = Batch(agreed.observation_space, fleet.results)
        self.recovery = Recovery(self.asking, self.batch, agreed.autoreset_mode, ready)
        self.fragments: list[FragmentPart] = []
        """Fragments that have come and were not taken yet …"""
        self.arrived: list[FragmentPart] = []
        """… all that have come since somebody counted them, dropped or not …"""
        self.uncollected: list[Voided] = []
        """… and those that will not come."""
        self.is_closed = False
        self._packer, self._status = packer, status
        self._inbox = Gathered()
        self._all_slots = tuple(range(self.num_envs))
        self._step = Step(0, self._all_slots)

    def show(self) -> None:
        """Let the user who runs it look at the run from now on."""
        self._status.start()

    @property
    def run_id(self) -> str:
        """What the run is called, for whoever looks at it."""
        return self._status.shown.id

    # Requests.

    def reset(
        self,
        slots: Sequence[int],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
        run_seed: int,
        together: bool = True,
    ) -> None:
        """Send resets for ``slots`` (ascending), whose rows are wanted together or as they come."""
        self.recovery.forget(slots, run_seed)
        given = b"" if all(s is None for s in seeds) else pack(list(seeds), allow_pickle=False)
        packed = b"" if options is None else self._packer.pack_values(options)
        number = self.asking.new_number()
        reset = Reset(number, tuple(slots), run_seed, given, packed, together=together)
        self.asking.ask(reset)

    def step_at_once(self, actions: Array) -> bool:
        """Step every slot, and wait: what is usual, and no more.

        Returns:
            Whether it is done. If not, and it ``is_in_lockstep``, it is under way.
        """
        return self.fleet.step_at_once(self._step, actions)

    def step(
        self,
        slots: Sequence[int],
        actions: Array | list[Any],
        num_parts: int = 1,
        together: bool = True,
    ) -> None:
        """Send a step for ``slots`` (ascending), whose actions are in the same order.

        Each worker answers for one part of its slots after the other. Rows are wanted all together,
        or as they come.
        """
        if self.recovery.has_lost_slots:
            live = self.recovery.deal_with_lost(slots)
            still_there = set(live)
            rows = [row for row, slot in enumerate(slots) if slot in still_there]
            slots, actions = live, pick_rows(rows, actions)
        if slots:
            self.asking.step(slots, actions, num_parts, together)

    def step_all(self, actions: Array | list[Any]) -> None:
        """Send a step for every slot."""
        self.step(self._all_slots, actions)

    def act(self) -> None:
        """Send a step of every slot with the policy that was published."""
        live = self.recovery.deal_with_lost(self._all_slots)
        number = self.asking.new_number()
        self._inbox.acted_on.clear()
        for host, slots, _ in self.asking.split(live) if live else ():
            if self.drift.is_measured:
                self._inbox.acted_on[slots[0]] = slots, self.batch.leaves_of(slots)
            host.ask(Act(number, slots, self.drift.news_for(host)))

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call a method of every env."""
        arguments = self._packer.pack_values((args, kwargs))
        self.asking.ask(Call(self.asking.new_number(), self._all_slots, name, arguments))

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every env."""
        packed = tuple(self._packer.pack_values(value) for value in values)
        self.asking.ask(SetAttr(self.asking.new_number(), self._all_slots, name, packed))

    def profile(self, on: bool, timeout_s: float) -> list[Any]:
        """Have hosts count what their workers do, or no more: then the seconds of each worker."""
        number = self.asking.new_number()
        self._inbox.profiles.clear()
        self.asking.ask(CountTime(number, self._all_slots, on))
        deadline = time.monotonic() + timeout_s
        # Hosts in this process have answered by now.
        self.pump(0.0)
        while not self._have_all_answered() and time.monotonic() < deadline:
            self.pump(min(_TICK_S, timeout_s))
        return [seconds for answer in self._inbox.profiles.values() for seconds in answer]

    def _have_all_answered(self) -> bool:
        return all(host.name in self._inbox.profiles for host in self.fleet.hosts)

    def abandon(self) -> None:
        """Take no notice of the answers to what was asked so far."""
        self.recovery.restart_later(self.asking.abandon())
        self.batch.infos.forget()
        self.drop_fragments()
        self.uncollected.clear()
        self._inbox.clear()
        self.ready.clear()

    def drop_fragments(self) -> None:
        """Nobody wants the fragments that have come."""
        for part in self.fragments:
            part.release()
        self.fragments.clear()

    def dealt(self, deal: Deal | None) -> None:
        """Slots were dealt anew: what they were doing is lost."""
        if deal is not None:
            self._drop_moved(deal.moved)
            self.uncollected += self.recovery.lost(deal.moved, deal.voided)

    def _drop_moved(self, moved: Sequence[int]) -> None:
        """Fragments of slots that start over elsewhere do not fit those that will come."""
        gone = set(moved)
        for part in [part for part in self.fragments if gone.intersection(part.slots)]:
            self.fragments.remove(part)
            part.release()

    def close(self, grace_s: float) -> None:
        """End everything; let envs close for ``grace_s`` first."""
        self.is_closed = True
        self._status.close()
        self.fleet.close(grace_s)

    def close_from_any_thread(self) -> None:
        """End everything at once, even if a thread of the run is where garbage is collected."""
        if threading.current_thread().name.startswith(THREAD_NAME):
            # It could not wait for its own end.
            threading.Thread(target=self.close, args=(0.0,)).start()
        else:
            self.close(0.0)

    # Replies.

    def wait_until_idle(self, timeout_s: float | None) -> bool:
        """Wait for all replies; False after ``timeout_s``. Raises what workers raised."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.asking.is_idle:
            remaining_s = _TICK_S if deadline is None else deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            self.pump(min(_TICK_S, remaining_s))
        # Whoever waits for all slots does not ask which of them were ready first.
        self.ready.clear()
        self.raise_errors()
        return True

    def take_ready(self, count: int) -> list[int]:
        """Wait until ``count`` slots have been answered; take the first of them, ascending."""
        while not self.fleet.wait_for_parts(count, _TICK_S):
            self.pump(0.0 if len(self.ready) >= count else _TICK_S)
            self.raise_errors()
            if len(self.ready) >= count:
                break
        slots = self.ready[:count]
        del self.ready[:count]
        slots.sort()
        return slots

    def take_values(self) -> tuple[Any, ...]:
        """What the finished call returned, in slot order."""
        values = self._inbox.values
        self._inbox.values = {}
        return tuple(values[slot] for slot in self._all_slots if slot in values)

    def take_acted(self) -> dict[str, Any]:
        """What the policy did in the finished step, by slot."""
        acted, self._inbox.acted = self._inbox.acted, {}
        return join_acted(acted, self.num_envs) if acted else {}

    def pump(self, timeout_s: float) -> None:
        """Wait for something to happen, and take it in."""
        for host, event in self.fleet.events(timeout_s):
            try:
                self._take(host, event)
            except Exception as error:  # whatever a host sends must not reach the user's code
                self.fleet.blame(host, event, error)

    def _take(self, host: Host, event: Event) -> None:
        match event:
            case Rows():
                self._take_rows(host, event)
            case FragmentPart():
                self._assert_fits(event)
                self.drift.note_fragment(host, event)
                self.fragments.append(event)
                self.arrived.append(event)
            case Values(request=CountTime(), values=packed):
                self._inbox.profiles[host.name] = unpack(packed, allow_pickle=False)
            case Values(request=request, slots=slots, values=packed):
                values = unpack(packed, allow_pickle=self.agreed.trusted)
                check_values(request, slots, values)
                # None where attributes were set.
                self._inbox.values.update(zip(slots, values, strict=False))
            case Failed(raised=raised, where=where):
                self._inbox.errors.append(rebuild(raised, where))
            case WorkerWarned():
                self._inbox.warn(event)
            case Lost():
                self._lost(host, event)

    def _assert_fits(self, part: FragmentPart) -> None:
        """ProtocolError if a part of a rollout cannot be joined with those that have come.

        Nobody knows who is right: the others are dropped, and have to be collected again.
        """
        if part.request.together and not self.fleet.fit_together(part, self.fragments):
            self.drop_fragments()
            raise ProtocolError(OTHER_OUTPUTS)

    def _take_rows(self, host: Host, rows: Rows) -> None:
        trusted, slots, request = self.agreed.trusted, rows.slots, rows.request
        if rows.objects:
            self.batch.put_objects(slots, unpack(rows.objects, allow_pickle=trusted))
        if rows.infos:
            self.batch.infos.put(unpack_infos(rows.infos, allow_pickle=trusted), slots)
        if rows.acted:
            self._take_acted(host, rows, unpack(rows.acted, allow_pickle=trusted))
        if isinstance(request, Reset) and request.reports_loss:
            self.batch.truncated[list(slots)] = True
        self.ready.extend(slots)

    def _take_acted(self, host: Host, rows: Rows, acted: Any) -> None:
        slots = rows.slots
        others = [tree for _, tree in self._inbox.acted.values()]
        self.fleet.check_acted(rows, acted, others)
        if self.drift.is_measured:
            observations = self._inbox.observations_of(slots)
            self.drift.note_step(host, slots[0], observations, acted)
        self._inbox.acted[slots[0]] = slots, acted

    def _lost(self, host: Host, lost: Lost) -> None:
        deal = None
        if lost.error:
            deal = self.fleet.do_without(host)
            if deal is None:
                self.asking.incomplete = lost.error
                self._inbox.errors.append(WorkerLostError(lost.error))
                return
            _log.warning("%s; its slots go to the other hosts", lost.error)
            self._drop_moved(deal.moved)
            lost = Lost(deal.moved, lost.reason, lost.obituary, (*lost.voided, *deal.voided))
        if host not in self.fleet.hosts:
            # What it did last says nothing about who acts now.
            self.drift.forget(host)
        self.uncollected += self.recovery.lost(lost.slots, lost.voided)
        if any(not isinstance(one.request, _FORGIVEN) for one in lost.voided):
            self._inbox.errors.append(
                WorkerLostError(
                    f"a worker of {host.name} was lost during this call and is being replaced "
                    f"({lost.reason}): call it again"
                )
            )

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` when the caller next asks for errors."""
        self._inbox.errors.append(error)

    def raise_errors(self) -> None:
        """Raise the first of what went wrong since the last call, if anything did.

        Warnings are issued here too, not where they arrive: a filter may turn them into errors.
        """
        self._inbox.raise_errors()
