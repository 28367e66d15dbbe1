"""Where a run shows its status to its own user on its own machine.

It is a Unix socket in Linux's abstract namespace: it has no file, so nothing is left behind however
the head ends. The kernel tells either side who the other is; a head answers only its own user, and
reads nothing, so there is nothing that a visitor could do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from clusterenv.status import showing
from clusterenv.status.run_status import RunStatus
from clusterenv.status.showing import Showing

AVAILABLE = hasattr(socket, "SO_PEERCRED")
_PREFIX = "clusterenv"
_TIMEOUT_S = 2.0
_PEER = struct.Struct("3i")
_TRIES = 5
_MOST_BYTES = 1 << 26
_MOST_BYTES_OF_WEIGHTS = 1 << 34
# Somebody who looks this often counts as watching.
_WATCHED_S = 10.0


@dataclass(frozen=True, order=True)
class Run:
    """A run of this user on this machine, by its id and the process of its head."""

    id: str
    pid: int

    @property
    def address(self) -> str:
        """The name of its socket."""
        return f"\0{_PREFIX}/{os.geteuid()}/{self.id}/{self.pid}"


def _ignore(is_watched: bool) -> None:
    pass


def _nothing(slot: int) -> Iterable[bytes | bytearray]:
    return ()


class StatusServer(threading.Thread):
    """Sends a snapshot to every process of the same user that connects. Sleeps otherwise.

    Args:
        name: The name of the thread.
        run: The run that it shows.
        snapshot: Takes a snapshot.
        watch: Called when somebody begins to look, or has not looked for a while.
        show: Returns what playing an episode of a slot elsewhere takes.
    """

    def __init__(
        self,
        name: str,
        run: Run,
        snapshot: Callable[[], RunStatus],
        watch: Callable[[bool], None] = _ignore,
        show: Callable[[int], Iterable[bytes | bytearray]] = _nothing,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.shown, self._snapshot, self._watch, self._show = run, snapshot, watch, show
        self._listener: socket.socket | None = None

    @property
    def run_id(self) -> str:
        """The name of the run."""
        return self.shown.id

    def start(self) -> None:
        """Make the run visible from now on."""
        # A run does without it if there is no abstract namespace, or no room for a socket.
        with contextlib.suppress(OSError):
            self._listener = _listen(self.shown) if AVAILABLE else None
        super().start()

    def run(self) -> None:
        """Serve until :meth:`close`."""
        listener = self._listener
        while listener is not None:
            try:
                visitor, name = self._next_visitor(listener)
            except OSError:
                return
            # An error with a visitor or a snapshot must not be the run's problem.
            with visitor, contextlib.suppress(Exception):
                visitor.settimeout(_TIMEOUT_S)
                if _user_of(visitor) == os.geteuid():
                    self._watch(True)
                    listener.settimeout(_WATCHED_S)
                    self._answer(visitor, showing.slot_in(name))

    def _next_visitor(self, listener: socket.socket) -> tuple[socket.socket, Any]:
        """Wait for the next visitor; OSError once the listener is closed, at any moment."""
        try:
            return listener.accept()
        except TimeoutError:
            self._watch(False)
        listener.settimeout(None)
        return listener.accept()

    def _answer(self, visitor: socket.socket, slot: int | None) -> None:
        if slot is None:
            visitor.sendall(msgspec.json.encode(self._take()))
            return
        for chunk in self._show(slot):
            visitor.sendall(chunk)

    def _take(self) -> RunStatus:
        for _ in range(_TRIES):
            # The run goes on meanwhile, and what is being copied may change.
            with contextlib.suppress(RuntimeError, LookupError):
                return self._snapshot()
        raise OSError("the run changes too fast")

    def close(self) -> None:
        """Make the run invisible, and end the thread."""
        if self._listener is None:
            return
        # Closing is not enough: a forked child may have a copy of the descriptor.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(_TIMEOUT_S)


def _listen(run: Run) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(run.address)
        listener.listen(8)
    except OSError:
        listener.close()
        raise
    return listener


def _user_of(peer: socket.socket) -> int:
    """The user at the other end, according to the kernel."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(credentials)[1])


def runs() -> list[Run]:
    """The runs of this user on this machine."""
    # Other users may give their sockets any name, even one that is not text.
    return runs_in(Path("/proc/net/unix").read_text(errors="replace"), os.geteuid())


def runs_in(table: str, user: int) -> list[Run]:
    """The runs of ``user`` among the sockets that the kernel lists."""
    found = set()
    for line in table.splitlines():
        words = line.rsplit(" ", 1)[-1].split("/")
        is_ours = len(words) == 4 and words[:2] == [f"@{_PREFIX}", str(user)]
        if is_ours and words[3].isascii() and words[3].isdigit():
            found.add(Run(words[2], int(words[3])))
    return sorted(found)


def fetch(run: Run) -> RunStatus | None:
    """The status of ``run`` now; None if it has ended or is not this user's."""
    try:
        return msgspec.json.decode(_call(run, None, _MOST_BYTES), type=RunStatus)
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def fetch_showing(run: Run, slot: int) -> tuple[Showing, bytes] | None:
    """What playing an episode of this slot takes, and the newest weights; None if the run has
    ended, is not this user's or has no such slot."""
    try:
        return showing.decode(_call(run, showing.name_for(slot), _MOST_BYTES_OF_WEIGHTS))
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None


def _call(run: Run, name: str | None, most_bytes: int) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(_TIMEOUT_S)
        if name is not None:
            caller.bind(name)
        caller.connect(run.address)
        # Anybody could have taken the name.
        if _user_of(caller) != os.geteuid():
            raise OSError("this run is somebody else's")
        return _receive(caller, most_bytes)


def _receive(caller: socket.socket, most_bytes: int) -> bytes:
    """Everything that is sent, up to the largest valid size."""
    data = bytearray()
    while received := caller.recv(1 << 16):
        data += received
        if len(data) > most_bytes:
            raise OSError(f"the answer exceeds {most_bytes} bytes, the most that a run sends")
    return bytes(data)
