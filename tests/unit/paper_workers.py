"""Workers that do what a test says: a host is driven without any process or env."""

from gymnasium.spaces import Box, Discrete

from clusterenv.host.building import Building
from clusterenv.host.host import LocalHost
from clusterenv.host.plan import Plan, Spaces, WorkerLimits
from clusterenv.host.workers import Workers
from clusterenv.memory.line import WorkerEnd
from clusterenv.memory.messages import BuildEnvs, EnvsBuilt, MapRows, RowsMapped
from clusterenv.memory.shared_rows import SharedRows
from clusterenv.plain.spaces import leaves_of, single_array_leaf, space_to_plain
from clusterenv.plain.values import pack
from clusterenv.sync import EveryVersion

OBSERVATIONS, ACTIONS = Box(-9.0, 9.0, (2,)), Discrete(9)
PATIENT = WorkerLimits(60.0, 60.0, 60.0, 3)
# Overdue at once: a host looks at the clock by itself.
IMPATIENT = WorkerLimits(60.0, -60.0, -60.0, 3)


class PaperWorker:
    """One that was started: seen by its host, and by the test that plays its part."""

    def __init__(self, name, start):
        self.name, self.pid = name, 4711
        self.line = WorkerEnd(start.descriptors, spins=False)
        self.end, self.log = None, ""
        self.is_killed, self.was_waited_for = False, False
        self.build = self.laid_out = None

    # What its host asks.

    def how_it_ended(self):
        return self.end

    def log_tail(self):
        return self.log

    def wait(self, deadline):
        self.was_waited_for = True

    def kill(self):
        self.is_killed = True

    # What the test has it do.

    def hear(self):
        """All that it was told, but for how to become ready."""
        heard = []
        while (message := self.line.receive(0.0)) is not None:
            if isinstance(message, BuildEnvs):
                self.build = message
            elif isinstance(message, MapRows):
                self.laid_out = message
            else:
                heard.append(message)
        return heard

    def say(self, message, frames=()):
        self.line.send(message, frames)

    def say_built(self, description=b"description"):
        self.hear()
        self.say(EnvsBuilt(description, self.build.deal))

    def say_laid_out(self, error=""):
        self.hear()
        self.say(RowsMapped(error, self.build.deal))

    @property
    def slots(self):
        return self.build.slots

    def rows(self, action=ACTIONS, space=OBSERVATIONS):
        """The rows that it shares with its host."""
        message = self.laid_out
        slots = range(message.first_slot, message.first_slot + message.num_slots)
        return SharedRows(
            self.line.descriptors.rows,
            slots,
            message.num_workers,
            single_array_leaf(action),
            leaves_of(space),
        )

    def answer_silently(self, call):
        """With its rows alone, as most steps are."""
        rows = self.rows()
        if hasattr(call, "number"):
            place = self.laid_out.worker
            rings = rows.part_flags.put(place, call.number, call.request, says_more=False)
        else:
            rings = rows.flags.put(self.laid_out.worker, call.request, says_more=False)
        if rings:
            self.line.wake_host()


class PaperStarter:
    """Starts nothing; the newest worker in each place is in ``places``."""

    def __init__(self):
        self.started, self.places, self.swept = [], {}, []

    def start(self, name, start):
        worker = PaperWorker(name, start)
        self.started.append(worker)
        self.places[int(name.removeprefix("worker-").partition(".")[0])] = worker
        return worker

    def close(self):
        pass

    def end_strays(self, name=None):
        self.swept.append(name)

    def is_debugging(self):
        return False


class Stage:
    """A host and its workers, and what the host has reported."""

    def __init__(self, num_workers=2, slots=range(4, 8), limits=PATIENT, may_spin=False):
        self.starter = PaperStarter()
        self.workers = Workers(num_workers, self.starter, limits, may_spin)
        self.plan = Plan(slots.start, len(slots), b"backend", b"rule", "NextStep", True)
        self.ready = []
        self.host = None

    def worker(self, place):
        """The paper worker that is in this place now."""
        return self.starter.places[place]

    def build(self):
        return Building(self.workers, self.plan)

    def open(self, rule=None, ahead=False, action=ACTIONS):
        """A host whose workers are all ready."""
        self.lay_out(rule, ahead, action)
        for place in range(min(len(self.workers), len(self.plan.slots))):
            self.worker(place).say_laid_out()
        assert self.events() == []
        return self

    def lay_out(self, rule=None, ahead=False, action=ACTIONS):
        """A host whose workers have yet to say that they are ready."""
        building = self.build()
        for place in range(min(len(self.workers), len(self.plan.slots))):
            self.worker(place).say_built()
        building.hear()
        assert building.is_done
        packed = [pack(space_to_plain(one), allow_pickle=True) for one in (OBSERVATIONS, action)]
        rule = EveryVersion() if rule is None else rule
        self.host = LocalHost(
            "host-0.0", self.workers, self.plan, Spaces(*packed), rule, self.ready, ahead
        )
        return self

    def get_ready(self, place):
        """Have the worker in this place go through all that comes before work."""
        self.worker(place).say_built()
        assert self.events() == []
        self.worker(place).say_laid_out()
        return self.events()

    def events(self):
        """What the host has to report, without waiting; it looks for losses each time."""
        self.workers._next_check = self.host._next_check = 0.0
        return list(self.host.events(0.0))

    def heard(self):
        """What each worker was told since the last time."""
        return [self.worker(place).hear() for place in sorted(self.starter.places)]

    def close(self):
        self.workers.close(0.0)
