"""The head as the user's thread sees it: work on slots, wherever their envs are."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from clusterenv.arrays import Array, Buffer
from clusterenv.backends.base import Backend
from clusterenv.errors import ProtocolError, StartupError
from clusterenv.head.batch import Batch
from clusterenv.head.collector import Collector
from clusterenv.head.crew import Crew
from clusterenv.head.exchange import Exchange
from clusterenv.head.flights import Flight, Loss, Reply
from clusterenv.head.recovery import Recovery
from clusterenv.head.roster import Member, Roster
from clusterenv.head.scrutiny import Scrutiny, read_description
from clusterenv.head.snapshot import snapshot
from clusterenv.head.staffing import Blueprint, Staffing
from clusterenv.head.surveyor import Surveyor
from clusterenv.launchers.base import THREAD_NAME, Launcher
from clusterenv.limits import Limits
from clusterenv.plain.infos import unpack_infos
from clusterenv.plain.spaces import (
    Leaf,
    leaves_of,
    pick_rows,
    single_array_leaf,
    space_to_plain,
)
from clusterenv.plain.values import pack, unpack
from clusterenv.sync import SyncRule
from clusterenv.wire.addresses import Network
from clusterenv.wire.arena import Arena
from clusterenv.wire.codec import frame_of, header_of, read_arrays
from clusterenv.wire.messages import (
    ArrayHeader,
    Call,
    Collected,
    Layout,
    Profile,
    Reset,
    Returned,
    SetAttr,
    Step,
    Stepped,
)
from clusterenv.wire.parcels import Packer
from clusterenv.wire.shared_memory import allocate
from clusterenv.wire.status_channel import Run, StatusServer

_log = logging.getLogger("clusterenv")
_TICK_S = 1.0
# Workers that are nearly ready when min_workers are need not join later.
_GRACE_FOR_LATE_S = 2.0


class Head:
    """Requests about slots go out, rows by slot come back."""

    def __init__(
        self,
        backend: Backend,
        num_envs: int,
        num_workers: int,
        launcher: Launcher,
        autoreset_mode: AutoresetMode,
        shared_memory: bool,
        trusted: bool,
        sync_rule: SyncRule,
        encoding: str,
        limits: Limits,
        network: Network,
        min_workers: int | None = None,
        balance: bool = False,
    ) -> None:
        self.num_envs = num_envs
        self.roster = Roster(num_envs, num_workers, limits.max_restarts_per_minute, min_workers)
        self.ready: list[int] = []
        self.batch: Batch
        self.action_leaf: Leaf | None = None
        self._trusted = trusted
        self._values: dict[int, list[Any]] = {}
        self._arena: Arena | None = None
        self._packer = Packer(elsewhere=not launcher.spawns_here)
        blueprint = Blueprint(backend, autoreset_mode, sync_rule, trusted, self._packer)
        self.crew = Crew(
            launcher,
            self.roster,
            limits,
            shared_memory,
            encoding,
            network,
            blueprint.build_for,
            self._packer,
        )
        self.surveyor = Surveyor(sync_rule, self.crew, self.roster)
        self._exchange = Exchange(self.crew, self.roster)
        self._staffing = Staffing(self.roster, self.crew, self._exchange)
        self.collector = Collector(
            self.crew,
            self.roster,
            self._exchange,
            self._staffing,
            self.surveyor,
            self._pump,
            balance,
        )
        self._recovery: Recovery | None = None
        self._mode = autoreset_mode
        self.run = Run(secrets.token_hex(3), os.getpid())
        self._status = StatusServer(f"{THREAD_NAME} status", self.run, lambda: snapshot(self))
        try:
            self._status.start()
            self.crew.start()
            self._gather()
        except BaseException:
            self.close(grace_s=0.0)
            raise

    # Starting.

    @property
    def descriptions(self) -> list[tuple[Member, dict[str, Any]]]:
        """What each worker says about its envs, in slot order."""
        return [(member, self._description(member)) for member in self.roster.staffed]

    def _description(self, member: Member) -> dict[str, Any]:
        data = self._exchange.description_by_member[member.index]
        try:
            return read_description(data, len(member.slots), self._trusted)
        except ProtocolError as error:
            obituary = self.crew.obituary(member, f"it broke the protocol: {error}")
            raise StartupError(obituary) from error

    def _gather(self) -> None:
        """Wait for all workers, or for ``min_workers`` if no others come soon after these."""
        self._wait_for(self._has_built, "built their envs", self.roster.min_workers)
        while len(here := self._here()) < len(self.roster.staffed):
            self._staffing.deal(here)
            self._wait_for(self._has_built, "built their envs")

    def _here(self) -> list[Member]:
        return [m for m in self.roster.staffed if self._has_built(m) and not m.gone]

    def _has_built(self, member: Member) -> bool:
        return member.index in self._exchange.description_by_member

    def agree(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Settle the layout of rows, then wait until every worker is ready for work."""
        leaves = leaves_of(observation_space)
        self.action_leaf = single_array_leaf(action_space)
        self._arena = self._map_arena(leaves)
        self.batch = Batch(observation_space, self.num_envs, self._arena)
        if self._arena is not None:
            self._exchange.share(self._arena, self.ready)
        self.surveyor.agree(observation_space, action_space)
        layout = Layout(
            self.num_envs,
            pack(space_to_plain(observation_space), allow_pickle=True),
            pack(space_to_plain(action_space), allow_pickle=True),
            Arena.size_of(self.num_envs, self.action_leaf, leaves) if self._arena else 0,
            len(self.roster.members),
        )
        self.crew.reception.agree(layout)
        for member in self.roster.staffed:
            self.crew.send(member, layout)
        self._wait_for(lambda member: member.joined, "got ready")
        self._recovery = Recovery(
            self.crew,
            self.roster,
            self._exchange,
            self._staffing,
            self.batch,
            self._mode,
            self.ready,
        )
        scrutiny = Scrutiny(observation_space, action_space)
        self.collector.agree(self._recovery, self.batch, scrutiny)
        for member in self.roster.staffed:
            if member.gone:
                member.gone = False
                self._lost(Loss(member, "it was lost while the run started", ()))

    def _map_arena(self, leaves: Sequence[Leaf]) -> Arena | None:
        fd = self.crew.arena_fd
        if fd is None:
            return None
        size = Arena.size_of(self.num_envs, self.action_leaf, leaves)
        try:
            allocate(fd, size)
            return Arena(fd, self.num_envs, len(self.roster.members), self.action_leaf, leaves)
        except OSError as error:
            warnings.warn(
                f"cannot allocate {size} bytes of shared memory ({error}); arrays will travel "
                "over tcp, which is slower. shared_memory=False silences this",
                stacklevel=2,
            )
            return None

    def _wait_for(self, done: Callable[[Member], bool], what: str, enough: int = 0) -> None:
        """Wait for every member with slots; once ``enough`` are done, not for long any more."""
        timeout_s = self.crew.limits.startup_timeout_s
        deadline = time.monotonic() + timeout_s
        enough = enough or self.num_envs
        while late := [m for m in self.roster.staffed if not (m.gone or done(m))]:
            num_done = sum(not member.gone and done(member) for member in self.roster.staffed)
            if num_done >= enough:
                deadline = min(deadline, time.monotonic() + _GRACE_FOR_LATE_S)
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                if num_done >= enough:
                    return
                raise StartupError(
                    f"{num_done} of {len(self.roster.staffed)} workers {what} within "
                    f"startup_timeout_s={timeout_s:g}; waiting for "
                    f"{', '.join(map(self.crew.whereabouts, late))}{self.crew.turned_away}"
                    f"{self.crew.log_tail(late[0])}"
                )
            self._pump(min(_TICK_S, remaining_s))
            self._exchange.raise_errors()

    # Requests.

    def reset(
        self,
        slots: Sequence[int],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
        run_seed: int,
    ) -> None:
        """Send resets for ``slots`` (ascending)."""
        if len(slots) == self.num_envs:
            self.collector.forget_owed()
            self.collector.welcome_arrivals()
        self._recovering.forget(slots, run_seed)
        packed = b"" if options is None else self._packer.pack_values(options)
        request = self._exchange.new_request()
        for member, group, part in self.roster.split_by_member(slots):
            wanted = list(seeds[part])
            given = b"" if all(s is None for s in wanted) else pack(wanted, allow_pickle=False)
            message = Reset(request, group, run_seed, given, packed)
            self._exchange.send(Flight(member, message, group))

    def reset_all(self, seeds: Sequence[int | None], run_seed: int) -> None:
        """Reset all slots, which are ready as their workers answer."""
        self.ready.clear()
        self.reset(range(self.num_envs), seeds, None, run_seed)

    def step_at_once(self, actions: Array) -> bool:
        """Step every slot, and wait: what is usual, and no more.

        Returns:
            Whether it is done. If not, and it ``is_in_lockstep``, it is under way.
        """
        return self._exchange.step_at_once(actions)

    @property
    def is_in_lockstep(self) -> bool:
        """Whether a step of all slots is under way, and nothing else was heard since."""
        return self._exchange.is_in_lockstep

    def step_all(self, actions: Array | list[Any]) -> None:
        """Send a step for every slot."""
        if (
            self._arena is None
            or not isinstance(actions, np.ndarray)
            or self._recovering.has_lost_slots
        ):
            self.step(range(self.num_envs), actions)
        elif not self._exchange.step_in_lockstep(actions):
            header = ArrayHeader(self._arena.put_actions(actions), ())
            self._exchange.send_to_all(Step(self._exchange.new_request(), None, header))

    def step(self, slots: Sequence[int], actions: Array | list[Any], num_parts: int = 1) -> None:
        """Send a step for ``slots`` (ascending), whose actions are in the same order.

        Each worker answers for one part of its slots after the other.
        """
        if self._recovering.has_lost_slots:
            slots, actions = self._deal_with_lost(slots, actions)
            if not slots:
                return
        if self._arena is not None and isinstance(actions, np.ndarray):
            dtype = self._arena.put_actions(actions, slots)
            self._exchange.step_parts(slots, dtype, num_parts)
            return
        for member, group, part in self.roster.split_by_member(slots, num_parts):
            self._send_actions(member, group, actions[part])

    def _deal_with_lost(
        self, slots: Sequence[int], actions: Array | list[Any]
    ) -> tuple[Sequence[int], Array | list[Any]]:
        """Those that can be stepped, with their actions."""
        live = self._recovering.deal_with_lost(slots)
        still_there = set(live)
        rows = [row for row, slot in enumerate(slots) if slot in still_there]
        return live, pick_rows(rows, actions)

    def _send_actions(
        self, member: Member, slots: tuple[int, ...], actions: Array | list[Any]
    ) -> None:
        request = self._exchange.new_request()
        if isinstance(actions, np.ndarray):
            flight = Flight(member, Step(request, slots, header_of(actions)), slots)
            self._exchange.send(flight, [frame_of(actions)])
        else:
            packed = Step(request, slots, packed_actions=pack(actions, allow_pickle=True))
            self._exchange.send(Flight(member, packed, slots))

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Ask every worker to call a method of its envs."""
        request = self._exchange.new_request()
        arguments = self._packer.pack_values((args, kwargs))
        for member in self.roster.staffed:
            self._exchange.send(Flight(member, Call(request, name, arguments), member.slots))

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Ask every worker to set an attribute of its envs."""
        request = self._exchange.new_request()
        for member in self.roster.staffed:
            own = self._packer.pack_values([values[slot] for slot in member.slots])
            self._exchange.send(Flight(member, SetAttr(request, name, own), member.slots))

    def profile(self, on: bool) -> None:
        """Ask every worker for what it timed since the last time, and to go on, or not."""
        request = self._exchange.new_request()
        for member in self.roster.staffed:
            self._exchange.send(Flight(member, Profile(request, on), member.slots))

    # Replies.

    def wait_until_idle(self, timeout_s: float | None) -> bool:
        """Wait for all replies; False after ``timeout_s``. Raises what workers raised."""
        if self._exchange.finish_lockstep(_TICK_S if timeout_s is None else timeout_s):
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._exchange.is_idle:
            remaining_s = _TICK_S if deadline is None else deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            self._pump(min(_TICK_S, remaining_s))
        # Whoever waits for all slots does not ask which of them were ready first.
        self.ready.clear()
        self._exchange.raise_errors()
        return True

    def gather_ready(self, count: int, timeout_s: float) -> None:
        """Wait a while for so many slots; what is ready then is taken worker by worker."""
        self._exchange.wait_for_parts(count, timeout_s)
        self.ready.sort()

    def take_ready(self, count: int) -> list[int]:
        """Wait until ``count`` slots have been answered; take the first of them, ascending."""
        while not self._exchange.wait_for_parts(count, _TICK_S):
            is_there = len(self.ready) >= count
            self._pump(0.0 if is_there or self._arena is not None else _TICK_S)
            self._exchange.raise_errors()
            if len(self.ready) >= count:
                break
        slots = self.ready[:count]
        del self.ready[:count]
        slots.sort()
        return slots

    def take_values(self) -> tuple[Any, ...]:
        """What the finished call returned, in slot order."""
        values = tuple(v for member in self.roster.staffed for v in self._values[member.index])
        self._values.clear()
        return values

    def abandon(self) -> None:
        """Take no notice of the replies to what was asked so far."""
        for flight in self._exchange.abandon():
            self._recovering.restart_later(flight.slots)
        self.batch.infos.forget()
        self._values.clear()
        self.collector.abandon()
        self.ready.clear()

    def _pump(self, timeout_s: float) -> None:
        for event in self._exchange.pump(timeout_s):
            if isinstance(event, Loss):
                self._lost(event)
                continue
            try:
                self._take(event.flight, event.reply, event.frames)
            except Exception as error:  # whatever a worker sends must not reach the user's code
                reason = f"it broke the protocol: {ProtocolError.of(error)}"
                self._lost(self._exchange.lose_with(event.flight, reason))

    def _lost(self, loss: Loss) -> None:
        if self._recovery is None:
            self._lost_at_the_start(loss)
            return
        if self._arena is not None:
            self._arena.marks.expect_no_answer(loss.member.index)
        num_deals = self._staffing.num_deals
        if collects := self._recovery.lost(loss):
            self.collector.collect_again(collects, self._staffing.num_deals > num_deals)

    def _lost_at_the_start(self, loss: Loss) -> None:
        obituary = self.crew.obituary(loss.member, loss.reason)
        self.crew.dismiss(loss.member)
        loss.member.gone = True
        if sum(not member.gone for member in self.roster.members) < self.roster.min_workers:
            self._exchange.fail(StartupError(obituary))
        else:
            _log.warning("%s; starting without it", obituary)

    def _take(self, flight: Flight, reply: Reply, frames: Sequence[Buffer]) -> None:
        match reply:
            case Stepped():
                flight.member.rows += len(flight.slots)
                self._take_rows(flight, reply, frames)
            case Collected():
                flight.member.rows += len(flight.slots) * getattr(flight.request, "num_steps", 0)
                self.collector.take(flight, reply, frames)
            case Returned():
                values = unpack(reply.values, allow_pickle=self._trusted)
                count = _num_values(flight)
                if not isinstance(values, list) or len(values) != count:
                    raise ProtocolError(f"no list of {count} values came back")
                self._values[flight.member.index] = values

    def _take_rows(self, flight: Flight, reply: Stepped, frames: Sequence[Buffer]) -> None:
        if frames or self._arena is None:
            self.batch.put_arrays(flight.slots, read_arrays(reply.arrays, frames))
        if reply.objects:
            columns = unpack(reply.objects, allow_pickle=self._trusted)
            self.batch.put_objects(flight.slots, columns)
        if reply.infos:
            infos = unpack_infos(reply.infos, allow_pickle=self._trusted)
            self.batch.infos.put(infos, flight.slots)
        if reply.acted:
            self.collector.note_step(flight.member, unpack(reply.acted, allow_pickle=self._trusted))
        if flight.reports_loss:
            self.batch.truncated[list(flight.slots)] = True
        self.ready.extend(flight.slots)

    @property
    def _recovering(self) -> Recovery:
        assert self._recovery is not None, "agree() comes before any work"
        return self._recovery

    def close(self, grace_s: float) -> None:
        """End all workers; let them close their envs for ``grace_s`` first."""
        self._status.close()
        self.crew.close(grace_s)

    def close_from_any_thread(self) -> None:
        """End all workers at once, even if a thread of the run is where garbage is collected."""
        if threading.current_thread().name.startswith(THREAD_NAME):
            # It could not wait for its own end.
            threading.Thread(target=self.close, args=(0.0,)).start()
        else:
            self.close(0.0)


def _num_values(flight: Flight) -> int:
    """How many values answer a request that is answered by values."""
    match flight.request:
        case SetAttr():
            return 0
        case Profile():
            return 1
    return len(flight.slots)
