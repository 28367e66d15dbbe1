"""The TCP connections beneath libzmq, which closes none by itself: cut off who is not welcome."""

from __future__ import annotations

import contextlib
import os
import socket
import stat

# So many connections may be open that have not said anything as a host yet.
_MOST_STRANGERS = 256


def cut_off(connection: int, port: int) -> None:
    """End the connection with this descriptor, if it is one that came in on ``port``.

    libzmq then notices and closes the descriptor. It may be closed already, and its number in
    use by something else of this process, which must not be touched.
    """
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(connection).st_mode):
            return
        with socket.fromfd(connection, socket.AF_INET6, socket.SOCK_STREAM) as copy:
            if copy.getsockname()[1] == port:
                copy.shutdown(socket.SHUT_RDWR)


class Strangers:
    """Connections whose peer has not proved yet that it is a host: only so many at a time.

    Without a limit, idle connections would use up the descriptors of the user's process.
    """

    def __init__(self) -> None:
        # In the order in which they came.
        self._connections: dict[int, None] = {}

    def came(self, connection: int, more: int) -> int | None:
        """Somebody has connected; who must go for that, where ``more`` hosts are expected."""
        self._connections[connection] = None
        if len(self._connections) <= _MOST_STRANGERS + more:
            return None
        oldest = next(iter(self._connections))
        del self._connections[oldest]
        return oldest

    def left(self, connection: int) -> None:
        """It is closed, or its peer is a host."""
        self._connections.pop(connection, None)
