"""The head as the user's thread sees it: work on slots, wherever their envs are."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from clusterenv.backends.base import Backend
from clusterenv.errors import ProtocolError, StartupError
from clusterenv.head.batch import Batch
from clusterenv.head.crew import Crew, Limits
from clusterenv.head.exchange import Exchange, Flight, Loss, Reply
from clusterenv.head.recovery import Recovery
from clusterenv.head.roster import Member, Roster
from clusterenv.head.scrutiny import Scrutiny, read_description
from clusterenv.head.surveyor import Surveyor
from clusterenv.launchers.base import THREAD_NAME, Launcher
from clusterenv.rollout import FragmentPart
from clusterenv.sync import SyncRule
from clusterenv.wire.addresses import Reach
from clusterenv.wire.codec import Array, Buffer, frame_of, read_arrays
from clusterenv.wire.messages import (
    Announce,
    ArrayHeader,
    Build,
    Call,
    Collect,
    Collected,
    Evaluate,
    Layout,
    Reset,
    Returned,
    SetAttr,
    Step,
    Stepped,
    StepWithPolicy,
)
from clusterenv.wire.pickling import pickle_for_workers
from clusterenv.wire.shared_memory import Arena, allocate
from clusterenv.wire.spaces import (
    Leaf,
    leaves_of,
    pick_rows,
    rows_of,
    single_array_leaf,
    space_to_plain,
)
from clusterenv.wire.values import pack, unpack

_TICK_S = 1.0


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
        reach: Reach,
    ) -> None:
        self.num_envs = num_envs
        self.roster = Roster(num_envs, num_workers, limits.max_restarts_per_minute)
        self.ready: list[int] = []
        self.batch: Batch
        self._scrutiny: Scrutiny
        self.action_leaf: Leaf | None = None
        self._trusted = trusted
        self._values: dict[int, list[Any]] = {}
        self._parts: list[FragmentPart] = []
        self._acted: dict[int, dict[str, Any]] = {}
        self._arena: Arena | None = None
        builds = {
            member.index: Build(
                slots=member.slots,
                backend=pickle_for_workers(backend.for_slots(member.slots)),
                autoreset_mode=autoreset_mode.value,
                sync_rule=pickle_for_workers(sync_rule),
                search_path=tuple(sys.path),
                trusted=trusted,
            )
            for member in self.roster.members
        }
        self.crew = Crew(launcher, self.roster, limits, shared_memory, encoding, reach)
        self.surveyor = Surveyor(sync_rule, self.crew, self.roster)
        self._acted_on: dict[int, list[Array]] = {}
        self._exchange = Exchange(self.crew, self.roster)
        self._recovery: Recovery | None = None
        self._mode = autoreset_mode
        try:
            self.crew.start(builds)
            self._wait_for_all(self._has_built, "built their envs")
        except BaseException:
            self.crew.close(grace_s=0.0)
            raise

    # Starting.

    @property
    def descriptions(self) -> list[tuple[Member, dict[str, Any]]]:
        """What each worker says about its envs, in slot order."""
        return [(member, self._description(member)) for member in self.roster.members]

    def _description(self, member: Member) -> dict[str, Any]:
        data = self._exchange.description_by_member[member.index]
        try:
            return read_description(data, len(member.slots), self._trusted)
        except ProtocolError as error:
            obituary = self.crew.obituary(member, f"it broke the protocol: {error}")
            raise StartupError(obituary) from error

    def _has_built(self, member: Member) -> bool:
        return member.index in self._exchange.description_by_member

    def agree(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Settle the layout of rows, then wait until every worker is ready for work."""
        leaves = leaves_of(observation_space)
        self.action_leaf = single_array_leaf(action_space)
        self._arena = self._map_arena(leaves)
        self.batch = Batch(observation_space, self.num_envs, self._arena)
        self._scrutiny = Scrutiny(observation_space, action_space)
        self.surveyor.agree(observation_space, action_space)
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
        self._recovery = Recovery(
            self.crew, self.roster, self._exchange, self.batch, self._mode, self.ready
        )

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

    def _wait_for_all(self, done: Callable[[Member], bool], what: str) -> None:
        members, timeout_s = self.roster.members, self.crew.limits.startup_timeout_s
        deadline = time.monotonic() + timeout_s
        while late := [member for member in members if not done(member)]:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise StartupError(
                    f"{len(members) - len(late)} of {len(members)} workers {what} within "
                    f"startup_timeout_s={timeout_s:g}; waiting for "
                    f"{', '.join(member.worker for member in late)}{self.crew.log_tail(late[0])}"
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
        self._recovering.forget(slots, run_seed)
        packed = b"" if options is None else pack(options, allow_pickle=True)
        request = self._exchange.new_request()
        for member, group, part in self.roster.split_by_member(slots):
            wanted = list(seeds[part])
            given = b"" if all(s is None for s in wanted) else pack(wanted, allow_pickle=False)
            message = Reset(request, group, run_seed, given, packed)
            self._exchange.send(Flight(member, message, group))

    def reset_in_chunks(self, seeds: Sequence[int | None], run_seed: int, chunk_size: int) -> None:
        """Reset all slots; each worker answers for ``chunk_size`` of its slots at a time."""
        self.ready.clear()
        for member in self.roster.members:
            for start in range(0, len(member.slots), chunk_size):
                chunk = member.slots[start : start + chunk_size]
                self.reset(chunk, [seeds[slot] for slot in chunk], None, run_seed)

    def step_all(self, actions: Array | list[Any]) -> None:
        """Send a step for every slot."""
        if (
            self._arena is None
            or not isinstance(actions, np.ndarray)
            or self._recovering.has_lost_slots
        ):
            self.step(range(self.num_envs), actions)
            return
        dtype = actions.dtype.str
        self._arena.actions(dtype)[...] = actions
        header = ArrayHeader(dtype, ())
        self._exchange.send_to_all(Step(self._exchange.new_request(), None, header))

    def step(self, slots: Sequence[int], actions: Array | list[Any]) -> None:
        """Send a step for ``slots`` (ascending), whose actions are in the same order."""
        live = self._recovering.deal_with_lost(slots)
        if len(live) < len(slots):
            still_there = set(live)
            rows = [row for row, slot in enumerate(slots) if slot in still_there]
            actions = pick_rows(rows, actions)
        request = self._exchange.new_request()
        for member, group, part in self.roster.split_by_member(live):
            message, frames = self._step_message(request, group, actions[part])
            self._exchange.send(Flight(member, message, group), frames)

    def _step_message(
        self, request: int, slots: tuple[int, ...], actions: Array | list[Any]
    ) -> tuple[Step, list[Buffer]]:
        if not isinstance(actions, np.ndarray):
            return Step(request, slots, packed_actions=pack(actions, allow_pickle=True)), []
        header = ArrayHeader(actions.dtype.str, actions.shape)
        if self._arena is None:
            return Step(request, slots, header), [frame_of(actions)]
        self._arena.actions(header.dtype)[rows_of(slots)] = actions
        return Step(request, slots, header), []

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Ask every worker to call a method of its envs."""
        request = self._exchange.new_request()
        arguments = pack((args, kwargs), allow_pickle=True)
        for member in self.roster.members:
            self._exchange.send(Flight(member, Call(request, name, arguments), member.slots))

    def collect(self, num_steps: int) -> None:
        """Ask every worker for a fragment made with the policy that was published."""
        for member in self.roster.members:
            self._collect(member, num_steps)

    def _collect(self, member: Member, num_steps: int) -> None:
        self._recovering.restart_lost(member.slots)
        request = Collect(
            self._exchange.new_request(),
            num_steps,
            self.crew.publisher.version,
            self.surveyor.latest(member),
        )
        self._exchange.send(Flight(member, request, member.slots))

    def stream(self, num_steps: int, in_flight: int) -> Iterator[FragmentPart]:
        """Fragments as they finish, at most ``in_flight`` per worker at a time."""
        for _ in range(in_flight):
            self.collect(num_steps)
        try:
            while True:
                while (part := self._take_next_part()) is None:
                    self._pump(_TICK_S)
                    self._exchange.raise_errors()
                # The worker gets its next task before the learner starts with this fragment.
                self._collect(self.roster.owner_of(part.slots[0]), num_steps)
                yield part
        finally:
            if not self.crew.is_closed:
                for flight in self._exchange.cancel_collecting():
                    self._recovering.restart_later(flight.slots)
            self._parts.clear()

    def _take_next_part(self) -> FragmentPart | None:
        """A worker's oldest fragment: one in shared memory may overtake one on the socket."""
        for part in sorted(self._parts, key=lambda part: part.request):
            if not self._exchange.expects_earlier(part.slots, part.request):
                self._parts.remove(part)
                return part
        return None

    def announce(self) -> None:
        """Tell the workers that there is a new version; they decide whether to pull it."""
        version = self.crew.publisher.version
        for member in self.roster.members:
            self.crew.io.send(member.worker, Announce(version, self.surveyor.latest(member)))

    def step_with_policy(self) -> None:
        """Ask every worker to step its envs with the policy that was published."""
        request = StepWithPolicy(self._exchange.new_request(), self.crew.publisher.version)
        surveys = self.surveyor.is_on
        if not (surveys or self._recovering.has_lost_slots):
            self._exchange.send_to_all(request)
            return
        live = self._recovering.deal_with_lost(range(self.num_envs))
        # A lost slot is always one of a whole worker.
        for member, group, _ in self.roster.split_by_member(live):
            if surveys:
                self._acted_on[member.index] = self.batch.leaves_of(group)
                request = msgspec.structs.replace(request, measured=self.surveyor.latest(member))
            self._exchange.send(Flight(member, request, group))

    def evaluate(self, episodes: Sequence[int], seed: int, deterministic: bool) -> None:
        """Ask for ``episodes[i]`` whole episodes of slot *i*."""
        request, version = self._exchange.new_request(), self.crew.publisher.version
        for member in self.roster.members:
            own = tuple(episodes[slot] for slot in member.slots)
            message = Evaluate(request, own, seed, deterministic, version)
            self._exchange.send(Flight(member, message, member.slots))

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Ask every worker to set an attribute of its envs."""
        request = self._exchange.new_request()
        for member in self.roster.members:
            own = pack([values[slot] for slot in member.slots], allow_pickle=True)
            self._exchange.send(Flight(member, SetAttr(request, name, own), member.slots))

    # Replies.

    def wait_until_idle(self, timeout_s: float | None) -> bool:
        """Wait for all replies; False after ``timeout_s``. Raises what workers raised."""
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

    def take_ready(self, count: int) -> list[int]:
        """Wait until ``count`` slots have been answered; take the first of them, ascending."""
        while len(self.ready) < count:
            self._pump(_TICK_S)
            self._exchange.raise_errors()
        slots = sorted(self.ready[:count])
        del self.ready[:count]
        return slots

    def take_values(self) -> tuple[Any, ...]:
        """What the finished call returned, in slot order."""
        values = tuple(v for member in self.roster.members for v in self._values[member.index])
        self._values.clear()
        return values

    def take_parts(self) -> list[FragmentPart]:
        """The fragments that have arrived, by slot."""
        parts, self._parts = self._parts, []
        return sorted(parts, key=lambda part: part.slots)

    def take_acted(self) -> dict[str, Array]:
        """What the policy did in the finished step, by slot."""
        acted, self._acted = self._acted, {}
        if not acted:
            return {}
        like = next(iter(acted.values()))
        joined: dict[str, Array] = _join_acted(
            [
                acted.get(member.index) or _zeros(like, len(member.slots))
                for member in self.roster.members
            ]
        )
        return joined

    def abandon(self) -> None:
        """Take no notice of the replies to what was asked so far."""
        for flight in self._exchange.abandon():
            self._recovering.restart_later(flight.slots)
        self.batch.forget_infos()
        self._values.clear()
        self._parts.clear()
        self._acted.clear()
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
            obituary = self.crew.obituary(loss.member, loss.reason)
            self._exchange.fail(StartupError(obituary))
        else:
            self._recovery.lost(loss)

    def _take(self, flight: Flight, reply: Reply, frames: Sequence[Buffer]) -> None:
        match reply:
            case Stepped():
                self._take_rows(flight, reply, frames)
            case Collected():
                part = self._checked_part(flight, reply, frames)
                self._parts.append(part)
                self.surveyor.note_fragment(flight.member, part)
            case Returned():
                values = unpack(reply.values, allow_pickle=self._trusted)
                count = 0 if isinstance(flight.request, SetAttr) else len(flight.slots)
                if not isinstance(values, list) or len(values) != count:
                    raise ProtocolError(f"no list of {count} values came back")
                self._values[flight.member.index] = values

    def _checked_part(
        self, flight: Flight, reply: Collected, frames: Sequence[Buffer]
    ) -> FragmentPart:
        part, newest = _part(flight, reply, frames), self.crew.publisher.newest
        assert isinstance(flight.request, Collect)
        assert newest is not None
        versions = range(newest.policy_since, newest.version + 1)
        self._scrutiny.check_part(part, flight.request.num_steps, versions, self._parts)
        return part

    def _take_rows(self, flight: Flight, reply: Stepped, frames: Sequence[Buffer]) -> None:
        if frames or self._arena is None:
            self.batch.put_arrays(flight.slots, read_arrays(reply.arrays, frames))
        if reply.objects:
            columns = unpack(reply.objects, allow_pickle=self._trusted)
            self.batch.put_objects(flight.slots, columns)
        if reply.infos:
            infos = unpack(reply.infos, allow_pickle=self._trusted)
            self.batch.put_infos(infos, flight.slots)
        if reply.acted:
            acted = unpack(reply.acted, allow_pickle=self._trusted)
            newest, others = self.crew.publisher.version, self._acted.values()
            self._scrutiny.check_acted(acted, len(flight.slots), newest, others)
            self._acted[flight.member.index] = acted
            if self.surveyor.is_on:
                acted_on = self._acted_on.pop(flight.member.index)
                self.surveyor.note_step(flight.member, acted_on, acted)
        if flight.reports_loss:
            self.batch.truncated[list(flight.slots)] = True
        self.ready.extend(flight.slots)

    @property
    def _recovering(self) -> Recovery:
        assert self._recovery is not None, "agree() comes before any work"
        return self._recovery

    def close(self, grace_s: float) -> None:
        """End all workers; let them close their envs for ``grace_s`` first."""
        self.crew.close(grace_s)

    def close_from_any_thread(self) -> None:
        """End all workers at once, even if a thread of the run is where garbage is collected."""
        if threading.current_thread().name.startswith(THREAD_NAME):
            # It could not wait for its own end.
            threading.Thread(target=self.close, args=(0.0,)).start()
        else:
            self.close(0.0)


def _part(flight: Flight, reply: Collected, frames: Sequence[Buffer]) -> FragmentPart:
    arrays = read_arrays(reply.arrays, frames)
    return FragmentPart(
        flight.slots, reply.request, reply.version, dict(zip(reply.names, arrays, strict=True))
    )


def _zeros(like: Any, count: int) -> Any:
    """What a lost worker's policy did: nothing."""
    if isinstance(like, dict):
        return {key: _zeros(value, count) for key, value in like.items()}
    if isinstance(like, tuple):
        return tuple(_zeros(value, count) for value in like)
    return np.zeros((count, *like.shape[1:]), like.dtype)


def _join_acted(parts: list[Any]) -> Any:
    """The parts of all workers as one, in their structure."""
    if isinstance(parts[0], dict):
        return {key: _join_acted([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple([_join_acted(list(column)) for column in zip(*parts, strict=True)])
    return np.concatenate(parts)
