"""The worker's loop: hear, do, answer."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
import time
import traceback
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gymnasium
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv.policies.copy import PolicyCopy
from clusterenv.sync import EveryVersion, SyncRule
from clusterenv.wire.channel import Channel, SharedChannel
from clusterenv.wire.codec import Buffer, frame_of, header_of, read_array
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import (
    PROTOCOL_VERSION,
    Build,
    Built,
    Call,
    Close,
    Collect,
    Collected,
    Hello,
    LaidOut,
    Layout,
    Message,
    Pull,
    Raised,
    Refused,
    Reset,
    Returned,
    SetAttr,
    Step,
    TakePolicy,
    Warned,
    Weights,
)
from clusterenv.wire.shared_memory import Arena, Mailbox
from clusterenv.wire.spaces import leaves_of, space_from_plain, space_to_plain
from clusterenv.wire.values import pack, unpack
from clusterenv.wire.versions import versions
from clusterenv.wire.zmq_channel import WorkerSocket
from clusterenv.worker.rows import ArenaRows, FrameRows, Outcome, Rows
from clusterenv.worker.sampler import Sampler
from clusterenv.worker.stepper import EnvStepper, Stepper, UserCodeError
from clusterenv.worker.vector_stepper import VectorStepper

_POLL_S = 1.0


class Worker:
    """Runs the envs of its slots and answers the head, until told to close."""

    def __init__(
        self, invitation: Invitation, channel: Channel, socket: WorkerSocket, notes: Any
    ) -> None:
        self._invitation = invitation
        self._channel = channel
        self._notes = notes
        self.monitor = socket.monitor
        self.busy_since: float | None = None
        # Held while user code runs; in-process workers share one lock.
        self.turn: AbstractContextManager[Any] = nullcontext()
        self._closing = False
        self._trusted = False
        self._slots: tuple[int, ...] = ()
        self._stepper: Stepper | None = None
        self._rows: Rows | None = None
        self._arena: Arena | None = None
        self._observation_space: Space[Any] | None = None
        self._sync_rule: SyncRule = EveryVersion()
        self._copy: PolicyCopy | None = None
        self._sampler: Sampler | None = None
        self._policy_id = 0
        # Where the envs are, for a policy to go on from; None after single steps.
        self._current: Outcome | None = None

    @staticmethod
    def connect(invitation: Invitation) -> Worker:
        """A worker that talks to the head of its invitation."""
        socket = WorkerSocket(invitation)
        shared = invitation.shared
        if shared is None:
            return Worker(invitation, socket, socket, notes=[0])
        mailbox = Mailbox(shared.mailbox)
        channel = SharedChannel(socket, mailbox, shared.doorbell, shared.head_bell)
        return Worker(invitation, channel, socket, mailbox.notes)

    def run(self) -> None:
        """Work until the head says Close."""
        self._channel.send(Hello(PROTOCOL_VERSION, versions(), socket.gethostname(), os.getpid()))
        try:
            while not self._closing:
                received = self._channel.recv(_POLL_S)
                if received is not None:
                    self.busy_since = time.monotonic()
                    with self.turn:
                        self._handle(*received)
                    self.busy_since = None
        finally:
            if self._stepper is not None:
                self._stepper.close()

    def _handle(self, message: Message, frames: list[Buffer]) -> None:
        request = getattr(message, "request", 0)
        try:
            self._do(message, frames)
        except UserCodeError as failure:
            assert failure.__cause__ is not None
            self._report(request, failure.__cause__, failure.slot, failure.action)
        except Exception as error:
            self._report(request, error)

    def _do(self, message: Message, frames: list[Buffer]) -> None:
        match message:
            case Step():
                self._step(message, frames)
            case Reset():
                self._reset(message)
            case Call(request=request, name=name):
                args, kwargs = unpack(message.arguments, allow_pickle=True)
                self._return(request, self._envs.call(name, args, kwargs))
            case SetAttr(request=request, name=name):
                self._envs.set_attr(name, unpack(message.values, allow_pickle=True))
                self._return(request, [])
            case Collect():
                self._collect(message)
            case TakePolicy():
                self._take_policy(message)
            case Weights(policy_id=policy_id) if policy_id == self._policy_id:
                assert self._copy is not None
                self._copy.load(message.version, frames[0], message.checksum)
            case Build():
                self._build(message)
            case Layout():
                self._channel.send(LaidOut(self._lay_out(message)))
            case Refused(reason=reason):
                raise SystemExit(f"the head refused this worker: {reason}")
            case Close():
                self._closing = True

    @property
    def _envs(self) -> Stepper:
        assert self._stepper is not None, "the head asked for work before Build"
        return self._stepper

    def disconnect(self) -> None:
        """Close the connection (a worker process just ends)."""
        self._channel.close()

    # Joining.

    def _build(self, message: Build) -> None:
        sys.path[:0] = [path for path in message.search_path if path not in sys.path]
        self._trusted, self._slots = message.trusted, message.slots
        mode = AutoresetMode(message.autoreset_mode)
        backend = pickle.loads(message.backend)
        self._sync_rule = pickle.loads(message.sync_rule)
        built = backend.build(message.slots)
        if isinstance(built, VectorEnv):
            _check_autoreset_mode(built, mode)
            self._stepper = VectorStepper(built, self._slots)
            description = _describe_vector(built)
        else:
            self._stepper = EnvStepper(built, self._slots, mode, self._notes)
            description = _describe_envs(built, self._trusted)
        self._channel.send(Built(pack(description, allow_pickle=self._trusted)))

    def _lay_out(self, message: Layout) -> str:
        observation_space = space_from_plain(unpack(message.observation_space, allow_pickle=True))
        self._observation_space = observation_space
        action_space = space_from_plain(unpack(message.action_space, allow_pickle=True))
        leaves, actions = leaves_of(observation_space), leaves_of(action_space)
        self._rows = FrameRows(leaves, self._trusted)
        shared = self._invitation.shared
        if shared is None or not message.arena_size:
            return ""
        action = actions[0] if len(actions) == 1 and actions[0].is_array else None
        try:
            self._arena = Arena(shared.arena, message.num_envs, action, leaves)
        except (OSError, ValueError) as error:
            return str(error)
        self._rows = ArenaRows(self._arena, leaves, self._trusted)
        return ""

    # Work.

    def _step(self, message: Step, frames: list[Buffer]) -> None:
        slots = message.slots if message.slots is not None else self._slots
        self._current = None
        outcome = self._envs.step(slots, self._actions(message, slots, frames))
        self._answer(message.request, slots, outcome)

    def _actions(self, message: Step, slots: tuple[int, ...], frames: list[Buffer]) -> Any:
        if message.actions is None:
            return unpack(message.packed_actions, allow_pickle=True)
        if frames:
            # An env may keep its action, and may write to it.
            return read_array(message.actions, frames[0]).copy()
        assert self._arena is not None
        actions = self._arena.actions(message.actions.dtype)
        if slots[-1] - slots[0] + 1 == len(slots):
            return actions[slots[0] : slots[-1] + 1].copy()
        return actions[list(slots)]

    def _reset(self, message: Reset) -> None:
        seeds = message.seeds if message.seeds is not None else (None,) * len(message.slots)
        options = unpack(message.options, allow_pickle=True) if message.options else None
        outcome = self._envs.reset(message.slots, seeds, options)
        self._current = outcome if message.slots == self._slots else None
        self._answer(message.request, message.slots, outcome)

    def _answer(self, request: int, slots: tuple[int, ...], outcome: Any) -> None:
        assert self._rows is not None
        self._channel.send(*self._rows.reply(request, slots, outcome))

    def _return(self, request: int, values: list[Any]) -> None:
        self._channel.send(Returned(request, pack(values, allow_pickle=self._trusted)))

    # Policies.

    def _take_policy(self, message: TakePolicy) -> None:
        assert self._observation_space is not None
        self._policy_id = message.policy_id
        self._copy = PolicyCopy(pickle.loads(message.policy), message.layout)
        self._sampler = Sampler(
            self._envs, self._slots, self._observation_space, self._copy, message.seed
        )

    def _collect(self, message: Collect) -> None:
        held = 0 if self._copy is None else self._copy.version
        if self._sync_rule.should_pull(held, message.newest):
            self._pull(held)
        if self._sampler is None or self._copy is None or self._current is None:
            raise RuntimeError("the head asked for a rollout without a policy or before a reset")
        arrays, self._current = self._sampler.collect(self._current, message.num_steps)
        headers = tuple(header_of(array) for array in arrays.values())
        reply = Collected(message.request, self._copy.version, tuple(arrays), headers)
        self._channel.send(reply, [frame_of(array) for array in arrays.values()])

    def _pull(self, held: int) -> None:
        self._channel.send(Pull(self._policy_id, held))
        while self._copy is None or self._copy.version == held:
            received = self._channel.recv(_POLL_S)
            if received is not None:
                self._do(*received)
            if self._closing:
                raise RuntimeError("closed while waiting for weights")

    # Trouble.

    def _report(
        self, request: int, error: BaseException, slot: int | None = None, action: Any = None
    ) -> None:
        kind = type(error)
        try:
            arguments = pack(error.args, allow_pickle=False)
        except TypeError:
            arguments = b""
        self._channel.send(
            Raised(
                request,
                slot,
                kind.__module__,
                kind.__qualname__,
                arguments,
                str(error),
                "".join(traceback.format_exception(error)),
                "" if action is None else repr(action),
            )
        )

    def forward_warnings(self) -> None:
        """Show this process's warnings at the head as well."""
        print_here = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **rest: Any) -> None:
            print_here(message, category, *where, **rest)
            # The channel belongs to the worker's own thread.
            if threading.current_thread() is threading.main_thread():
                self._channel.send(Warned(category.__name__, str(message)))

        warnings.showwarning = show


def _check_autoreset_mode(env: VectorEnv[Any, Any, Any], mode: AutoresetMode) -> None:
    own = env.metadata.get("autoreset_mode")
    if own is not None and AutoresetMode(own) is not mode:
        raise ValueError(
            f"the backend's VectorEnv resets with {AutoresetMode(own)}, but ClusterEnv was given "
            f"autoreset_mode={mode}: make the two equal"
        )


def _describe_envs(envs: list[gymnasium.Env[Any, Any]], trusted: bool) -> dict[str, Any]:
    return {
        "observation_spaces": _spaces_to_plain([env.observation_space for env in envs]),
        "action_spaces": _spaces_to_plain([env.action_space for env in envs]),
        "metadata": _plain_items(envs[0].metadata, trusted),
        "render_mode": envs[0].render_mode,
    }


def _describe_vector(env: VectorEnv[Any, Any, Any]) -> dict[str, Any]:
    return {
        "observation_spaces": _spaces_to_plain([env.single_observation_space]),
        "action_spaces": _spaces_to_plain([env.single_action_space]),
        "metadata": _plain_items(env.metadata, trusted=False),
        "render_mode": env.render_mode,
    }


def _spaces_to_plain(spaces: list[gymnasium.Space[Any]]) -> list[Any]:
    """One description if all are equal, else one per slot."""
    if all(space == spaces[0] for space in spaces[1:]):
        spaces = spaces[:1]
    return [space_to_plain(space) for space in spaces]


def _plain_items(metadata: dict[str, Any], trusted: bool) -> dict[str, Any]:
    """The items that may travel; a worker's metadata is no reason to refuse it."""

    def may_travel(value: Any) -> bool:
        try:
            pack(value, allow_pickle=trusted)
        except TypeError:
            return False
        return True

    return {key: value for key, value in metadata.items() if may_travel(value)}
