"""The real head and the real hosts, put into a simulated world."""

import contextlib
import pickle
from types import SimpleNamespace
from unittest import mock

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from clusterenv.head import (
    collecting,
    hosts,
    intake,
    local,
    loss_reports,
    partial_batches,
    pending,
    remote,
    remote_host,
    remote_start,
    session,
)
from clusterenv.head.collecting import Collecting
from clusterenv.head.drift import Drift
from clusterenv.head.local import LocalFleet
from clusterenv.head.loss_reports import LossReports
from clusterenv.head.partial_batches import PartialBatches
from clusterenv.head.publisher import Publisher
from clusterenv.head.session import Agreement, Session
from clusterenv.host import (
    building,
    hearing,
    host,
    lockstep,
    part_calls,
    staff,
    weights,
    worker_requests,
    workers,
)
from clusterenv.host.building import Building
from clusterenv.host.host import LocalHost
from clusterenv.host.plan import Plan, Spaces, WorkerLimits
from clusterenv.memory import shared_rows
from clusterenv.memory.answer_flags import AnswerFlags
from clusterenv.memory.shared_rows import SharedRows
from clusterenv.plain.spaces import leaves_of, single_array_leaf, space_to_plain
from clusterenv.plain.values import pack
from clusterenv.policies.base import Acted
from clusterenv.sync.ledger import Ledger
from clusterenv.sync.rules import EveryNth, EveryVersion
from clusterenv.wire import serving
from tests.simulation.remote import PaperDriver, PaperSocket, PaperWatch, remote_fleet
from tests.simulation.workers import PaperWorkers

OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (2,), np.float64), Discrete(9)
LIMITS = WorkerLimits(60.0, 20.0, 40.0, 1_000, max_restarts=1_000, slow_warning_s=5.0)
SPACES = Spaces(*(pack(space_to_plain(s), allow_pickle=True) for s in (OBSERVATIONS, ACTIONS)))
TIMED = [
    *[collecting, hosts, partial_batches, pending, remote, remote_host, remote_start, session],
    *[building, hearing, host, lockstep, part_calls, staff, weights, worker_requests, workers],
    *[local, serving],
]
RULES = {"every version": EveryVersion, "every third": lambda: EveryNth(3)}


class PaperRows(SharedRows):
    """Rows that workers find again."""

    def __init__(self, workers, *layout):
        super().__init__(workers, *layout)
        workers.rows = self


def _do_nothing(*_):
    pass


_POLLER = SimpleNamespace(register=lambda socket, events: None)
REPLACED = [
    # Ctrl-C comes from the world, and only in the middle of a wait; nobody has to hold it back.
    (intake, "Uninterrupted", lambda wake: contextlib.nullcontext()),
    (loss_reports, "_cut", lambda line, length: line[:length]),
    (remote_host, "printable", lambda text: text[:50]),
    (staff, "allocate", _do_nothing),
    (staff, "SharedRows", PaperRows),
    (lockstep, "MAY_SPIN", True),
    (part_calls, "MAY_SPIN", True),
    # Nobody answers while somebody spins.
    (AnswerFlags, "look_out", lambda flags, places, number, _: flags.are_silent(places, number)),
    (hosts, "Driver", PaperDriver),
    (hosts, "HeadSocket", PaperSocket),
    (hosts, "Watch", PaperWatch),
    (hosts, "make_room", _do_nothing),
    (hosts, "versions", dict),
    (hosts, "refusal", lambda own, hello: ""),
    (remote_start, "description_reader", lambda trusted: lambda data, count: None),
    (serving, "settle", lambda path, folder: None),
    (serving, "zmq", SimpleNamespace(Poller=lambda: _POLLER, POLLIN=1)),
]


class Clock:
    """What modules take for ``time``: that of the world that is simulated now."""

    world = None

    def monotonic(self):
        return self.world.now

    perf_counter = monotonic

    def sleep(self, seconds):
        self.world.now += seconds


CLOCK = Clock()


@contextlib.contextmanager
def simulated():
    """Meanwhile there are no clocks and no shared memory."""
    with contextlib.ExitStack() as patches:
        for module in TIMED:
            if hasattr(module, "time"):
                patches.enter_context(mock.patch.object(module, "time", CLOCK))
        memory = mock.patch.object(
            shared_rows, "map_memory", lambda fd, size: memoryview(bytearray(size))
        )
        patches.enter_context(memory)
        # The spaces are always the same, and to read them costs more than most events.
        for name in ("space_from_plain", "leaves_of", "single_array_leaf", "unpack"):
            patches.enter_context(mock.patch.object(staff, name, _quick(name)))
        for owner, name, value in REPLACED:
            patches.enter_context(mock.patch.object(owner, name, value))
        yield


def _quick(name):
    known = {
        "unpack": lambda data, allow_pickle: data,
        "space_from_plain": lambda data: {SPACES.observation: OBSERVATIONS}.get(data, ACTIONS),
        "leaves_of": lambda space: _LEAVES,
        "single_array_leaf": lambda space: _ACTION_LEAF,
    }
    return known[name]


_LEAVES, _ACTION_LEAF = leaves_of(OBSERVATIONS), single_array_leaf(ACTIONS)


class PaperPolicy:
    """One number."""

    def __init__(self):
        self.number = np.zeros(1)

    def weights(self):
        return {"number": self.number}

    def change(self):
        self.number = self.number + 1

    def load(self, weights):
        self.number = weights["number"]

    def act(self, observations, state, rng):
        return Acted(np.zeros(len(observations), np.int64))


_PACKED_POLICY = pickle.dumps(PaperPolicy())
PACKER = SimpleNamespace(
    pack=lambda value: _PACKED_POLICY, pack_values=lambda value: pack(value, allow_pickle=False)
)


class Stage:
    """A session in a world, and all that a ClusterEnv would have around it."""

    def __init__(self, world, fleet, head, sizes, ready, trusted):
        agreed = Agreement(
            OBSERVATIONS,
            ACTIONS,
            _ACTION_LEAF,
            AutoresetMode.NEXT_STEP,
            False,
            sizes,
            trusted,
        )
        rows, status = fleet.results.rewards, SimpleNamespace(close=lambda: None)
        self.world, self.num_envs = world, len(rows)
        drift = Drift(head.rule, OBSERVATIONS, ACTIONS, head.publisher, head.ledger, fleet.accuse)
        self.session = Session(
            fleet, agreed, head.publisher, drift, PACKER, ready, status, head.reports
        )
        self.dropped = Ledger()
        self.collecting = Collecting(self.session, balance=False, ledger=self.dropped)
        self.pulls_all = isinstance(head.rule, EveryVersion)
        size = world.random.randint(1, self.num_envs)
        self.batch_size, self.partial = size, PartialBatches(self.session, size)


class Headquarters:
    """What the head publishes with, and what it writes down."""

    def __init__(self, world):
        self.rule = RULES[world.random.choice(sorted(RULES))]()
        self.ledger = Ledger()
        self.publisher = Publisher(self.ledger, "raw", PACKER)
        self.reports = LossReports(self.ledger, CLOCK.monotonic)


def local_stage(world):
    """One host, in the head's process."""
    num_workers = world.random.randint(1, 3)
    num_envs = world.random.randint(num_workers, 4)
    head = Headquarters(world)
    own = PaperWorkers(world, num_workers, LIMITS)
    plan = Plan(0, num_envs, b"", b"", "NextStep", True)
    built = Building(own, plan)
    work_all(own)
    built.hear()
    ready = []
    here = LocalHost("host-0.0", own, plan, SPACES, head.rule, ready, queues_ahead=True)
    fleet = LocalFleet(SimpleNamespace(may_spin=False), here, head.publisher)
    work_all(own)
    sizes = tuple(len(worker.slots) for worker in own.all if worker.slots)
    stage = Stage(world, fleet, head, sizes, ready, trusted=True)
    stage.session.pump(0.0)
    return stage


def remote_stage(world):
    """Some hosts, behind links."""
    head = Headquarters(world)
    fleet = remote_fleet(world, LIMITS, head, (OBSERVATIONS, ACTIONS, _LEAVES), SPACES)
    return Stage(world, fleet, head, (1,) * len(fleet.results.rewards), [], trusted=False)


def liars_stage(world):
    """The same, and one of the hosts lies."""
    world.liar = f"host-{world.random.randint(0, 2)}.0"
    return remote_stage(world)


def work_all(workers):
    """Nothing goes wrong before the run has begun."""
    for worker in workers.all:
        while worker.line.mailbox.to_worker:
            worker.running.work()
