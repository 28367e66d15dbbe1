"""Lets workers in: answers Hello and Built on the I/O thread, so that joins never wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from clusterenv.arrays import Buffer
from clusterenv.wire.messages import (
    PROTOCOL_VERSION,
    Build,
    Built,
    Hello,
    Layout,
    Message,
    Refused,
)
from clusterenv.wire.versions import disagreements, remedy, versions

Replies = Sequence[tuple[Message, Sequence[Buffer]]]


class Reception:
    """What each worker is to be told when it turns up. Decides; opens nothing."""

    def __init__(self) -> None:
        self._build_by_worker: dict[str, Build | None] = {}
        self._hello_by_worker: dict[str, Hello] = {}
        self._layout: Layout | None = None
        # The user's thread assigns work while the I/O thread lets workers in.
        self._lock = threading.Lock()
        self._versions = versions()

    def expect(self, worker: str, build: Build | None) -> bool:
        """``worker`` is to build this when it turns up, or to wait (None); True if it is there."""
        with self._lock:
            self._build_by_worker[worker] = build
            return worker in self._hello_by_worker

    def is_here(self, worker: str) -> bool:
        """Whether ``worker`` has turned up."""
        return worker in self._hello_by_worker

    def agree(self, layout: Layout) -> None:
        """The first workers agree on this layout; later ones are told at once."""
        self._layout = layout

    def forget(self, worker: str) -> None:
        """``worker`` will not turn up any more."""
        self._build_by_worker.pop(worker, None)
        self._hello_by_worker.pop(worker, None)

    def whereabouts(self, worker: str) -> str:
        """The worker's name with its host and process, once it has said Hello."""
        hello = self._hello_by_worker.get(worker)
        return f"{worker} (host {hello.host}, pid {hello.pid})" if hello else worker

    def host_of(self, worker: str) -> tuple[str, int]:
        """The worker's host and process; empty if it has not said Hello."""
        hello = self._hello_by_worker.get(worker)
        return (hello.host, hello.pid) if hello else ("", 0)

    def neighbourhood_of(self, worker: str) -> tuple[str, int]:
        """Where the worker says it is, and its process; empty if it has not said Hello."""
        hello = self._hello_by_worker.get(worker)
        return (hello.neighbourhood, hello.pid) if hello else ("", 0)

    def answer(self, worker: str, message: Message) -> Replies | None:
        """Replies to a joining worker; None if the message is for the user's thread."""
        match message:
            case Hello():
                with self._lock:
                    self._hello_by_worker[worker] = message
                    welcome = self._welcome(worker, message)
                return [(welcome, ())] if welcome is not None else []
            case Built() if self._layout is not None:
                return [(self._layout, ())]
        return None

    def _welcome(self, worker: str, hello: Hello) -> Message | None:
        if refusal := self.refusal(hello):
            return Refused(refusal)
        if worker not in self._build_by_worker:
            return Refused("nobody expects this worker")
        return self._build_by_worker[worker]

    def refusal(self, hello: Hello) -> str:
        """Why a worker that runs this cannot work here, or nothing."""
        problems = disagreements(self._versions, hello.versions)
        if hello.protocol != PROTOCOL_VERSION:
            problems.insert(0, f"protocol {hello.protocol} instead of {PROTOCOL_VERSION}")
        what_to_do = remedy(self._versions, hello.versions)
        return "; ".join([*problems, *filter(None, [what_to_do])])
