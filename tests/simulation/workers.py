"""Workers without processes: what a worker does, in memory that is not shared with anybody."""

import operator
from collections import deque
from types import SimpleNamespace

import numpy as np

from clusterenv.host.starting import NotStarted
from clusterenv.host.worker import Worker
from clusterenv.host.workers import Workers
from clusterenv.memory.mailbox import Mailbox
from clusterenv.memory.messages import (
    BuildEnvs,
    CloseEnvs,
    EnvsBuilt,
    MapRows,
    PartCall,
    RowsMapped,
    StepCall,
    WorkerLeaving,
)
from clusterenv.plain.values import pack
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.replies import Collected, Raised, Returned, Stepped
from clusterenv.protocol.requests import Act, Call, Collect, Evaluate, Reset, SetAttr, Step
from tests.simulation.world import Violation

DEATH, HANG = 0.05, 0.01
NOTHING = SimpleNamespace(is_on=False, stop=dict, start=lambda: None, answered_at=0)
STARTER = SimpleNamespace(end_strays=lambda name=None: None, is_debugging=lambda: False)


class Letters(deque):
    """A ring without bytes."""

    def is_empty(self):
        return not self


NOT_YET = SimpleNamespace(alive_at=0.0, busy_since=0.0, num_stacks=0)


class PaperMailbox(Mailbox):
    """Calls are as they are; messages are objects."""

    def __init__(self):
        self._notes = memoryview(bytearray(4096)).cast("q")
        self.to_worker, self.to_host, self.times = Letters(), Letters(), NOTHING


class Line:
    """The host's end of a line, and the worker's."""

    times, pulse = NOTHING, NOT_YET

    def __init__(self, index, inbox):
        self.mailbox, self.index, self._inbox = PaperMailbox(), index, inbox
        self.from_worker = self.mailbox.to_host

    def send(self, message):
        self.mailbox.to_worker.append(message)

    def receive(self):
        return self.from_worker.popleft() if self.from_worker else None

    def can_call(self):
        return self.mailbox.can_call()

    def cancel_up_to(self, request):
        self.mailbox.cancel_up_to(request)

    def say(self, message, frames=()):
        self.from_worker.append((message, list(frames), 0))
        self._inbox.heard_from(self)

    def wake_if_asleep(self):
        pass

    flush = cancel_all = close = wake_if_asleep

    def release(self, number):
        pass


class Store:
    """The weights of a host's workers."""

    fd = 0

    def __init__(self):
        self.policy_id = self.version = self.older = 0

    def put(self, policy_id, version, vector):
        self.older = self.version if policy_id == self.policy_id else 0
        self.policy_id, self.version = policy_id, version


_place = operator.attrgetter("index")


class PaperInbox:
    """Where a host waits: meanwhile things happen."""

    may_spin = was_woken = False

    def __init__(self, world):
        self._world, self.flags, self._lines = world, None, {}
        self._speakers = []
        """The lines with something to take, perhaps."""
        self.stopwatch = SimpleNamespace(is_on=False)
        self.bell = SimpleNamespace(fd=-1, clear=lambda: None, ring=lambda: None)

    def watch(self, index, line):
        self._lines[index] = line

    def forget(self, index):
        self._lines.pop(index, None)

    def heard_from(self, line):
        """A worker has said something."""
        if line not in self._speakers:
            self._speakers.append(line)

    def take(self):
        for line in sorted(self._speakers, key=_place):
            while self._is_watched(line) and (received := line.receive()) is not None:
                yield line.index, *received
            self._speakers.remove(line)

    def _is_watched(self, line):
        return self._lines.get(line.index) is line

    def is_empty(self):
        return all(not (line.from_worker and self._is_watched(line)) for line in self._speakers)

    def wait(self, timeout_s, is_done=lambda: False):
        return self._world.wait(timeout_s, lambda: not self.is_empty() or is_done())

    def wait_for_bell(self, timeout_s):
        self._world.move()
        return self._world.chance(0.5)

    def spin_until(self, is_done):
        for _ in range(2):
            if is_done() or not self.is_empty():
                return True
            self._world.move()
        return is_done() or not self.is_empty()

    def fall_asleep(self, is_done=lambda: False):
        return not is_done() and self.is_empty()

    def wake_up(self):
        pass

    wake = wake_up


class PaperWorkers(Workers):
    """The workers of a host, none of which is a process."""

    def __init__(self, world, count, limits, host="host-0.0"):
        self.world, self.limits, self.host = world, limits, host
        self.num_messages = self.num_changes = self.last_number = 0
        self._next_check, self._waiting, self._starter = 0.0, [], STARTER
        self.inbox, self.rows_fd, self.rows = PaperInbox(world), self, None
        self.weights, self.evaluation_weights = Store(), Store()
        self.num_flags = 0
        """How often a worker has put a flag into the rows."""
        self.all, self.processes, self.instances = [], [], []
        for index in range(count):
            self.all.append(self._make(index, 0, world.now))
            self.start(self.all[-1])

    def _make(self, index, incarnation, start_at):
        line = Line(index, self.inbox)
        self.inbox.watch(index, line)
        return Worker(index, line, NotStarted(), start_at, incarnation)

    def start(self, worker):
        name = f"{self.host}/{worker.name}"
        worker.running = process = Process(self, name, worker.index, worker.line)
        self.num_changes += 1
        self.processes.append(process)
        self.world.actors.append(process)

    def end_all(self, how):
        """The whole host ends, and all of them with it."""
        for process in self.processes:
            process.die(how)
        # What a worker answered before it ended may have gone with the host.
        for instance in self.instances:
            instance.ended_by = how


class Process:
    """A worker: it takes what it is told, one after the other, until it ends."""

    pid = 4711

    def __init__(self, workers, name, place, line):
        self._workers, self._world, self.name = workers, workers.world, name
        self._place, self._line = place, line
        self.end, self._hung_at, self._holds_gil = None, None, False
        self._is_leaving = False
        line.pulse = self
        self._slots, self._instances, self._positions = (), {}, {}
        self._policy_id, self._deal = 0, 0

    # Its pulse, as its host sees it.

    busy_since, num_stacks = 0.0, 0

    @property
    def alive_at(self):
        return self._hung_at if self._holds_gil else self._world.now

    # What its host asks.

    def how_it_ended(self):
        if self.end is None and self._world.trouble_left and self._world.chance(0.1):
            # To look at all of them takes time.
            self._world.move()
        return self.end

    def log_tail(self):
        return ""

    def kill(self):
        if self.end is None and self._hung_at is None and not self._is_leaving:
            raise Violation(f"{self.name} did nothing wrong, and is ended")
        self.die("worker")

    def die(self, how):
        """Its envs end; ``how`` is the word for that."""
        if self.end is None:
            self.end = "killed by SIGKILL"
            self._world.note(self.name, "ends")
            self._world.actors.remove(self)
            self._forget_envs(how)

    def _forget_envs(self, how):
        for instance in self._instances.values():
            instance.ended_by = how

    # What it does.

    def moves(self):
        mailbox = self._line.mailbox
        if self._hung_at is not None:
            if self._holds_gil:
                return ()
            # Its own lifeline ends it; its host may be quicker.
            is_late = self._world.now > self._hung_at + self._workers.limits.step_timeout_s
            return (self.kill,) if is_late else ()
        if mailbox.to_worker or mailbox.has_mail():
            return (self.work,)
        return ()

    def suffer(self):
        """Something goes wrong at any time."""
        if self._world.chance(0.8):
            self.die("worker")
        else:
            self._is_leaving = True
            self._line.say(WorkerLeaving("told to leave"))

    def work(self):
        """Do the next thing; it may end before, in between, or after it."""
        world = self._world
        if world.goes_wrong(HANG):
            world.note(self.name, "hangs")
            self._hung_at, self._holds_gil = world.now, world.chance(0.3)
            return
        dies = world.goes_wrong(DEATH) and world.random.choice(["before", "written", "after"])
        if dies == "before":
            self.die("worker")
            return
        mailbox = self._line.mailbox
        message = mailbox.take_call() or mailbox.to_worker.popleft()
        world.note(self.name, "does", message, f"and dies {dies}" if dies else "")
        self._do(message, silent=dies == "written")
        if dies:
            self.die("worker")

    def _do(self, message, silent):
        match message:
            case StepCall() | PartCall():
                slots = self._slots
                if isinstance(message, PartCall):
                    slots = slots[message.first : message.first + message.count]
                self._step(message, slots)
                self._answer_call(message, slots, silent)
            case Step(slots=slots) | Reset(slots=slots):
                if isinstance(message, Reset):
                    self._reset(slots)
                else:
                    self._step(message, slots)
                self._answer(message.request, slots, Stepped(message.request), silent)
            case Act(slots=slots):
                self._act(message, slots, silent)
            case Collect():
                if message.request > self._line.mailbox.cancelled_up_to:
                    self._collect(message, silent)
            case Call(request=request) | Evaluate(request=request):
                values = [list(self._positions[slot]) for slot in self._slots]
                if isinstance(message, Evaluate):
                    values = [[(1.0, 1)] * count for count in message.episodes]
                self._return(request, values, silent)
            case SetAttr(request=request):
                self._return(request, [], silent)
            case TakePolicy(policy_id=policy_id):
                self._policy_id = policy_id
            case BuildEnvs():
                self._build(message)
            case MapRows():
                self._rows = self._workers.rows
                self._line.say(RowsMapped("", self._deal))
            case CloseEnvs():
                pass

    def _build(self, message):
        self._forget_envs("moved")
        self._slots, self._deal = message.slots, message.deal
        self._instances = {slot: self._world.new_instance(slot) for slot in self._slots}
        self._workers.instances += self._instances.values()
        self._positions, self._policy_id = {}, 0
        for slot in self._slots:
            self._positions[slot] = (0, 0)
        self._line.say(EnvsBuilt(b"", self._deal))

    # Envs.

    def _begin(self, slot):
        episode = self._world.new_episode(self._instances[slot])
        self._positions[slot] = (episode, 0)
        return episode

    def _reset(self, slots):
        for slot in slots:
            self._begin(slot)
            self._put(slot, 0.0, False)

    def _step(self, message, slots):
        self._rows.begin_to_write(slots, self._place, message.request)
        for slot in slots:
            self._step_one(slot)

    def _where_is(self, slot):
        episode, step = self._positions[slot]
        if not episode:
            raise AssertionError(f"{self.name} steps the env of slot {slot}, which nobody reset")
        return episode, step

    def _step_one(self, slot):
        episode, step = self._where_is(slot)
        known = self._world.episodes[episode]
        if step == known.length:
            known.following = self._begin(slot)
            self._put(slot, 0.0, False)
        else:
            self._positions[slot] = (episode, step + 1)
            self._put(slot, reward_of(episode, step + 1), step + 1 == known.length)

    def _put(self, slot, reward, terminated):
        results, row = self._rows.results, slot - self._rows.slots.start
        results.observations[0][row] = self._positions[slot]
        results.rewards[row], results.terminated[row] = reward, terminated
        results.truncated[row] = False

    # Answers.

    def _note_answers(self, slots):
        self._workers.num_flags += 1
        self._rows.note_write(self._place, 0)
        for slot in slots:
            self._instances[slot].answered = self._positions[slot]

    def _answer_call(self, call, slots, silent):
        if silent:
            return
        says_more = self._world.chance(0.2)
        if says_more:
            self._line.say(Stepped(call.request))
        if isinstance(call, StepCall):
            self._rows.flags.put(self._place, call.request, says_more)
        else:
            self._rows.part_flags.put(self._place, call.number, call.request, says_more)
        self._note_answers(slots)

    def _answer(self, request, slots, reply, silent):
        if not silent:
            self._line.say(reply)
            self._rows.flags.put(self._place, request, True)
            self._note_answers(slots)

    def _return(self, request, values, silent):
        if not silent:
            self._line.say(Returned(request, pack(values, allow_pickle=False)))

    # Policies.

    def _version(self, message):
        """The version that acts; 0 after an error was said."""
        store, error, request = self._workers.weights, "", message.request
        if store.policy_id != self._policy_id or not self._policy_id:
            error = "the host has no weights of this policy"
        if error:
            self._line.say(Raised(request, None, "builtins", "RuntimeError", b"", error, ""))
            return 0
        is_ahead = isinstance(message, Collect) and message.ahead
        has_older = is_ahead and store.older == message.newest.version
        return store.older if has_older else store.version

    def _act(self, message, slots, silent):
        if version := self._version(message):
            self._step(message, slots)
            count = len(slots)
            acted = {"action": np.zeros(count, np.int64), "version": np.full(count, version)}
            reply = Stepped(message.request, acted=pack(acted, allow_pickle=False))
            self._answer(message.request, slots, reply, silent)

    def _collect(self, message, silent):
        version, steps = self._version(message), message.num_steps
        if not version:
            return
        count = len(self._slots)
        observations = np.zeros((steps + 1, count, 2))
        rewards, terminated = np.zeros((steps, count)), np.zeros((steps, count), np.bool_)
        finals = []
        for column, slot in enumerate(self._slots):
            for step in range(steps):
                episode, age = self._where_is(slot)
                known = self._world.episodes[episode]
                if age == known.length:  # of a step before
                    known.following, age = self._begin(slot), 0
                    episode, known = known.following, self._world.episodes[known.following]
                observations[step, column] = episode, age
                rewards[step, column] = reward_of(episode, age + 1)
                self._positions[slot] = (episode, age + 1)
                if age + 1 == known.length:
                    terminated[step, column] = True
                    finals.append((step, slot, episode, age + 1))
                    known.following = self._begin(slot)
            observations[steps, column] = self._positions[slot]
        if silent:
            return
        arrays = fragment_arrays(observations, rewards, terminated, finals)
        kinds = tuple((array.dtype.str, array.shape) for array in arrays.values())
        reply = Collected(message.request, version, tuple(arrays), kinds)
        self._line.say(reply, [array.tobytes() for array in arrays.values()])


def reward_of(episode, step):
    return float(100 * episode + step)


def fragment_arrays(observations, rewards, terminated, finals):
    steps, count = rewards.shape
    table = np.array(finals or np.zeros((0, 4)), np.int64)
    return {
        "observations/0": observations,
        "actions/0": np.zeros((steps, count), np.int64),
        "rewards": rewards,
        "terminated": terminated,
        "truncated": np.zeros((steps, count), np.bool_),
        "finals/steps": table[:, 0].copy(),
        "finals/slots": table[:, 1].copy(),
        "finals/returns": np.zeros(len(table)),
        "finals/lengths": table[:, 3].copy(),
        "finals/0": table[:, 2:].astype(np.float64),
    }
