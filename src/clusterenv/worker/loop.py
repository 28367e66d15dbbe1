"""The worker's loop: receive, do, answer."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from gymnasium.vector import AutoresetMode

from clusterenv.arrays import bytes_of
from clusterenv.memory.line import WorkerEnd
from clusterenv.memory.messages import (
    BuildEnvs,
    CloseEnvs,
    EnvsBuilt,
    EnvWarned,
    MapRows,
    PartCall,
    RowsMapped,
    StepCall,
    WorkerLeaving,
)
from clusterenv.memory.part_times import ENV, OTHER, SERIALISE
from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.message import Message
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.replies import Collected, Returned
from clusterenv.protocol.requests import Act, Call, Collect, Evaluate, Reset, SetAttr, Step
from clusterenv.surroundings import settle
from clusterenv.worker.acting import Acting
from clusterenv.worker.answers import raised
from clusterenv.worker.batch_stepper import BatchStepper
from clusterenv.worker.built_envs import BuiltEnvs
from clusterenv.worker.deadlines import Deadlines
from clusterenv.worker.desk import Desk
from clusterenv.worker.info_record import InfoRecord
from clusterenv.worker.stepper import Stepper, UserCodeError

_POLL_S = 1.0
_LONGEST_WARNING = 10_000


class _HandOut:
    """Nothing was requested and envs are under way: hand out those that are ready first."""


class WorkerLoop:
    """Runs the envs of its slots and answers its host, until told to close.

    It knows much because it has a method for everything that a host can ask for.
    """

    def __init__(self, line: WorkerEnd, deadlines: Deadlines) -> None:
        self._line, self._mailbox, self.deadlines = line, line.mailbox, deadlines
        self._times = line.mailbox.times
        line.waits = deadlines.wait_for_host
        # Held while user code runs; in-process workers share one lock.
        self.turn: AbstractContextManager[Any] = nullcontext()
        self._closing = False
        self._has_to_leave = ""
        self._envs: BuiltEnvs | None = None
        self._desk: Desk | None = None

    def run(self) -> None:
        """Work until the host says Close, or hangs up."""
        try:
            while not (self._closing or self._line.is_over):
                has_spun = self._step_as_called()
                if self._has_to_leave:
                    self._line.send(WorkerLeaving(self._has_to_leave))
                    self._has_to_leave = ""
                message = self._hear(spin=not has_spun)
                if message is not None:
                    with self.turn:
                        self.deadlines.expect_progress()
                        self._handle(message)
                    # The waiting host reads everything sent before the answer.
                    self._line.has_spoken = False
                    self.deadlines.deadline = None
        finally:
            self._tear_down()

    def _hear(self, spin: bool) -> Message | _HandOut | None:
        """The next thing to do, if one comes before long."""
        batches = self._batches
        wait_s = None if batches is None else batches.wait_s()
        if wait_s is None:
            return self._line.receive(_POLL_S, spin)
        return self._line.receive(wait_s, spin=False) or _HandOut()

    def _tear_down(self) -> None:
        if self._envs is not None:
            self._envs.close()
        if self._desk is not None:
            self._desk.close()
        self._envs = self._desk = None

    def _handle(self, message: Message | _HandOut) -> None:
        self._times.take_up(OTHER)
        try:
            self._do(message)
        except Exception as error:
            self._report(self._request_of(message), error)
        self._times.answer()

    def _do(self, message: Message | _HandOut) -> None:
        match message:
            case _HandOut():
                self._hand_out()
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
            case Evaluate():
                self._evaluate(message)
            case TakePolicy():
                self._acting.introduce(message)
            case BuildEnvs():
                self._build(message)
            case MapRows():
                self._lay_out(message)
            case CloseEnvs():
                self._closing = True

    @property
    def _stepper(self) -> Stepper:
        assert self._envs is not None, "the host asked for work before Build"
        return self._envs.stepper

    @property
    def _batches(self) -> BatchStepper | None:
        """Where steps are sent if rows are handed out as they become ready."""
        batches = None if self._envs is None else self._envs.batches
        return batches if batches is not None and batches.is_running else None

    @property
    def _ready(self) -> Desk:
        assert self._desk is not None, "the host asked for work before LayOut"
        return self._desk

    @property
    def _acting(self) -> Acting:
        return self._ready.acting

    # Joining.

    def _build(self, message: BuildEnvs) -> None:
        self.deadlines.expect_envs()
        settle(message.search_path, message.working_directory)
        self._tear_down()
        self._envs = BuiltEnvs(message, self._mailbox.notes)
        packed = pack(self._envs.description, allow_pickle=message.trusted)
        self._line.send(EnvsBuilt(packed, message.deal))

    def _lay_out(self, message: MapRows) -> None:
        assert self._envs is not None
        build, error = self._envs.build, ""
        self._times.note_slots(build.slots[0])
        try:
            self._desk = Desk(self._envs, message, self._line, self.deadlines)
            if "CLUSTERENV_WORKER" in os.environ:
                # For policies; not set where workers are threads of the head.
                os.environ["CLUSTERENV_WORKER"] = str(message.worker)
        except (OSError, ValueError) as problem:
            error = str(problem)
        self._line.send(RowsMapped(error, build.deal))

    # Work.

    def _step_as_called(self) -> bool:
        """Step slots as called, until something else has to be handled.

        Returns:
            Whether it has spun while waiting for calls.
        """
        line, deadlines = self._line, self.deadlines
        if self._desk is None or self._batches or not isinstance(self.turn, nullcontext):
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
        build, desk = self._envs.build, self._ready
        slots = build.slots
        if isinstance(call, PartCall):
            slots = slots[call.first : call.first + call.count]
        batches = self._batches
        if batches is not None:
            batches.send(call.request, slots, desk.shared.copy_actions(call.dtype, slots))
            return
        desk.called.answer(call, slots)
        newest = desk.newest
        if newest.ahead:
            newest.note_rows(slots)

    def _step(self, message: Step) -> None:
        slots, desk = message.slots, self._ready
        if message.packed_actions:
            actions = [unpack(action, allow_pickle=True) for action in message.packed_actions]
        else:
            actions = desk.shared.copy_actions(message.dtype, slots)
        self._times.begin(ENV)
        if self._batches is not None:
            self._batches.send(message.request, slots, actions)
            return
        outcome = self._stepper.step(slots, actions, desk.rows.landing(message.request, slots))
        self._note_answer()
        desk.answers.give(message.request, slots, outcome)
        desk.newest.note_rows(slots)

    def _hand_out(self) -> None:
        assert self._batches is not None
        self._times.begin(ENV)
        envs, outcome = self._batches.receive()
        self._times.begin(SERIALISE)
        has_mail = self._mailbox.has_mail()
        desk = self._ready
        for answer in self._batches.answers(envs, outcome, has_mail):
            desk.answers.give_some(*answer)

    def _reset(self, message: Reset) -> None:
        desk = self._ready
        seeds: list[int | None] = [None] * len(message.slots)
        if message.seeds:
            seeds = unpack(message.seeds, allow_pickle=False)
        options = unpack(message.options, allow_pickle=True) if message.options else None
        self._times.begin(ENV)
        assert self._envs is not None
        batches = self._envs.batches
        if batches is not None:
            if not message.together:
                desk.newest.lose_track()
                batches.reset(message.request, message.slots, seeds)
                return
            batches.end()
        outcome = self._stepper.reset(message.slots, seeds, options)
        self._times.begin(SERIALISE)
        desk.acting.episodes_restarted(message.slots, message.run_seed)
        desk.answers.give(message.request, message.slots, outcome)
        desk.newest.note_reset(message.slots)

    def _return(self, request: int, values: list[Any]) -> None:
        assert self._envs is not None
        build = self._envs.build
        packed = pack(values, allow_pickle=build.trusted)
        self._line.send(Returned(request, packed))

    # Policies.

    def _is_wanted(self, request: int) -> bool:
        return request > self._mailbox.cancelled_up_to

    def _collect(self, message: Collect) -> None:
        is_wanted = partial(self._is_wanted, message.request)
        if not is_wanted():
            return
        assert self._envs is not None
        build, desk, record = self._envs.build, self._ready, None
        if message.infos:
            record = InfoRecord(build.slots, build.trusted)
        newest, steps = desk.newest.of(build.slots), message.num_steps
        desk.newest.lose_track()
        wanted = message.newest.version if message.ahead else 0
        version, arrays, last = desk.acting.collect(newest, steps, record, is_wanted, wanted)
        desk.newest.note_fragment(last)
        if arrays is None:
            return
        kinds = tuple((array.dtype.str, array.shape) for array in arrays.values())
        reply = Collected(message.request, version, tuple(arrays), kinds)
        self._note_answer()
        self._line.send(reply, [bytes_of(array) for array in arrays.values()])

    def _evaluate(self, message: Evaluate) -> None:
        is_wanted = partial(self._is_wanted, message.request)
        values = self._acting.evaluate(message, is_wanted) if is_wanted() else None
        if values is not None:
            self._return(message.request, values)

    def _act(self, message: Act) -> None:
        assert self._envs is not None
        slots, request, desk = message.slots, message.request, self._ready
        acting = desk.acting
        actions, acted = acting.act(desk.newest.of(slots), slots)
        if self._envs.mode is AutoresetMode.NEXT_STEP:
            # If the episode had ended before, this step only resets: the state that the policy
            # made from the final observation must not reach the new episode.
            acting.forget(desk.newest.ended(slots))
        self._times.begin(ENV)
        outcome = self._stepper.step(slots, actions, desk.rows.landing(request, slots))
        self._note_answer()
        acting.note_ends(slots, outcome)
        desk.answers.give_acted(request, slots, outcome, acted)
        desk.newest.note_rows(slots)

    def _note_answer(self) -> None:
        """Note an answer before it goes out: the host may ask again before this worker goes on."""
        self._times.answer()
        self._times.begin(SERIALISE)

    # Trouble.

    def _request_of(self, message: Message | _HandOut) -> int:
        if isinstance(message, _HandOut):
            return 0 if self._batches is None else self._batches.oldest_request
        return getattr(message, "request", 0)

    def _report(self, request: int, error: Exception) -> None:
        if isinstance(error, UserCodeError):
            assert error.__cause__ is not None
            message = raised(request, error.__cause__, error)
        else:
            message = raised(request, error)
        desk = self._desk
        if desk is None:
            self._line.send(message)
        else:
            desk.answers.give_error(message)

    def leave_on(self, *signals: signal.Signals) -> None:
        """Tell the host when one of these signals arrives; it then replaces this worker."""

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
            # Only the worker's own thread may use the line.
            if threading.current_thread() is threading.main_thread():
                text = str(message)[:_LONGEST_WARNING]
                self._line.offer(EnvWarned(category.__name__, text))

        warnings.showwarning = show
