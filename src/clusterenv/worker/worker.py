"""The worker's loop: hear, do, answer."""

from __future__ import annotations

import pickle
import signal
import threading
import time
import warnings
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv.arrays import Buffer
from clusterenv.plain.spaces import leaves_of, single_array_leaf, space_from_plain
from clusterenv.plain.values import pack, unpack
from clusterenv.stopwatch import Stopwatch
from clusterenv.wire.arena import Arena
from clusterenv.wire.channel import Channel, SharedChannel
from clusterenv.wire.codec import frame_of, header_of, read_array
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import (
    Build,
    Built,
    Call,
    Close,
    Collect,
    Collected,
    Evaluate,
    LaidOut,
    Layout,
    Leaving,
    Message,
    PartCall,
    Profile,
    Refused,
    Reset,
    Returned,
    SetAttr,
    Step,
    StepCall,
    StepWithPolicy,
    Warned,
)
from clusterenv.wire.shared_memory import Mailbox
from clusterenv.wire.worker_channel import WorkerSocket
from clusterenv.worker import profiling
from clusterenv.worker.acting import Acting, Workplace
from clusterenv.worker.answers import Answers, SharedAnswers, raised
from clusterenv.worker.called_steps import CalledSteps
from clusterenv.worker.description import check_autoreset_mode, describe_envs, describe_vector
from clusterenv.worker.introduction import hello
from clusterenv.worker.rows import ArenaRows, FrameRows, Outcome
from clusterenv.worker.stepper import EnvStepper, Stepper, UserCodeError
from clusterenv.worker.surroundings import settle
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
        self.socket = socket
        # When the current request, or the current step within it, must be over.
        self.deadline: float | None = None
        # Held while user code runs; in-process workers share one lock.
        self.turn: AbstractContextManager[Any] = nullcontext()
        self._closing = False
        self._has_to_leave = ""
        self._trusted = False
        self._slots: tuple[int, ...] = ()
        self._place = 0
        self._stepper: Stepper | None = None
        self._answers: Answers | None = None
        self._called: CalledSteps | None = None
        self._arena: Arena | None = None
        self._build_message: Build | None = None
        self._acting: Acting | None = None
        self._watch: Stopwatch | None = None
        self._backlog: deque[tuple[Message, list[Buffer]]] = deque()
        # Where the envs are, for a policy to go on from; None if only some of them were stepped.
        self._current: Outcome | None = None

    @staticmethod
    def connect(invitation: Invitation) -> Worker:
        """A worker that talks to the head of its invitation."""
        socket = WorkerSocket(invitation)
        shared = invitation.shared
        if shared is None:
            return Worker(invitation, socket, socket, notes=[0])
        mailbox = Mailbox(shared.mailbox)
        channel = SharedChannel(socket, mailbox, shared)
        return Worker(invitation, channel, socket, mailbox.notes)

    def run(self) -> None:
        """Work until the head says Close."""
        self._channel.send(hello())
        try:
            while not self._closing:
                has_spun = self._step_as_called()
                if self._has_to_leave:
                    self._channel.send(Leaving(self._has_to_leave))
                    self._has_to_leave = ""
                received = self._next_message(spin=not has_spun)
                if received is not None:
                    with self.turn:
                        self._expect_progress(isinstance(received[0], Build))
                        self._handle(*received)
                    self.deadline = None
        finally:
            self._tear_down()

    def _next_message(self, spin: bool) -> tuple[Message, list[Buffer]] | None:
        return self._backlog.popleft() if self._backlog else self._channel.recv(_POLL_S, spin)

    def _tear_down(self) -> None:
        if self._stepper is not None:
            self._stepper.close()
        if self._acting is not None:
            self._acting.close()
        self._stepper = self._acting = self._current = self._called = None
        if self._watch is not None:
            # What it timed is gone, and a part of a run says nothing of the whole.
            self._watch.stop()
            self._watch = None

    def _expect_progress(self, building: bool = False) -> None:
        limits = self._invitation
        allowed_s = limits.startup_timeout_s if building else limits.step_timeout_s
        self.deadline = time.monotonic() + allowed_s

    def _handle(self, message: Message, frames: list[Buffer]) -> None:
        try:
            self._do(message, frames)
        except Exception as error:
            self._report(getattr(message, "request", 0), error)

    def _do(self, message: Message, frames: list[Buffer]) -> None:
        match message:
            case StepCall() | PartCall():
                self._answer_call(message)
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
            case StepWithPolicy():
                self._step_with_policy(message)
            case Evaluate():
                self._evaluate(message)
            case Profile(request=request, on=on):
                self._return(request, [self._profile(on)])
            case Build():
                self._build(message)
            case Layout():
                assert self._build_message is not None
                self._channel.send(LaidOut(self._lay_out(message), self._build_message.deal))
            case Refused(reason=reason):
                raise SystemExit(f"the head refused this worker: {reason}")
            case Close():
                self._closing = True
            case _:
                # None: an Announce to a worker that still joins; the next Collect says it again.
                if self._acting is not None:
                    self._acting.hear(message, frames)

    @property
    def _envs(self) -> Stepper:
        assert self._stepper is not None, "the head asked for work before Build"
        return self._stepper

    def disconnect(self) -> None:
        """Close the connection (a worker process just ends)."""
        self._channel.close()

    # Joining.

    def _build(self, message: Build) -> None:
        settle(message)
        self._tear_down()
        self._build_message = message
        self._trusted, self._slots, self._place = message.trusted, message.slots, message.place
        mode = AutoresetMode(message.autoreset_mode)
        built = self._build_envs()
        if isinstance(built, VectorEnv):
            check_autoreset_mode(built, mode)
            description = describe_vector(built)
        else:
            description = describe_envs(built, self._trusted)
        self._stepper = self._stepper_for(built, mode)
        packed = pack(description, allow_pickle=self._trusted)
        self._channel.send(Built(packed, message.deal))

    def _build_envs(self) -> Any:
        assert self._build_message is not None
        return pickle.loads(self._build_message.backend).build(self._slots)

    def _stepper_for(self, built: Any, mode: AutoresetMode) -> Stepper:
        if isinstance(built, VectorEnv):
            return VectorStepper(built, self._slots)
        return EnvStepper(built, self._slots, mode, self._notes)

    def _lay_out(self, message: Layout) -> str:
        observation_space = space_from_plain(unpack(message.observation_space, allow_pickle=True))
        action_space = space_from_plain(unpack(message.action_space, allow_pickle=True))
        self._prepare_to_act(observation_space, action_space)
        leaves, action = leaves_of(observation_space), single_array_leaf(action_space)
        self._answers, self._called = Answers(self._channel, FrameRows(leaves, self._trusted)), None
        shared = self._invitation.shared
        if shared is None or not message.arena_size:
            return ""
        try:
            self._arena = Arena(shared.arena, message.num_envs, message.num_places, action, leaves)
        except (OSError, ValueError) as error:
            return str(error)
        assert isinstance(self._channel, SharedChannel)
        rows = ArenaRows(self._arena, self._place, leaves, self._trusted)
        self._answers = SharedAnswers(self._channel, self._arena.marks, self._place, rows)
        self._called = CalledSteps(self._channel, self._arena, self._place, rows, self._envs)
        return ""

    def _prepare_to_act(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        assert self._build_message is not None
        self._acting = Acting(
            Workplace(
                channel=self._channel,
                backlog=self._backlog,
                slots=self._slots,
                stepper=self._envs,
                observation_space=observation_space,
                action_space=action_space,
                sync_rule=pickle.loads(self._build_message.sync_rule),
                build_more_envs=lambda: self._stepper_for(
                    self._build_envs(), AutoresetMode.SAME_STEP
                ),
                made_progress=self._expect_progress,
            )
        )

    # Work.

    def _step_as_called(self) -> bool:
        """Step slots again and again, while nothing else is to be heard or done.

        Returns:
            Whether it has looked out for calls.
        """
        channel, called = self._channel, self._called
        if called is None or self._backlog or self._watch is not None:
            return False
        assert isinstance(channel, SharedChannel)
        while not self._has_to_leave and (call := channel.wait_for_call()) is not None:
            self._expect_progress()
            try:
                self._answer_call(call)
            except Exception as error:
                self._report(call.request, error)
            self.deadline = None
        return True

    def _answer_call(self, call: StepCall | PartCall) -> None:
        assert self._called is not None, "the head called before Layout"
        slots = self._slots
        if isinstance(call, PartCall):
            slots = slots[call.first : call.first + call.count]
        outcome = self._called.answer(call, slots, is_timed=self._watch is not None)
        self._current = outcome if len(slots) == len(self._slots) else None

    def _step(self, message: Step, frames: list[Buffer]) -> None:
        slots = message.slots if message.slots is not None else self._slots
        actions = self._actions(message, slots, frames)
        outcome = self._step_envs(message.request, slots, actions)
        self._current = outcome if message.slots is None or slots == self._slots else None
        if message.slots is None:
            self._answering.give_in_lockstep(message.request, slots, outcome)
        else:
            self._answering.give(message.request, slots, outcome)

    @property
    def _answering(self) -> Answers:
        assert self._answers is not None, "the head asked for work before Layout"
        return self._answers

    def _step_envs(self, request: int, slots: tuple[int, ...], actions: Any) -> Outcome:
        return self._envs.step(slots, actions, self._answering.rows.landing(request, slots))

    def _actions(self, message: Step, slots: tuple[int, ...], frames: list[Buffer]) -> Any:
        if message.actions is None:
            return unpack(message.packed_actions, allow_pickle=True)
        if frames:
            # An env may keep its action, and may write to it.
            return read_array(message.actions, frames[0]).copy()
        assert self._arena is not None
        return self._arena.copy_actions(message.actions.dtype, slots)

    def _reset(self, message: Reset) -> None:
        seeds: list[int | None] = [None] * len(message.slots)
        if message.seeds:
            seeds = unpack(message.seeds, allow_pickle=False)
        options = unpack(message.options, allow_pickle=True) if message.options else None
        outcome = self._envs.reset(message.slots, seeds, options)
        self._current = outcome if message.slots == self._slots else None
        if self._current is not None and self._acting is not None:
            self._acting.episodes_restarted(message.run_seed)
        self._answering.give(message.request, message.slots, outcome)

    def _return(self, request: int, values: list[Any]) -> None:
        self._channel.send(Returned(request, pack(values, allow_pickle=self._trusted)))

    # Policies.

    def _collect(self, message: Collect) -> None:
        acting, current = self._acting_from()
        if acting.is_cancelled(message.request):
            return
        # If this fails halfway, nobody knows where the envs are.
        self._current = None
        version, arrays, self._current = acting.collect(
            current, message.num_steps, message.newest, message.measured
        )
        headers = tuple(header_of(array) for array in arrays.values())
        reply = Collected(message.request, version, tuple(arrays), headers)
        self._channel.send(reply, [frame_of(array) for array in arrays.values()])

    def _step_with_policy(self, message: StepWithPolicy) -> None:
        acting, current = self._acting_from()
        actions, acted = acting.act(current, message.newest, message.measured)
        assert self._build_message is not None
        if AutoresetMode(self._build_message.autoreset_mode) is AutoresetMode.NEXT_STEP:
            # Where the episode has ended before, this step will only reset: what the policy made of
            # the final observation must not reach the new episode.
            acting.note_ends(current)
        self._current = self._step_envs(message.request, self._slots, actions)
        acting.note_ends(self._current)
        self._answering.give_in_lockstep(message.request, self._slots, self._current, acted)

    def _evaluate(self, message: Evaluate) -> None:
        assert self._acting is not None
        values = self._acting.evaluate(
            message.episodes, message.seed, message.deterministic, message.newest
        )
        self._return(message.request, values)

    def _acting_from(self) -> tuple[Acting, Outcome]:
        assert self._acting is not None
        if self._current is None:
            raise RuntimeError("a policy can only act on envs that were reset together")
        return self._acting, self._current

    def _profile(self, on: bool) -> dict[str, float]:
        seconds = {} if self._watch is None else self._watch.stop()
        rows = None if self._answers is None else self._answers.rows
        self._watch = profiling.start(self._channel, self._envs, rows, self._acting) if on else None
        return seconds

    # Trouble.

    def _report(self, request: int, error: Exception) -> None:
        if isinstance(error, UserCodeError):
            assert error.__cause__ is not None
            message = raised(request, error.__cause__, error.slot, error.action)
        else:
            message = raised(request, error)
        if self._answers is None:
            self._channel.send(message)
        else:
            self._answers.give_error(message)

    def leave_on(self, *signals: signal.Signals) -> None:
        """Ask the head to take the slots back when one of these arrives; it then says Close."""

        def leave(number: int, _: Any) -> None:
            name = signal.Signals(number).name
            self._has_to_leave = f"its engine told it to leave ({name})"

        for number in signals:
            signal.signal(number, leave)

    def forward_warnings(self) -> None:
        """Show this process's warnings at the head as well."""
        print_here = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **rest: Any) -> None:
            print_here(message, category, *where, **rest)
            # The channel belongs to the worker's own thread.
            if threading.current_thread() is threading.main_thread():
                self._channel.send(Warned(category.__name__, str(message)))

        warnings.showwarning = show
