"""Serves a host behind a socket: the head's messages go to the host, its events to the head."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterable
from typing import Any

import zmq

from clusterenv.arrays import Buffer
from clusterenv.errors import StartupError
from clusterenv.host.building import Building, CouldNotBuildError
from clusterenv.host.events import (
    Event,
    Failed,
    Lost,
    PullWanted,
    Rows,
    Stuck,
    Values,
    WorkerWarned,
)
from clusterenv.host.host import LocalHost
from clusterenv.host.weights import PulledWeights
from clusterenv.host.workers import Workers
from clusterenv.policies.copy import Received
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import Request, Step
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.surroundings import settle
from clusterenv.sync.rules import EVALUATION
from clusterenv.wire.compression import BEST, common_to
from clusterenv.wire.gathering import Gathering
from clusterenv.wire.host_socket import HostSocket
from clusterenv.wire.messages import (
    Abandon,
    Announce,
    Build,
    Built,
    CannotStart,
    Close,
    LayOut,
    Leaving,
    Pull,
    Pulled,
    Ready,
    Refused,
    RequestFailed,
    StaffReport,
    ValuesMade,
    Warned,
    Weights,
    WorkerLost,
    WorkerReport,
    WorkerStuck,
)
from clusterenv.wire.observation_codec import ObservationCodec
from clusterenv.wire.rate_limits import Allowance

_POLL_S = 0.1
_MOST_WARNINGS_AT_ONCE = 1_000
_WARNINGS_PER_SECOND = 50.0


class Service:
    """Serves one head until it says Close."""

    def __init__(self, name: str, socket: HostSocket, workers: Workers) -> None:
        self._name, self._socket, self._workers = name, socket, workers
        self._building: Building | None = None
        self._host: LocalHost | None = None
        self._gathering: Gathering | None = None
        self._epoch = 0
        self._is_ready = False
        self._num_changes = -1
        self._received, self._pulled_at = Received(), 0.0
        self._policy: TakePolicy | None = None
        self.leaving = ""
        """Why this host must end soon; may be set by a signal handler."""
        self._grace_s: float | None = None
        self._warnings = Allowance("warnings", _MOST_WARNINGS_AT_ONCE, _WARNINGS_PER_SECOND)
        self._poller = zmq.Poller()
        self._poller.register(socket.socket, zmq.POLLIN)
        inbox = workers.inbox
        self._poller.register(inbox.bell.fd, zmq.POLLIN)

    def run(self) -> float:
        """Serve; returns how long the envs may take to close."""
        while self._grace_s is None:
            self._wait()
            while (received := self._socket.receive(0)) is not None:
                self._hear(*received)
            self._look_at_workers()
            self._tell_leaving()
        return self._grace_s

    def _wait(self) -> None:
        inbox = self._workers.inbox
        try:
            if self._host is not None:
                self._host.listen()
            if inbox.fall_asleep():
                self._poller.poll(int(_POLL_S * 1000))
        finally:
            inbox.wake_up()
        inbox.bell.clear()

    def _tell_leaving(self) -> None:
        if self.leaving:
            self._socket.send(Leaving(self.leaving))
            print(f"clusterenv host: {self.leaving}", file=sys.stderr, flush=True)
            self.leaving = ""

    # What the head says.

    def _hear(self, message: Any, frames: list[Buffer]) -> None:
        match message:
            case Step() if frames and self._host is not None:
                self._step(message, frames)
            case Request():
                self._ask(message)
            case Announce(newest=newest) if self._host is not None:
                self._host.announce(newest)
            case Abandon(epoch=epoch):
                self._abandon(epoch)
            case TakePolicy():
                self._policy = message
            case Weights():
                self._take_weights(message, frames[0])
            case Build(plan=plan, epoch=epoch):
                self._abandon(epoch)
                self._host, self._is_ready = None, False
                self._building = Building(self._workers, plan)
            case LayOut(spaces=spaces, compression=compression):
                self._lay_out(spaces, ObservationCodec(common_to(compression, BEST)))
            case Close(grace_s=grace_s):
                self._grace_s = grace_s
            case Refused(reason=reason):
                raise SystemExit(f"clusterenv host: the head refused this host: {reason}")

    def _abandon(self, epoch: int) -> None:
        self._epoch = epoch
        if self._host is not None and self._gathering is not None:
            self._host.abandon()
            self._gathering.forget(epoch)

    def _lay_out(self, spaces: Any, codec: ObservationCodec) -> None:
        building = self._building
        if building is None or not building.is_done:
            return  # from an earlier deal
        plan = building.plan
        # A rule may be the user's own, and is looked up where the head would.
        settle(plan.search_path, plan.working_directory)
        rule = pickle.loads(plan.sync_rule)
        ready: list[int] = []
        self._host = LocalHost(
            self._name, self._workers, building.plan, spaces, rule, ready, queues_ahead=False
        )
        self._gathering = Gathering(self._host, ready, self._socket, self._epoch, codec)
        self._building = None

    def _ask(self, request: Any) -> None:
        # None if slots were dealt anew, and what is asked for is gone.
        if self._host is not None and self._gathering is not None:
            self._gathering.expect(request)
            self._host.ask(request)

    def _step(self, step: Step, frames: list[Buffer]) -> None:
        host, gathering = self._host, self._gathering
        assert host is not None
        assert gathering is not None
        actions = host.read_actions(step, frames[0])
        are_all = step.together and len(step.slots) == len(host.slots)
        if are_all and host.step_again(step, actions):
            gathering.send_all()
            return
        gathering.expect(step)
        if not host.is_in_lockstep:
            host.ask(step, actions)
        if host.is_in_lockstep:
            self._tell(host.events(_POLL_S))

    def _take_weights(self, message: Weights, data: Buffer) -> None:
        policy, host = self._policy, self._host
        if host is None or policy is None or policy.policy_id != message.policy_id:
            return  # from a pull that was abandoned
        # The next delta starts from the weights that act.
        received = Received() if message.cause == EVALUATION else self._received
        vector = received.decode(
            policy.layout,
            message.version,
            message.encoding,
            message.base,
            message.checksum,
            data,
        )
        pulled = PulledWeights(policy, message.version, vector, message.cause, len(data))
        host.take_weights(pulled)
        self._socket.send(Pulled(message.version, time.monotonic() - self._pulled_at))

    # What the workers say.

    def _look_at_workers(self) -> None:
        try:
            if self._host is not None:
                # A worker that was called a moment ago may already have answered with a message.
                self._host.listen()
                self._tell(self._host.heard())
                self._tell_ready(self._host)
            elif self._building is not None:
                self._look_at_building(self._building)
        except CouldNotBuildError as error:
            self._building = None
            self._socket.send(CannotStart(str(error), error.raised, error.where))
        except (StartupError, OSError) as error:
            if self._host is not None:
                raise
            self._building = None
            self._socket.send(CannotStart(str(error)))

    def _look_at_building(self, building: Building) -> None:
        if building.is_done:
            return
        building.hear()
        for worker, category, text in building.take_warnings():
            self._warn(worker, category, text)
        for stuck in building.find_stuck():
            self._socket.send(WorkerStuck(stuck.worker, stuck.text))
        if building.is_done:
            self._socket.send(Built(self._epoch, tuple(building.descriptions)))

    def _warn(self, worker: str, category: str, text: str) -> None:
        # An env may warn in every step, and the head would cut off a host that passes on all of it.
        if self._warnings.allows(self._name, time.monotonic()):
            self._socket.send(Warned(worker, category, text))

    def _tell_ready(self, host: LocalHost) -> None:
        # Before Ready, so that the workers of a host that is ready are known.
        if self._workers.num_changes != self._num_changes:
            self._num_changes = self._workers.num_changes
            staff = tuple(_state_of(worker) for worker in host.workers)
            self._socket.send(StaffReport(staff))
        if not self._is_ready and host.is_ready:
            self._is_ready = True
            self._socket.send(Ready(self._epoch))

    def _tell(self, events: Iterable[Event]) -> None:
        gathering, epoch = self._gathering, self._epoch
        assert gathering is not None
        for event in events:
            match event:
                case Rows():
                    gathering.add_rows(event)
                case FragmentPart():
                    gathering.add_fragment(event)
                case Values(request=request, slots=slots, values=values):
                    message = ValuesMade(epoch, request.request, tuple(slots), values)
                    self._socket.send(message)
                case Failed(request=request, slots=slots, raised=raised, where=where):
                    gathering.count_off(request, slots)
                    failed = RequestFailed(epoch, request.request, tuple(slots), raised, where)
                    self._socket.send(failed)
                case WorkerWarned(worker=worker, category=category, text=text):
                    self._warn(worker, category, text)
                case Stuck(worker=worker, text=text):
                    self._socket.send(WorkerStuck(worker, text))
                case Lost():
                    # Rows that were answered before the loss are sent before it.
                    gathering.let_go(event.slots)
                    gathering.send()
                    for one in event.voided:
                        gathering.count_off(one.request, one.slots)
                    self._socket.send(_loss(epoch, event))
                case PullWanted():
                    self._pulled_at = time.monotonic()
                    held, version = event.held, event.version
                    pull = Pull(event.policy_id, held, event.cause, event.threshold, version)
                    self._socket.send(pull)
        gathering.send()


def _loss(epoch: int, lost: Lost) -> WorkerLost:
    voided = tuple((one.request.request, one.slots) for one in lost.voided)
    return WorkerLost(
        epoch,
        lost.slots,
        lost.reason,
        lost.obituary,
        voided,
        lost.error,
        lost.who,
        lost.slot,
        lost.in_vain,
    )


def _state_of(status: WorkerStatus) -> WorkerReport:
    return WorkerReport(
        status.name,
        status.pid,
        status.state,
        status.slots.start,
        len(status.slots),
        status.incarnation,
    )
