"""Hosts that do next to nothing: many in one process, each with a real socket of its own.

    python benchmarks/light_host.py PIECES < invitations

A light host speaks the real protocol, encrypted, and answers at once with the rows that envs of
``tally.py`` would have made. Its workers are pretended.
"""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from typing import Any

import numpy as np
import zmq
from tally import CERTAIN, WIDTH, Tally

from clusterenv.arrays import Array, Buffer
from clusterenv.plain.row_layout import RowLayout
from clusterenv.plain.spaces import leaves_of
from clusterenv.plain.values import pack, unpack
from clusterenv.policies.copy import Received
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import Collect, Newest, Reset, Step
from clusterenv.sharing import shares
from clusterenv.wire.compression import ZLIB
from clusterenv.wire.fragment_window import FragmentWindow, group_for_messages
from clusterenv.wire.gathering import fragment_made
from clusterenv.wire.host_main import hello
from clusterenv.wire.host_socket import HostSocket
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import (
    Abandon,
    Announce,
    Build,
    Built,
    Close,
    LayOut,
    Pull,
    Pulled,
    Ready,
    RowsMade,
    StaffReport,
    Weights,
    WorkerReport,
)
from clusterenv.wire.observation_codec import ObservationCodec
from clusterenv.worker.description import describe_envs

LAYOUT = RowLayout(leaves_of(Tally.observation_space))
_LOOK_AGAIN_S = 1.0


class LightHost:
    """One host: its envs are a few arrays."""

    def __init__(self, invitation: Invitation, pieces: int) -> None:
        self._workers, self._pieces = invitation.workers or 1, pieces
        self._socket = HostSocket(invitation)
        self.fd: int = self._socket.socket.get(zmq.FD)
        self._epoch = 0
        self._slots = range(0)
        self._who, self._ages = np.zeros(0), np.zeros(0)
        self._tasks: deque[Collect] = deque()
        self._finished: list[FragmentPart] = []
        self._window = FragmentWindow()
        self._codec = ObservationCodec(ZLIB)
        self._newest, self._held, self._is_pulling = Newest(0, 0), 0, False
        self._policy: TakePolicy | None = None
        self._received = Received()
        self.is_closed = False
        self._socket.send(hello(self._workers))

    def listen(self) -> None:
        """Hear and answer everything that has come."""
        while not self.is_closed and (received := self._socket.receive(0)) is not None:
            self._hear(*received)

    def _hear(self, message: Any, frames: list[Buffer]) -> None:
        match message:
            case Step():
                actions = np.frombuffer(frames[0], message.dtype)
                rows = self._rows_of(message.slots)
                self._ages[rows] += 1
                self._send_rows(message.slots, actions)
            case Collect():
                self._tasks.append(message)
                self._window.asked(message.slots)
                self._look_at(message.newest)
                self._work()
            case Announce(newest=newest):
                self._look_at(newest)
            case TakePolicy():
                self._policy = message
            case Weights():
                self._take_weights(message, frames[0])
                self._work()
            case Abandon(epoch=epoch):
                self._epoch = epoch
                self._tasks.clear()
                self._finished.clear()
                self._window.clear()
            case Reset():
                rows = self._rows_of(message.slots)
                self._who[rows] = unpack(message.seeds, allow_pickle=False)
                self._ages[rows] = 0
                self._send_rows(message.slots, 0)
            case Build():
                self._build(message)
            case LayOut():
                self._socket.send(StaffReport(tuple(self._staff())))
                self._socket.send(Ready(self._epoch))
            case Close():
                self.is_closed = True
                self._socket.close()
            case _:
                raise NotImplementedError(f"a light host cannot {type(message).__name__}")

    def _rows_of(self, slots: tuple[int, ...]) -> slice:
        """Which of its own these slots are; only neighbours are asked for."""
        start = slots[0] - self._slots.start
        return slice(start, start + len(slots))

    # Joining.

    def _build(self, build: Build) -> None:
        self._epoch, self._slots = build.epoch, build.plan.slots
        self._who, self._ages = np.array(self._slots, np.float64), np.zeros(len(self._slots))
        described = pack(describe_envs([Tally()], trusted=True), allow_pickle=True)
        sizes = [worker.num_slots for worker in self._staff()]
        self._socket.send(Built(self._epoch, tuple((size, described) for size in sizes)))

    def _staff(self) -> list[WorkerReport]:
        sizes = list(shares(len(self._slots), [1.0] * self._workers))
        starts = np.cumsum([self._slots.start, *sizes]).tolist()
        return [
            WorkerReport(f"worker-{index}.0", os.getpid(), "ready", starts[index], size, 0)
            for index, size in enumerate(sizes)
        ]

    # Work.

    def _send_rows(self, slots: tuple[int, ...], actions: Any) -> None:
        rows, count = self._rows_of(slots), len(slots)
        memory = bytearray(LAYOUT.size(count))
        results = LAYOUT.view(memory, count)
        (seen,) = results.observations
        assert seen is not None
        results.rewards[:] = seen[:, 1] = self._ages[rows]
        seen[:, 0], seen[:, 2] = self._who[rows], actions
        is_all = count == len(self._slots)
        self._socket.send(RowsMade(self._epoch, None if is_all else slots), [memory])

    def _look_at(self, newest: Newest) -> None:
        """Pull every version."""
        if newest.version > self._newest.version:
            self._newest = newest
        if self._held < self._newest.version and not self._is_pulling:
            self._is_pulling = True
            policy_id = 0 if self._policy is None else self._policy.policy_id
            cause = "version" if self._held else "first"
            self._socket.send(Pull(policy_id, self._held, cause))

    def _take_weights(self, message: Weights, data: Buffer) -> None:
        assert self._policy is not None
        self._received.decode(
            self._policy.layout,
            message.version,
            message.encoding,
            message.base,
            message.checksum,
            data,
        )
        self._held, self._is_pulling = message.version, False
        self._socket.send(Pulled(message.version, 0.0))
        self._look_at(self._newest)

    def _work(self) -> None:
        while self._tasks and not self._is_pulling:
            task = self._tasks.popleft()
            pieces = 1 if task.together else min(self._pieces, len(task.slots))
            start = 0
            for size in shares(len(task.slots), [1.0] * pieces):
                self._collect(task, task.slots[start : start + size])
                start += size
                self._send_fragments()
        self._send_fragments()

    def _collect(self, task: Collect, slots: tuple[int, ...]) -> None:
        rows = [slot - self._slots.start for slot in slots]
        arrays = fragment_of(self._who[rows], self._ages[rows], task.num_steps, self._held)
        self._ages[rows] += task.num_steps
        self._finished.append(FragmentPart(task, slots, self._held, arrays))

    def _send_fragments(self) -> None:
        """As a real host would, see Gathering."""
        if not self._finished or not self._window.is_open:
            return
        finished, self._finished = self._finished, []
        for group in group_for_messages(finished):
            message, frames = fragment_made(self._epoch, group, self._codec)
            if group[0].request.asks_again:
                self._window.sent(message.slots)
            self._socket.send(message, frames)


def fragment_of(who: Array, ages: Array, num_steps: int, version: int) -> dict[str, Array]:
    """What a worker of these envs collects: the names, dtypes and shapes of a real one."""
    count = len(who)
    after = ages + np.arange(num_steps + 1)[:, None]
    actions = ((who + after[:-1] + version) % 2).astype(np.int64)
    seen = np.zeros((num_steps + 1, count, WIDTH), np.float32)
    seen[:, :, 0], seen[:, :, 1], seen[1:, :, 2] = who, after, actions
    logits = np.zeros((num_steps, count, 2), np.float32)
    logits[:, :, 0], logits[:, :, 1] = CERTAIN * (1 - actions), CERTAIN * actions
    none, never = np.zeros(0, np.int64), np.zeros((num_steps, count), np.bool_)
    return {
        "observations/0": seen,
        "rewards": np.ascontiguousarray(after[1:]),
        "terminated": never,
        "truncated": never,
        "actions/0": actions,
        "outputs/log_prob": np.zeros((num_steps, count), np.float32),
        "distribution/logits": logits,
        "finals/steps": none,
        "finals/slots": none,
        "finals/returns": np.zeros(0),
        "finals/lengths": none,
        "finals/0": np.zeros((0, WIDTH), np.float32),
    }


def serve(hosts: list[LightHost]) -> None:
    """Until all are closed, or standard input is."""
    by_fd = {host.fd: host for host in hosts}
    epoll = select.epoll()
    epoll.register(0, select.EPOLLIN | select.EPOLLHUP)
    for fd in by_fd:
        epoll.register(fd, select.EPOLLIN)
    while by_fd:
        ready = [fd for fd, _ in epoll.poll(_LOOK_AGAIN_S)]
        if 0 in ready:
            return
        # libzmq's descriptors only tell of changes: after a pause, look at every host.
        for fd in ready or list(by_fd):
            host = by_fd[fd]
            host.listen()
            if host.is_closed:
                del by_fd[fd]


def main() -> None:
    """Run the hosts whose invitations come on standard input, until they are closed or it is."""
    pieces = int(sys.argv[1])
    lines = iter(sys.stdin.buffer.readline, b"\n")
    serve([LightHost(Invitation.from_bytes(line), pieces) for line in lines])
    os._exit(0)


if __name__ == "__main__":
    main()
