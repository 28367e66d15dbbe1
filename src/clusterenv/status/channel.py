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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from clusterenv.status.run_status import RunStatus

AVAILABLE = hasattr(socket, "SO_PEERCRED")
_PREFIX = "clusterenv"
_TIMEOUT_S = 2.0
_PEER = struct.Struct("3i")
_TRIES = 5


@dataclass(frozen=True, order=True)
class Run:
    """A run of this user on this machine, by its id and the process of its head."""

    id: str
    pid: int

    @property
    def address(self) -> str:
        """The name of its socket."""
        return f"\0{_PREFIX}/{os.geteuid()}/{self.id}/{self.pid}"


class StatusServer(threading.Thread):
    """Sends a snapshot to everyone of the same user who connects. Sleeps otherwise."""

    def __init__(self, name: str, run: Run, snapshot: Callable[[], RunStatus]) -> None:
        super().__init__(name=name, daemon=True)
        self.shown, self._snapshot = run, snapshot
        self._listener: socket.socket | None = None

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
                visitor, _ = listener.accept()
            except OSError:
                return
            # Whatever goes wrong with a visitor, or with one snapshot, is not the run's trouble.
            with visitor, contextlib.suppress(OSError):
                visitor.settimeout(_TIMEOUT_S)
                if _user_of(visitor) == os.geteuid():
                    visitor.sendall(msgspec.json.encode(self._take()))

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
    return runs_in(Path("/proc/net/unix").read_text(), os.geteuid())


def runs_in(table: str, user: int) -> list[Run]:
    """The runs of ``user`` among the sockets that the kernel lists."""
    found = set()
    for line in table.splitlines():
        words = line.rsplit(" ", 1)[-1].split("/")
        if len(words) == 4 and words[:2] == [f"@{_PREFIX}", str(user)] and words[3].isdigit():
            found.add(Run(words[2], int(words[3])))
    return sorted(found)


def fetch(run: Run) -> RunStatus | None:
    """The status of ``run`` now; None if it has ended or is not this user's."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.settimeout(_TIMEOUT_S)
            caller.connect(run.address)
            # Anybody could have taken the name.
            if _user_of(caller) != os.geteuid():
                return None
            data = b"".join(iter(lambda: caller.recv(1 << 16), b""))
        return msgspec.json.decode(data, type=RunStatus)
    except (OSError, msgspec.MsgspecError):
        return None
