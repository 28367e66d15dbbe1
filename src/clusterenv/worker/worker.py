"""The worker's loop: hear, do, answer."""

from __future__ import annotations

import pickle
import signal
import threading
import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv.arrays import bytes_of
from clusterenv.memory.line import WorkerEnd
from clusterenv.memory.messages import (
    Build,
    Built,
    Close,
    LaidOut,
    LayOut,
    Leaving,
    PartCall,
    StepCall,
    Warned,
)
from clusterenv.memory.part_times import ENV, OTHER, SERIALISE
from clusterenv.memory.shared_rows import SharedRows
from clusterenv.memory.weights import WeightStore
from clusterenv.plain.spaces import leaves_of, single_array_leaf, space_from_plain
from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.message import Message
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.replies import Collected, Returned
from clusterenv.protocol.requests import Act, Call, Collect, Evaluate, Reset, SetAttr, Step
from clusterenv.surroundings import settle
from clusterenv.worker.acting import Acting, Workplace
from clusterenv.worker.answers import Answers, raised
from clusterenv.worker.called_steps import CalledSteps
from clusterenv.worker.description import check_autoreset_mode, describe_envs, describe_vector
from clusterenv.worker.rows import Outcome, RowWriter
from clusterenv.worker.stepper import EnvStepper, Stepper, UserCodeError
from clusterenv.worker.vector_stepper import VectorStepper

_POLL_S = 1.0
_LONGEST_WARNING = 10_000


class Deadlines:
    """When the current request, or the current step within it, must be over."""

    def __init__(self, step_timeout_s: float, startup_timeout_s: float) -> None:
        self.step_timeout_s, self.startup_timeout_s = step_timeout_s, startup_timeout_s
        self.deadline: float | None = None
        """On the monotonic clock; None while there is nothing to do."""

    def expect_progress(self) -> None:
        """Something was done; the next thing has as long as a step may take."""
        self.deadline = time.monotonic() + self.step_timeout_s

    def wait_for_host(self) -> None:
        """The host leaves no room for an answer: that is no env that hangs."""
        if self.deadline is not None:
            self.expect_progress()

    def expect_envs(self) -> None:
        """Envs are being built, which may take longer."""
        self.deadline = time.monotonic() + self.startup_timeout_s


class _Envs:
    """The envs of a worker, as its host told it to build them."""

    def __init__(self, build: Build, notes: Any) -> None:
        self.build, self._notes = build, notes
        self.mode = AutoresetMode(build.autoreset_mode)
        built = self._make()
        if isinstance(built, VectorEnv):
            check_autoreset_mode(built, self.mode)
            self.description = describe_vector(built)
        else:
            self.description = describe_envs(built, build.trusted)
        self.stepper = self._stepper_for(built, self.mode)

    def _make(self) -> Any:
        return pickle.loads(self.build.backend).build(self.build.slots)

    def _stepper_for(self, built: Any, mode: AutoresetMode) -> Stepper:
        if isinstance(built, VectorEnv):
            return VectorStepper(built, self.build.slots)
        return EnvStepper(built, self.build.slots, mode, self._notes)

    def more(self) -> Stepper:
        """Another set of them, which resets within the step."""
        return self._stepper_for(self._make(), AutoresetMode.SAME_STEP)


class _Desk:
    """What a worker works with once it knows the layout of rows."""

    def __init__(self, envs: _Envs, message: LayOut, line: WorkerEnd, deadlines: Deadlines) -> None:
        observation_space = space_from_plain(unpack(message.observation_space, allow_pickle=True))
        action_space = space_from_plain(unpack(message.action_space, allow_pickle=True))
        leaves, action = leaves_of(observation_space), single_array_leaf(action_space)
        fds, number = line.descriptors, message.worker
        slots = range(message.first_slot, message.first_slot + message.num_slots)
        self.shared = SharedRows(fds.rows, slots, message.num_workers, action, leaves)
        self.rows = RowWriter(self.shared, number, leaves, envs.build.trusted)
        self.answers = Answers(line, self.shared.flags, number, self.rows)
        self.called = CalledSteps(line, self.shared, number, self.rows, envs.stepper)
        self.acting = Acting(
            Workplace(
                slots=envs.build.slots,
                stepper=envs.stepper,
                observation_space=observation_space,
                action_space=action_space,
                weights=WeightStore(fds.weights),
                evaluation_weights=WeightStore(fds.evaluation_weights),
                build_more_envs=envs.more,
                made_progress=deadlines.expect_progress,
                times=line.mailbox.times,
            )
        )


class Worker:
    """Runs the envs of its slots and answers its host, until told to close.

    It knows much because it has a method for each thing that a host can ask for.
    """

    def __init__(self, line: WorkerEnd, deadlines: Deadlines) -> None:
        self._line, self.deadlines, self._times = line, deadlines, line.mailbox.times
        line.waits = deadlines.wait_for_host
        # Held while user code runs; in-process workers share one lock.
        self.turn: AbstractContextManager[Any] = nullcontext()
        self._closing = False
        self._has_to_leave = ""
        self._envs: _Envs | None = None
        self._desk: _Desk | None = None
        # Where the envs are, for a policy to go on from; None if only some of them were stepped.
        self._current: Outcome | None = None

    def run(self) -> None:
        """Work until the host says Close, or hangs up."""
        try:
            while not (self._closing or self._line.is_over):
                has_spun = self._step_as_called()
                if self._has_to_leave:
                    self._line.send(Leaving(self._has_to_leave))
                    self._has_to_leave = ""
                message = self._line.receive(_POLL_S, spin=not has_spun)
                if message is not None:
                    with self.turn:
                        self.deadlines.expect_progress()
                        self._handle(message)
                    # Who waits for the answer hears all that was said before it.
                    self._line.has_spoken = False
                    self.deadlines.deadline = None
        finally:
            self._tear_down()

    def _tear_down(self) -> None:
        if self._envs is not None:
            self._envs.stepper.close()
        if self._desk is not None:
            self._desk.acting.close()
        self._envs = self._desk = self._current = None

    def _handle(self, message: Message) -> None:
        self._times.begin(OTHER)
        try:
            self._do(message)
        except Exception as error:
            self._report(getattr(message, "request", 0), error)
        self._times.answer()

    def _do(self, message: Message) -> None:
        match message:
            case StepCall() | PartCall():
                self._answer_call(message)
            case Step():
                self._step(message)
            case Reset():
                self._reset(message)
            case Call(request=request, name=name):
                args, kwargs = unpack(message.arguments, allow_pickle=True)
                self._return(request, self._stepper.call(name, args, kwargs))
            case SetAttr(request=request, name=name):
                values = [unpack(value, allow_pickle=True) for value in message.values]
                self._stepper.set_attr(name, values)
                self._return(request, [])
            case Collect():
                self._collect(message)
            case Act():
                self._act(message)
            case Evaluate(request=request):
                self._return(request, self._ready.acting.evaluate(message))
            case TakePolicy():
                self._ready.acting.introduce(message)
            case Build():
                self._build(message)
            case LayOut():
                self._lay_out(message)
            case Close():
                self._closing = True

    @property
    def _stepper(self) -> Stepper:
        assert self._envs is not None, "the host asked for work before Build"
        return self._envs.stepper

    @property
    def _ready(self) -> _Desk:
        assert self._desk is not None, "the host asked for work before LayOut"
        return self._desk

    # Joining.

    def _build(self, message: Build) -> None:
        self.deadlines.expect_envs()
        settle(message.search_path, message.working_directory)
        self._tear_down()
        self._envs = _Envs(message, self._line.mailbox.notes)
        packed = pack(self._envs.description, allow_pickle=message.trusted)
        self._line.send(Built(packed, message.deal))

    def _lay_out(self, message: LayOut) -> None:
        assert self._envs is not None
        error = ""
        try:
            self._desk = _Desk(self._envs, message, self._line, self.deadlines)
        except (OSError, ValueError) as problem:
            error = str(problem)
        self._line.send(LaidOut(error, self._envs.build.deal))

    # Work.

    def _step_as_called(self) -> bool:
        """Step slots again and again, while nothing else is to be heard or done.

        Returns:
            Whether it has looked out for calls.
        """
        line, deadlines = self._line, self.deadlines
        if self._desk is None or not isinstance(self.turn, nullcontext):
            return False
        while not self._has_to_leave and (call := line.wait_for_call()) is not None:
            deadlines.expect_progress()
            try:
                self._answer_call(call)
            except Exception as error:
                self._report(call.request, error)
            deadlines.deadline = None
        return True

    def _answer_call(self, call: StepCall | PartCall) -> None:
        assert self._envs is not None
        own = slots = self._envs.build.slots
        if isinstance(call, PartCall):
            slots = slots[call.first : call.first + call.count]
        outcome = self._ready.called.answer(call, slots)
        self._current = outcome if len(slots) == len(own) else None

    def _step(self, message: Step) -> None:
        slots, desk = message.slots, self._ready
        if message.packed_actions:
            actions = [unpack(action, allow_pickle=True) for action in message.packed_actions]
        else:
            actions = desk.shared.copy_actions(message.dtype, slots)
        self._times.begin(ENV)
        outcome = self._stepper.step(slots, actions, desk.rows.landing(message.request, slots))
        self._times.begin(SERIALISE)
        self._current = outcome if self._are_all(slots) else None
        desk.answers.give(message.request, slots, outcome)

    def _are_all(self, slots: tuple[int, ...]) -> bool:
        return self._envs is not None and slots == self._envs.build.slots

    def _reset(self, message: Reset) -> None:
        desk = self._ready
        seeds: list[int | None] = [None] * len(message.slots)
        if message.seeds:
            seeds = unpack(message.seeds, allow_pickle=False)
        options = unpack(message.options, allow_pickle=True) if message.options else None
        self._times.begin(ENV)
        outcome = self._stepper.reset(message.slots, seeds, options)
        self._times.begin(SERIALISE)
        self._current = outcome if self._are_all(message.slots) else None
        if self._current is not None:
            desk.acting.episodes_restarted(message.run_seed)
        desk.answers.give(message.request, message.slots, outcome)

    def _return(self, request: int, values: list[Any]) -> None:
        assert self._envs is not None
        packed = pack(values, allow_pickle=self._envs.build.trusted)
        self._line.send(Returned(request, packed))

    # Policies.

    def _collect(self, message: Collect) -> None:
        if message.request <= self._line.mailbox.cancelled_up_to:
            return
        acting, current = self._acting_from()
        # If this fails halfway, nobody knows where the envs are.
        self._current = None
        version, arrays, self._current = acting.collect(current, message.num_steps)
        kinds = tuple((array.dtype.str, array.shape) for array in arrays.values())
        reply = Collected(message.request, version, tuple(arrays), kinds)
        self._line.send(reply, [bytes_of(array) for array in arrays.values()])

    def _act(self, message: Act) -> None:
        acting, current = self._acting_from()
        assert self._envs is not None
        actions, acted = acting.act(current)
        if self._envs.mode is AutoresetMode.NEXT_STEP:
            # Where the episode has ended before, this step will only reset: what the policy made of
            # the final observation must not reach the new episode.
            acting.note_ends(current)
        slots, request, desk = message.slots, message.request, self._ready
        self._times.begin(ENV)
        self._current = outcome = self._stepper.step(
            slots, actions, desk.rows.landing(request, slots)
        )
        self._times.begin(SERIALISE)
        acting.note_ends(outcome)
        desk.answers.give_acted(request, slots, outcome, acted)

    def _acting_from(self) -> tuple[Acting, Outcome]:
        if self._current is None:
            raise RuntimeError("a policy can only act on envs that were reset together")
        return self._ready.acting, self._current

    # Trouble.

    def _report(self, request: int, error: Exception) -> None:
        if isinstance(error, UserCodeError):
            assert error.__cause__ is not None
            message = raised(request, error.__cause__, error.slot, error.action)
        else:
            message = raised(request, error)
        if self._desk is None:
            self._line.send(message)
        else:
            self._desk.answers.give_error(message)

    def leave_on(self, *signals: signal.Signals) -> None:
        """Tell the host when one of these arrives; it then replaces this worker."""

        def leave(number: int, _: Any) -> None:
            name = signal.Signals(number).name
            self._has_to_leave = f"it was told to leave ({name})"

        for number in signals:
            signal.signal(number, leave)

    def forward_warnings(self) -> None:
        """Show this process's warnings at the head as well."""
        print_here = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **rest: Any) -> None:
            print_here(message, category, *where, **rest)
            # The line belongs to the worker's own thread.
            if threading.current_thread() is threading.main_thread():
                text = str(message)[:_LONGEST_WARNING]
                self._line.offer(Warned(category.__name__, text))

        warnings.showwarning = show
