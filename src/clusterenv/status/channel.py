"""Where a run shows its status to its own user on its own machine.

A Unix socket in Linux's abstract namespace: it has no file, so that nothing stays behind however
the head ends. The kernel tells either side who the other is; a head answers nobody but its own
user, and reads nothing, so that there is nothing that a visitor could do.
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
# Whoever looks now and then is still looking.
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
    """Sends a snapshot to everyone of the same user who connects. Sleeps otherwise.

    Args:
        name: Of the thread.
        run: Whose status it is.
        snapshot: Takes a snapshot.
        watch: Told that somebody has begun to look, or has not looked for a while.
        show: What it takes to play an episode of a slot elsewhere.
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
        """What the run is called."""
        return self.shown.id

    def start(self) -> None:
        """Be found from now on."""
        # A run does without where there is no abstract namespace, or no room for a socket.
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
            # Whatever goes wrong with a visitor, or with one snapshot, is not the run's trouble.
            with visitor, contextlib.suppress(Exception):
                visitor.settimeout(_TIMEOUT_S)
                if _user_of(visitor) == os.geteuid():
                    self._watch(True)
                    listener.settimeout(_WATCHED_S)
                    self._answer(visitor, showing.slot_in(name))

    def _next_visitor(self, listener: socket.socket) -> tuple[socket.socket, Any]:
        """Whoever comes next; OSError once the listener is closed, at any moment."""
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
        """Be found no more, and end the thread."""
        if self._listener is None:
            return
        # Not only close: a forked child may have a copy of the descriptor.
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
    """The user that the kernel says is at the other end."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(credentials)[1])


def runs() -> list[Run]:
    """The runs of this user on this machine."""
    # Other users may call their sockets whatever they like: not all of it is text.
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
    """What it takes to play an episode of this slot, and the newest weights; None if the run has
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
    """All that is sent, if it is no more than it can be."""
    data = bytearray()
    while received := caller.recv(1 << 16):
        data += received
        if len(data) > most_bytes:
            raise OSError("no status is so long")
    return bytes(data)
