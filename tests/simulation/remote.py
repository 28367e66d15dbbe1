"""Hosts behind links: messages are delivered one by one, in order, whenever chance has it."""

import pickle
from collections import deque
from types import SimpleNamespace

import msgspec
import numpy as np

from clusterenv.head.hosts import Hosts
from clusterenv.head.own_policy import OwnPolicies
from clusterenv.head.remote import RemoteFleet
from clusterenv.head.remote_start import RemoteStart
from clusterenv.head.watch import Ended
from clusterenv.host.plan import Plan, WorkerSetup
from clusterenv.launchers.base import Status
from clusterenv.plain.row_layout import RowLayout
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import PROTOCOL_VERSION, Close, FragmentMade, Hello
from clusterenv.wire.reply_checks import ReplyChecks
from clusterenv.wire.serving import Service
from tests.simulation.workers import PaperWorkers
from tests.simulation.world import Violation

STAYS_AWAY = 0.1
LATEST_S = 100.0


class PaperDriver:
    """Drives no socket: while the head waits, things happen."""

    def __init__(self, socket, answer, on_disconnect, ledger):
        self.world, self._answer = socket.world, answer
        self.arrivals, self.links = deque(), {}
        self.stopwatch = SimpleNamespace(is_on=False)
        self._is_woken = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self):
        pass

    close = start

    def expect(self, num_rows):
        pass

    def send(self, host, message, frames=()):
        if host in self.links:
            self.links[host].to_host.append((message, [bytes(frame) for frame in frames]))
        return host in self.links

    def wake(self):
        self._is_woken = True

    def put(self, host, message):
        self.arrivals.append((host, message, []))

    def drive(self, timeout_s):
        self.world.wait(timeout_s, lambda: self.arrivals or self._is_woken)
        self._is_woken = False

    def take(self, host, message, frames):
        """A message has arrived; joins and pulls are answered whoever drives."""
        if not self._answer(host, message):
            self.arrivals.append((host, message, frames))

    def take_arrivals(self):
        taken = list(self.arrivals)
        self.arrivals.clear()
        return taken


class PaperSocket:
    """Invites anybody."""

    address = "nowhere"

    def __init__(self, network, towards, lease_s):
        self.world = network.world

    def invite(self, host, lease_s, limits, workers):
        return Invitation(host, self.address, "", "", "", lease_s, limits, workers)

    def revoke(self, host, cut=True):
        pass

    def close(self):
        pass


class PaperWatch:
    """Whoever ends says so itself."""

    def __init__(self, launcher, tell):
        pass

    def start(self):
        pass

    def arrived(self, host):
        pass

    def status_of(self, host):
        return Status(False)


class Engine:
    """Starts machines, as a launcher does; some stay away."""

    towards, enrols = "", False

    def __init__(self, world, num_workers, limits):
        self._world, self._num_workers, self.limits = world, num_workers, limits
        self.driver, self.machines = None, {}

    def start(self, orders):
        for order in orders:
            machine = Machine(self._world, self, order.host, self._num_workers)
            self.machines[order.host] = machine
            if self._world.goes_wrong(STAYS_AWAY):
                # For ever, or for so long that others may have its slots by then.
                machine.comes_at = self._world.now + self._world.random.choice([20, 50, LATEST_S])
                if machine.comes_at >= self._world.now + LATEST_S:
                    continue
            self._world.actors.append(machine)

    def stop(self, hosts, grace_s=0.0):
        for host in hosts:
            if host in self.machines:
                self.machines.pop(host).end()

    def logs(self, host):
        return ""


class Machine:
    """A host, the link to its head, and what may happen to both."""

    def __init__(self, world, engine, name, num_workers):
        self._world, self._engine, self.name = world, engine, name
        self._num_workers = num_workers
        self.to_host, self._to_head = deque(), deque()
        self._service, self._workers = None, None
        self._is_busy, self._next_look = False, 0.0
        self.comes_at = 0.0
        self._num_flags_seen = 0

    # The link, as the service sees it.

    socket = None

    def send(self, message, frames=()):
        if self.name == self._world.liar and isinstance(message, FragmentMade):
            message, frames = _with_more(message, list(frames))
        self._to_head.append((message, [bytes(frame) for frame in frames]))

    # What can happen.

    def moves(self):
        if self._service is None:
            return (self._join,) if self._world.now >= self.comes_at else ()
        possible = []
        if self._to_head:
            possible.append(self._deliver)
        if not self._is_busy:
            if self.to_host:
                possible.append(self._hear)
            if self._has_to_look():
                possible.append(self._look)
        return possible

    def _join(self):
        self._world.note(self.name, "joins")
        self._workers = PaperWorkers(self._world, self._num_workers, self._engine.limits, self.name)
        self._service = Service(self.name, self, self._workers)
        self._engine.driver.links[self.name] = self
        self.send(Hello(PROTOCOL_VERSION, {}, "machine", 1, self._num_workers))

    def _deliver(self):
        for _ in range(self._how_many(self._to_head)):
            message, frames = self._to_head.popleft()
            self._world.note(self.name, "-> head", message)
            self._engine.driver.take(self.name, message, frames)

    def _how_many(self, messages):
        """All that are on their way, or the first alone."""
        return len(messages) if self._world.chance(0.5) else 1

    def _has_to_look(self):
        workers = self._workers
        if workers.num_flags != self._num_flags_seen or self._world.now >= self._next_look:
            return True
        return not workers.inbox.is_empty()

    def _hear(self):
        self._is_busy = True
        try:
            for _ in range(self._how_many(self.to_host)):
                # Whatever happens meanwhile may end this host.
                if not self.to_host:
                    break
                message, frames = self.to_host.popleft()
                self._world.note("head ->", self.name, message)
                if not isinstance(message, Close):
                    self._service._hear(message, frames)
            self._service._look_at_workers()
        finally:
            self._is_busy = False

    def _look(self):
        self._is_busy = True
        try:
            self._next_look = self._world.now + self._world.look_every_s
            self._num_flags_seen = self._workers.num_flags
            self._service._look_at_workers()
        finally:
            self._is_busy = False

    def suffer(self):
        """Something goes wrong at any time."""
        if self._world.chance(0.7):
            self._world.note(self.name, "ends")
            self._engine.driver.put(self.name, Ended("it ended"))
            self.end()
        elif self._service is not None:
            self._service.leaving = "told to leave"
            self._service._tell_leaving()

    def end(self):
        """Nothing of it is left but what has arrived."""
        if self in self._world.actors:
            self._world.actors.remove(self)
        self._engine.driver.links.pop(self.name, None)
        self.to_host.clear()
        self._to_head.clear()
        if self._workers is not None:
            self._workers.end_all("host")


def _with_more(made, frames):
    """An additional output, of the right shape: nothing is wrong with it but that it is there."""
    output = np.zeros(dict(zip(made.names, made.arrays))["rewards"][1])
    kinds = (*made.arrays, (output.dtype.str, output.shape))
    made = msgspec.structs.replace(made, names=(*made.names, "outputs/more"), arrays=kinds)
    return made, [*frames, output.tobytes()]


class PaperFleet(RemoteFleet):
    """Tells the world which envs are gone because their slots were dealt anew."""

    world = None

    def _lose(self, host, reason, **how):
        # A worker that hangs is its host's business, and no host hangs.
        is_blamed = "protocol" in reason or "no answer" in reason
        if is_blamed and host.name != self.world.liar:
            raise Violation(f"{host.name} did nothing wrong, and is lost: {reason}")
        return super()._lose(host, reason, **how)

    def _deal(self, *args):
        deal = super()._deal(*args)
        self.world.note("slots", deal.moved, "are dealt anew")
        for instance in self.world.instances:
            if instance.slot in deal.moved:
                instance.ended_by = "moved"
        return deal


def remote_fleet(world, limits, head, spaces, packed):
    """Hosts that have all come, or most of them."""
    num_hosts = world.random.randint(1, 3)
    num_envs = world.random.randint(num_hosts, 5)
    num_workers = world.random.randint(1, 2)
    engine, rule = Engine(world, num_workers, limits), pickle.dumps(head.rule)

    def plan_of(slots):
        return Plan(slots.start, len(slots), b"", rule, "NextStep", False)

    workers, published = [num_workers] * num_hosts, (head.publisher, head.ledger)
    network = SimpleNamespace(world=world, compress=False)
    own = Hosts(engine, network, 30.0, limits, WorkerSetup(), workers, *published, plan_of)
    engine.driver = own.driver
    min_hosts = world.random.randint(1, num_hosts)
    start = RemoteStart(own, num_envs, min_hosts, 60.0, False, head.reports)
    start.lay_out(packed)
    observation, action, leaves = spaces
    policies = OwnPolicies(head.publisher, observation, action)
    checks = ReplyChecks(observation, action, head.publisher, policies)
    fleet = PaperFleet(start, RowLayout(leaves), checks, num_envs)
    fleet.world = world
    return fleet
