"""A running session: requests about slots go to hosts, and rows by slot come back."""

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
from clusterenv.head.batch import Batch
from clusterenv.head.drift import Drift
from clusterenv.head.episodes import EpisodeLog
from clusterenv.head.fleet import Deal, Fleet
from clusterenv.head.gathered import acted_nowhere
from clusterenv.head.host_requests import HostRequests
from clusterenv.head.intake import Intake
from clusterenv.head.loss_reports import LossReports
from clusterenv.head.publisher import Publisher
from clusterenv.head.recovery import Recovery
from clusterenv.launchers.base import THREAD_NAME
from clusterenv.plain.spaces import Leaf, pick_rows
from clusterenv.plain.values import pack
from clusterenv.protocol.requests import Act, Call, CountTime, Reset, SetAttr, Step
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.status.channel import StatusServer
from clusterenv.stopwatch import Stopwatch
from clusterenv.sync.ledger import Ledger
from clusterenv.wire.parcels import Packer

_log = logging.getLogger("clusterenv")
_TICK_S = 1.0


@dataclass(frozen=True)
class Agreement:
    """What is known about the envs once all are built."""

    observation_space: Space[Any]
    action_space: Space[Any]
    action_leaf: Leaf | None
    """The action space's leaf, if it is a single array."""
    autoreset_mode: AutoresetMode
    steps_together: bool
    """Whether a worker must step all of its slots at once (a ready-made VectorEnv)."""
    worker_sizes: tuple[int, ...]
    """How many slots each worker had at the start."""
    trusted: bool
    """Whether hosts may send pickles."""


class Session:
    """The head as the user's thread sees it: work on slots, wherever their envs are.

    It knows much because every call of the user goes through here.
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
        reports: LossReports | None = None,
        episodes: EpisodeLog | None = None,
    ) -> None:
        self.fleet, self.agreed, self.publisher, self.drift = fleet, agreed, publisher, drift
        self.num_envs = len(fleet.results.rewards)
        self.ready = ready
        """Slots that have been answered for, in the order of their answers."""
        self.asking = HostRequests(fleet)
        self.batch = Batch(agreed.observation_space, fleet.results, agreed.trusted, episodes)
        self.recovery = Recovery(self.asking, self.batch, agreed.autoreset_mode, ready)
        self.is_closed = False
        self._packer, self._status = packer, status
        self._intake = Intake(
            fleet,
            agreed.trusted,
            self.asking,
            self.batch,
            self.recovery,
            drift,
            LossReports(Ledger()) if reports is None else reports,
            ready,
        )
        self.fragments, self._gathered = self._intake.fragments, self._intake.gathered
        self._all_slots = tuple(range(self.num_envs))
        self._step = Step(0, self._all_slots)

    def show(self) -> None:
        """Let the user who owns the run watch it from now on."""
        self._status.start()

    @property
    def run_id(self) -> str:
        """The name of the run, for anyone watching it."""
        return self._status.run_id

    @property
    def stopwatch(self) -> Stopwatch:
        """Counts what the user's thread does, and how long it waits."""
        return self.fleet.stopwatch

    @property
    def workers(self) -> tuple[WorkerStatus, ...]:
        """The workers as they are now, in the order of their slots."""
        return self.fleet.workers

    # Requests.

    def reset(
        self,
        slots: Sequence[int],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
        run_seed: int,
        together: bool = True,
    ) -> None:
        """Send resets for ``slots`` (ascending); their rows are wanted together or as they come."""
        if self.agreed.steps_together and self.recovery.has_lost_slots:
            slots, seeds = self._with_rest_of_workers(slots, seeds)
        self.recovery.forget(slots, run_seed)
        self.batch.start_episodes(slots, has_row=not together)
        given = b"" if all(s is None for s in seeds) else pack(list(seeds), allow_pickle=False)
        packed = b"" if options is None else self._packer.pack_values(options)
        number = self.asking.new_number()
        reset = Reset(number, tuple(slots), run_seed, given, packed, together=together)
        self.asking.ask(reset)

    def _with_rest_of_workers(
        self, slots: Sequence[int], seeds: Sequence[int | None]
    ) -> tuple[list[int], list[int | None]]:
        blocks = [worker.slots for worker in self.workers]
        seed_of = dict(zip(slots, seeds, strict=True))
        every = sorted([*slots, *self.recovery.rest_of_workers(slots, blocks)])
        return every, [seed_of.get(slot) for slot in every]

    def step_at_once(self, actions: Array) -> bool:
        """Step every slot and wait, in the usual case only.

        Returns:
            Whether it is done. If not, and it ``is_in_lockstep``, the step is under way.
        """
        return self.fleet.step_at_once(self._step, actions)

    @property
    def is_in_lockstep(self) -> bool:
        """Whether :meth:`step_at_once` has begun a step that it could not finish."""
        return self.fleet.is_in_lockstep

    def step(
        self,
        slots: Sequence[int],
        actions: Array | list[Any],
        num_parts: int = 1,
        together: bool = True,
    ) -> None:
        """Send a step for ``slots`` (ascending), with actions in the same order.

        Each worker answers for ``num_parts`` parts of its slots, one after the other. Rows are
        wanted all together, or as they come.
        """
        if self.recovery.has_lost_slots:
            live = self.recovery.deal_with_lost(slots, together)
            still_there = set(live)
            rows = [row for row, slot in enumerate(slots) if slot in still_there]
            slots, actions = live, pick_rows(rows, actions)
        if slots:
            self.asking.step(slots, actions, num_parts, together)

    def step_all(self, actions: Array | list[Any]) -> None:
        """Send a step for every slot."""
        self.step(self._all_slots, actions)

    def act(self) -> None:
        """Send a step of every slot with the published policy."""
        live = self.recovery.deal_with_lost(self._all_slots)
        number = self.asking.new_number()
        self._gathered.begin_acting()
        for host, slots, _ in self.asking.split(live) if live else ():
            if self.drift.is_measured:
                self._gathered.put_acted_on(slots, self.batch.leaves_of(slots))
            host.ask(Act(number, slots, self.drift.news_for(host)))

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call a method of every env."""
        arguments = self._packer.pack_values((args, kwargs))
        self.asking.ask(Call(self.asking.new_number(), self._all_slots, name, arguments))

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every env."""
        packed = tuple(self._packer.pack_values(value) for value in values)
        self.asking.ask(SetAttr(self.asking.new_number(), self._all_slots, name, packed))

    def pack_backend(self, backend: Any) -> bytes:
        """The backend in the form in which it travels to the workers."""
        return self._packer.pack(backend, with_env_ids=True)

    def profile(self, on: bool, timeout_s: float) -> list[Any]:
        """Have hosts start or stop timing their workers; then returns each worker's seconds."""
        number = self.asking.new_number()
        self._gathered.begin_profiles()
        self.asking.ask(CountTime(number, self._all_slots, on))
        deadline = time.monotonic() + timeout_s
        # Hosts in this process have answered by now.
        self.pump(0.0)
        while not self._have_all_answered() and time.monotonic() < deadline:
            self.pump(min(_TICK_S, timeout_s))
        return self._gathered.take_profiles()

    def _have_all_answered(self) -> bool:
        # A host that is idle and has not answered has replaced one that was asked.
        return self._gathered.has_profiles_of(h.name for h in self.fleet.hosts if not h.is_idle)

    def abandon_requests(self) -> None:
        """Release hosts from all requests so far."""
        self.recovery.restart_later(self.asking.abandon())

    def abandon(self) -> None:
        """Ignore the answers to all requests so far."""
        self.abandon_requests()
        self.batch.forget_infos()
        self.fragments.clear()
        self._gathered.clear()
        self.ready.clear()

    def close(self, grace_s: float) -> None:
        """End everything; first give envs ``grace_s`` to close."""
        self.is_closed = True
        self._status.close()
        self.fleet.close(grace_s)

    def close_from_any_thread(self) -> None:
        """End everything at once, even if garbage is collected in one of the run's threads."""
        if threading.current_thread().name.startswith(THREAD_NAME):
            # A thread cannot wait for its own end.
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
            self._intake.pump(min(_TICK_S, remaining_s))
        # After a wait for all slots, it does not matter which were ready first.
        self.ready.clear()
        self.raise_errors()
        return True

    def take_ready(self, count: int) -> list[int]:
        """Wait until ``count`` slots have been answered for; returns the first ones, ascending."""
        while not self.fleet.wait_for_parts(count, _TICK_S):
            self._intake.pump(0.0 if len(self.ready) >= count else _TICK_S)
            self.raise_errors()
            if len(self.ready) >= count:
                break
        slots = self.ready[:count]
        del self.ready[:count]
        slots.sort()
        return slots

    def gather(self, count: int, timeout_s: float) -> None:
        """Wait a while for this many slots, and sort those that are ready."""
        self.fleet.wait_for_parts(count, timeout_s)
        self.ready.sort()

    def forget_ready(self) -> None:
        """Forget which slots were ready first."""
        self.ready.clear()

    def take_values(self) -> tuple[Any, ...]:
        """What the finished call returned, in slot order."""
        return self._gathered.take_values(self._all_slots)

    def take_acted(self) -> Any:
        """What the policy did in the finished step, by slot."""
        acted = self._gathered.take_acted(self.num_envs)
        if acted is not None:
            return acted
        assert self.publisher.newest is not None
        observations = self.batch.observations(copy=True)
        return acted_nowhere(self.publisher.newest, observations, self.num_envs)

    def pump(self, timeout_s: float) -> None:
        """Wait for events, and take them in."""
        self._intake.pump(timeout_s)

    def dealt(self, deal: Deal | None) -> None:
        """Recover slots that were dealt anew: what they were doing is lost."""
        self._intake.dealt(deal)

    def fail(self, error: BaseException) -> None:
        """Keep ``error`` for the next :meth:`raise_errors`."""
        self._gathered.fail(error)

    def raise_errors(self) -> None:
        """Raise the first of what went wrong since the last call, if anything did.

        Warnings are issued here too, not where they arrive: a filter may turn them into errors.
        """
        self._gathered.raise_errors()
