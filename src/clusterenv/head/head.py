"""The head as the user's thread sees it: send requests, wait for replies, survive losses."""

from __future__ import annotations

import builtins
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from clusterenv.backends.base import Backend
from clusterenv.errors import ProtocolError, StartupError, WorkerLostError
from clusterenv.head.batch import Batch
from clusterenv.head.crew import Crew, Ended, Limits
from clusterenv.head.remote_errors import rebuild
from clusterenv.head.roster import Member, Roster, restart_seed
from clusterenv.launchers.base import Launcher
from clusterenv.wire.codec import Array, Buffer, encode, frame_of, read_arrays
from clusterenv.wire.messages import (
    ArrayHeader,
    Build,
    Built,
    Call,
    LaidOut,
    Layout,
    Message,
    Raised,
    Reset,
    Returned,
    SetAttr,
    Step,
    Stepped,
    Warned,
)
from clusterenv.wire.pickling import pickle_for_workers
from clusterenv.wire.shared_memory import Arena, allocate
from clusterenv.wire.spaces import Leaf, leaves_of, space_to_plain
from clusterenv.wire.values import pack, unpack

_TICK_S = 1.0
# The worker dumps its stack at step_timeout_s; give that time to reach its log.
_HUNG_GRACE_S = 2.0


@dataclass
class _Flight:
    """A request that a worker has not answered yet."""

    member: Member
    message: Message
    slots: tuple[int, ...]
    sent_at: float
    # A slot that starts over inside a step: its row still says that the env was lost.
    reports_loss: bool = False


@dataclass
class _Losses:
    """What must still be said or done about slots whose worker was lost."""

    unreported: set[int] = field(default_factory=set)
    to_restart: set[int] = field(default_factory=set)

    def forget(self, slots: Sequence[int]) -> None:
        self.unreported.difference_update(slots)
        self.to_restart.difference_update(slots)


class Head:
    """Requests to workers and their replies, by slot. Knows no Gymnasium words but the modes."""

    def __init__(
        self,
        backend: Backend,
        num_envs: int,
        num_workers: int,
        launcher: Launcher,
        autoreset_mode: AutoresetMode,
        shared_memory: bool,
        trusted: bool,
        limits: Limits,
    ) -> None:
        self.num_envs = num_envs
        self.roster = Roster(num_envs, num_workers, limits.max_restarts_per_minute)
        self.limits = limits
        self._mode = autoreset_mode
        self._trusted = trusted
        self._flights: dict[tuple[int, str], _Flight] = {}
        self._held_back: dict[int, list[_Flight]] = {}
        self._losses = _Losses()
        self._errors: list[BaseException] = []
        self._values: dict[int, list[Any]] = {}
        self._last_request = 0
        self._run_seed = int(np.random.SeedSequence().generate_state(1)[0])
        self.ready: list[int] = []
        self._arena: Arena | None = None
        self._built: dict[int, dict[str, Any]] = {}
        builds = {
            member.index: Build(
                slots=member.slots,
                backend=pickle_for_workers(backend.for_slots(member.slots)),
                autoreset_mode=autoreset_mode.value,
                search_path=tuple(sys.path),
                trusted=trusted,
            )
            for member in self.roster.members
        }
        self.crew = Crew(launcher, self.roster, limits, shared_memory)
        self._inbox = self.crew.inbox
        try:
            self.crew.start(builds)
            self._wait_for_all(lambda m: m.index in self._built, "built their envs")
        except BaseException:
            self.crew.close(grace_s=0.0)
            raise

    # Starting.

    @property
    def descriptions(self) -> list[tuple[Member, dict[str, Any]]]:
        """What each worker says about its envs, in slot order."""
        return [(member, self._built[member.index]) for member in self.roster.members]

    def agree(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Settle the layout of rows, then wait until every worker is ready for work."""
        leaves, actions = leaves_of(observation_space), leaves_of(action_space)
        self.action_leaf = actions[0] if len(actions) == 1 and actions[0].is_array else None
        self._arena = self._map_arena(leaves)
        self.batch = Batch(observation_space, self.num_envs, self._arena)
        layout = Layout(
            self.num_envs,
            pack(space_to_plain(observation_space), allow_pickle=True),
            pack(space_to_plain(action_space), allow_pickle=True),
            Arena.size_of(self.num_envs, self.action_leaf, leaves) if self._arena else 0,
        )
        self.crew.reception.agree(layout)
        for member in self.roster.members:
            self.crew.send(member, layout)
        self._wait_for_all(lambda member: member.joined, "got ready")

    def _map_arena(self, leaves: Sequence[Leaf]) -> Arena | None:
        fd = self.crew.arena_fd
        if fd is None:
            return None
        size = Arena.size_of(self.num_envs, self.action_leaf, leaves)
        try:
            allocate(fd, size)
            return Arena(fd, self.num_envs, self.action_leaf, leaves)
        except OSError as error:
            warnings.warn(
                f"cannot allocate {size} bytes of shared memory ({error}); arrays will travel "
                "over tcp, which is slower. shared_memory=False silences this",
                stacklevel=2,
            )
            return None

    def _wait_for_all(self, done: Any, what: str) -> None:
        deadline = time.monotonic() + self.limits.startup_timeout_s
        while not all(done(member) for member in self.roster.members):
            self._pump(min(_TICK_S, deadline - time.monotonic()))
            self._raise_errors()
            if time.monotonic() > deadline:
                self._raise_late(done, what)

    def _raise_late(self, done: Any, what: str) -> None:
        members = self.roster.members
        late = [member for member in members if not done(member)]
        raise StartupError(
            f"{len(members) - len(late)} of {len(members)} workers {what} within "
            f"startup_timeout_s={self.limits.startup_timeout_s:g}; "
            f"waiting for {', '.join(member.worker for member in late)}. "
            + self.crew.obituary(late[0], "it is not ready")
        )

    # Requests.

    def reset(
        self, slots: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        """Send resets for ``slots`` (ascending)."""
        if seeds[0] is not None:
            self._run_seed = abs(int(seeds[0]))
        packed = b"" if options is None else pack(options, allow_pickle=True)
        seed_of = dict(zip(slots, seeds, strict=True))
        self._losses.forget(slots)
        request = self._new_request()
        for member, group in self.roster.split_by_member(list(slots)):
            wanted = tuple(seed_of[slot] for slot in group)
            given = None if all(seed is None for seed in wanted) else wanted
            message = Reset(request, tuple(group), given, packed)
            self._send(_Flight(member, message, tuple(group), time.monotonic()))

    def reset_in_chunks(self, seeds: Sequence[int | None], chunk_size: int) -> None:
        """Reset all slots; each worker answers for ``chunk_size`` of its slots at a time."""
        self.ready.clear()
        for member in self.roster.members:
            for start in range(0, len(member.slots), chunk_size):
                chunk = member.slots[start : start + chunk_size]
                self.reset(chunk, [seeds[slot] for slot in chunk], None)

    def step_all(self, actions: Array | list[Any]) -> None:
        """Send a step for every slot."""
        if self._losses.unreported or self._losses.to_restart or self._arena is None:
            self.step(range(self.num_envs), actions)
        elif not isinstance(actions, np.ndarray):
            self.step(range(self.num_envs), actions)
        else:
            self._step_all_in_arena(self._arena, actions)

    def _step_all_in_arena(self, arena: Arena, actions: Array) -> None:
        # The hot path: one header for all workers, actions written once.
        dtype = actions.dtype.str
        arena.actions(dtype)[...] = actions
        message = Step(self._new_request(), None, ArrayHeader(dtype, ()))
        header, now = encode(message), time.monotonic()
        for member in self.roster.members:
            flight = _Flight(member, message, member.slots, now)
            self._flights[message.request, member.worker] = flight
            if not self.crew.send_encoded(member, header):
                self.crew.send(member, message)

    def step(self, slots: Sequence[int], actions: Array | list[Any]) -> None:
        """Send a step for ``slots`` (ascending), whose actions are in the same order."""
        action_row = {slot: row for row, slot in enumerate(slots)}
        live = self._without_lost(list(slots))
        request = self._new_request()
        for member, group in self.roster.split_by_member(live):
            rows = [action_row[slot] for slot in group]
            message, frames = self._step_message(request, group, rows, actions)
            self._send(_Flight(member, message, tuple(group), time.monotonic()), frames)

    def _step_message(
        self, request: int, group: list[int], rows: list[int], actions: Array | list[Any]
    ) -> tuple[Step, list[Buffer]]:
        slots = tuple(group)
        if not isinstance(actions, np.ndarray):
            chosen = [actions[row] for row in rows]
            return Step(request, slots, packed_actions=pack(chosen, allow_pickle=True)), []
        picked = actions[rows]
        header = ArrayHeader(picked.dtype.str, picked.shape)
        if self._arena is not None:
            self._arena.actions(header.dtype)[group] = picked
            return Step(request, slots, header), []
        return Step(request, slots, header), [frame_of(picked)]

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Ask every worker to call a method of its envs."""
        request = self._new_request()
        arguments = pack((args, kwargs), allow_pickle=True)
        for member in self.roster.members:
            self._send_to(member, Call(request, name, arguments))

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Ask every worker to set an attribute of its envs."""
        request = self._new_request()
        for member in self.roster.members:
            own = pack([values[slot] for slot in member.slots], allow_pickle=True)
            self._send_to(member, SetAttr(request, name, own))

    def results(self) -> tuple[Any, ...]:
        """The values that the finished call returned, in slot order."""
        values = tuple(v for member in self.roster.members for v in self._values[member.index])
        self._values.clear()
        return values

    def _send_to(self, member: Member, message: Message) -> None:
        self._send(_Flight(member, message, member.slots, time.monotonic()))

    def _new_request(self) -> int:
        self._last_request += 1
        return self._last_request

    def _send(self, flight: _Flight, frames: Sequence[Buffer] = ()) -> None:
        member = flight.member
        self._flights[flight.message.request, member.worker] = flight  # type: ignore[attr-defined]
        if member.joined:
            self.crew.send(member, flight.message, frames)
        else:
            self._held_back.setdefault(member.index, []).append(flight)

    # Replies.

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        return not self._flights

    def wait_until_idle(self, timeout_s: float | None) -> bool:
        """Wait for all replies; False after ``timeout_s``. Raises what workers raised."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._flights:
            remaining_s = _TICK_S if deadline is None else deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            self._pump(min(_TICK_S, remaining_s))
        self._raise_errors()
        return True

    def take_ready(self, count: int) -> list[int]:
        """Wait until ``count`` slots have been answered; take the first of them, ascending."""
        while len(self.ready) < count:
            self._pump(_TICK_S)
            self._raise_errors()
        slots, self.ready = sorted(self.ready[:count]), self.ready[count:]
        return slots

    def finish_partial_batches(self) -> None:
        """Wait for what is under way, and forget it."""
        self.wait_until_idle(None)
        self.ready.clear()

    def abandon(self) -> None:
        """Take no notice of the replies to what was asked so far."""
        self.ready.clear()
        self._flights.clear()
        self._held_back.clear()

    def _pump(self, timeout_s: float) -> None:
        self._inbox.wait(timeout_s)
        for worker, message, frames in self._inbox.take():
            try:
                self._arrived(worker, message, frames)
            except ProtocolError as error:
                self._lose(worker, f"it broke the protocol: {error}")
        self._check_deadlines()

    def _arrived(self, worker: str, message: Any, frames: list[Buffer]) -> None:
        match message:
            case Stepped(request=request):
                flight = self._flights.pop((request, worker), None)
                if flight is not None:
                    self._take_rows(flight, message, frames)
            case Returned(request=request):
                flight = self._flights.pop((request, worker), None)
                if flight is not None:
                    values = unpack(message.values, allow_pickle=self._trusted)
                    self._values[flight.member.index] = values
            case Raised():
                self._take_error(worker, message)
            case Warned(category=category, text=text):
                warnings.warn(f"{worker}: {text}", _warning_class(category), stacklevel=2)
            case Built(description=description):
                member = self.roster.find(worker)
                if member is not None:
                    self._built[member.index] = unpack(description, allow_pickle=self._trusted)
            case LaidOut(error=error):
                self._joined(worker, error)
            case Ended(reason=reason):
                self._lose(worker, reason)
            case ProtocolError():
                raise message
            case _:
                raise ProtocolError(f"a worker may not say {type(message).__name__}")

    def _take_rows(self, flight: _Flight, message: Stepped, frames: list[Buffer]) -> None:
        if frames or self._arena is None:
            self.batch.put_arrays(flight.slots, read_arrays(message.arrays, frames))
        if message.objects:
            columns = unpack(message.objects, allow_pickle=self._trusted)
            self.batch.put_objects(flight.slots, columns)
        if flight.reports_loss:
            for slot in flight.slots:
                self.batch.truncated[slot] = True
        if message.infos:
            self.batch.put_infos(unpack(message.infos, allow_pickle=self._trusted))
        self.ready.extend(flight.slots)

    def _take_error(self, worker: str, raised: Raised) -> None:
        flight = self._flights.pop((raised.request, worker), None)
        if flight is None and raised.request:
            return
        self._errors.append(rebuild(raised, self.crew.reception.whereabouts(worker)))

    def _raise_errors(self) -> None:
        if self._errors:
            error, self._errors = self._errors[0], []
            self._values.clear()
            raise error

    # Losses.

    def _joined(self, worker: str, error: str) -> None:
        member = self.roster.find(worker)
        if member is None:
            return
        if error:
            raise ProtocolError(f"it cannot map the shared memory: {error}")
        member.joined = True
        for flight in self._held_back.pop(member.index, []):
            flight.sent_at = time.monotonic()
            self.crew.send(member, flight.message)

    def _check_deadlines(self) -> None:
        now, limits = time.monotonic(), self.limits
        for flight in list(self._flights.values()):
            waited_s = now - flight.sent_at
            if flight.member.joined and waited_s > limits.step_timeout_s + _HUNG_GRACE_S:
                self._lose(
                    flight.member.worker, f"no answer within step_timeout_s={limits.step_timeout_s:g}"
                )
            elif not flight.member.joined and waited_s > limits.restart_timeout_s:
                self._lose(
                    flight.member.worker,
                    f"not ready within restart_timeout_s={limits.restart_timeout_s:g}",
                )

    def _lose(self, worker: str, reason: str) -> None:
        member = self.roster.find(worker)
        if member is None:
            return
        if not hasattr(self, "batch") or (not member.joined and not member.incarnation):
            self._errors.append(StartupError(self.crew.obituary(member, reason)))
            return
        in_flight = [f for f in self._flights.values() if f.member is member]
        for flight in in_flight:
            del self._flights[flight.message.request, worker]  # type: ignore[attr-defined]
        self._held_back.pop(member.index, None)
        try:
            self.crew.replace(member, reason)
        except WorkerLostError as error:
            self._errors.append(error)
            return
        stepping = {s for f in in_flight if isinstance(f.message, Step) for s in f.slots}
        resetting = {s for f in in_flight if isinstance(f.message, Reset) for s in f.slots}
        self._losses.unreported.update(set(member.slots) - resetting)
        for flight in in_flight:
            self._answer_for_lost(flight, reason)
        self._report_lost(sorted(stepping))

    def _answer_for_lost(self, flight: _Flight, reason: str) -> None:
        flight.sent_at = time.monotonic()
        if isinstance(flight.message, Reset):
            self._send(flight)
        elif not isinstance(flight.message, Step):
            self._errors.append(
                WorkerLostError(
                    f"{flight.member.worker} took the place of a worker that was lost ({reason}) "
                    f"during {type(flight.message).__name__}: call it again"
                )
            )

    def _without_lost(self, slots: list[int]) -> list[int]:
        """Report and restart what was lost among ``slots``; the rest can be stepped."""
        unreported = [slot for slot in slots if slot in self._losses.unreported]
        restarting = [slot for slot in slots if slot in self._losses.to_restart]
        if not unreported and not restarting:
            return slots
        self._report_lost(unreported)
        if restarting and self._mode is AutoresetMode.NEXT_STEP:
            self._restart(restarting, reports_loss=False)
        gone = {*unreported, *restarting}
        return [slot for slot in slots if slot not in gone]

    def _report_lost(self, slots: list[int]) -> None:
        """Give each of these slots its ``env_lost`` row (in SAME_STEP mode, after a restart)."""
        if not slots:
            return
        self._losses.unreported.difference_update(slots)
        if self._mode is AutoresetMode.SAME_STEP:
            for slot in slots:
                final = {"final_obs": self.batch.observation_of(slot), "final_info": {}}
                self.batch.put_infos([(slot, {**final, "env_lost": True})])
            self._restart(slots, reports_loss=True)
            return
        for slot in slots:
            self.batch.mark_lost(slot)
        self._losses.to_restart.update(slots)
        self.ready.extend(slots)

    def _restart(self, slots: list[int], reports_loss: bool) -> None:
        self._losses.forget(slots)
        request = self._new_request()
        for member, group in self.roster.split_by_member(slots):
            seeds = tuple(restart_seed(self._run_seed, s, member.incarnation) for s in group)
            message = Reset(request, tuple(group), seeds)
            self._send(
                _Flight(member, message, tuple(group), time.monotonic(), reports_loss=reports_loss)
            )

    def close(self, grace_s: float) -> None:
        """End all workers; let them close their envs for ``grace_s`` first."""
        self.crew.close(grace_s)


def _warning_class(name: str) -> type[Warning]:
    kind = getattr(builtins, name, UserWarning)
    return kind if isinstance(kind, type) and issubclass(kind, Warning) else UserWarning
