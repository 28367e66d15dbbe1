"""The TCP connections beneath libzmq, which closes none by itself: cut off who is not welcome."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable

# So many connections may be open that have not said anything as a host yet.
_MOST_STRANGERS = 256
# With one ticket, besides two for each host that is expected: open, and new ones per second.
_MOST_APPLICANTS = 64
_APPLICANTS_PER_SECOND = 2.0
_MOST_REFUSED = 10_000


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


class Admission:
    """How many connections may speak with one key: one with a host's, some with a ticket.

    Where a host's key is used twice, the first connection stays: the other has a stolen one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # How many more applicants may come now, as a share of the most, and when that was so.
        self._left, self._since = 1.0, clock()
        # As libzmq names connections; in the order in which they were refused.
        self._refused: dict[bytes, None] = {}

    def admits_host(self, num_open: int) -> bool:
        """Whether another connection may speak with the key of a host."""
        return num_open == 0

    def admits_applicant(self, num_open: int, more: int) -> bool:
        """Whether another connection may speak with a ticket, where ``more`` are expected."""
        most, now = _MOST_APPLICANTS + 2 * more, self._clock()
        left = min(1.0, self._left + (now - self._since) * _APPLICANTS_PER_SECOND / most)
        self._left, self._since = left, now
        if num_open >= most or left * most < 1.0:
            return False
        self._left -= 1.0 / most
        return True

    def refuse(self, route: bytes) -> None:
        """Take nothing more from this connection: what it has sent may still be queued."""
        self._refused[route] = None
        if len(self._refused) > _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    def is_refused(self, route: bytes) -> bool:
        """Whether :meth:`refuse` was called for this connection."""
        return route in self._refused
