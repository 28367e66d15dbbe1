"""The TCP connections beneath libzmq, which closes none by itself: cuts off unwelcome peers."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable

# How many connections may be open that have not spoken as a host yet.
_MOST_STRANGERS = 256
# For one ticket, besides two for each expected host: open ones, and new ones per second.
_MOST_APPLICANTS = 64
_APPLICANTS_PER_SECOND = 2.0
_MOST_REFUSED = 10_000


def cut_off(connection: int, port: int) -> None:
    """End the connection with this descriptor, if it came in on ``port``.

    libzmq then notices, and closes the descriptor. It may be closed already, and its number reused
    for something else in this process, which must not be touched.
    """
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(connection).st_mode):
            return
        with socket.fromfd(connection, socket.AF_INET6, socket.SOCK_STREAM) as copy:
            if copy.getsockname()[1] == port:
                copy.shutdown(socket.SHUT_RDWR)


class Strangers:
    """Connections whose peer has not proved yet that it is a host; their number is limited.

    Without a limit, idle connections would use up the descriptors of the user's process.
    """

    def __init__(self) -> None:
        # In order of arrival.
        self._connections: dict[int, None] = {}

    def came(self, connection: int, more: int) -> int | None:
        """Note a new connection; returns the one that must go, if ``more`` hosts are expected."""
        self._connections[connection] = None
        if len(self._connections) <= _MOST_STRANGERS + more:
            return None
        oldest = next(iter(self._connections))
        del self._connections[oldest]
        return oldest

    def left(self, connection: int) -> None:
        """Note that it is closed, or that its peer is a host."""
        self._connections.pop(connection, None)


class Admission:
    """How many connections may speak with one key: one with a host's, several with a ticket.

    If a host's key is used twice, the first connection stays: the second has a stolen key.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # How many more applicants may come, as a share of the most, and when that was computed.
        self._left, self._since = 1.0, clock()
        # By libzmq's name of the connection, in the order of refusal.
        self._refused: dict[bytes, None] = {}

    def admits_host(self, num_open: int) -> bool:
        """Whether another connection may speak with the key of a host."""
        return num_open == 0

    def admits_applicant(self, num_open: int, more: int) -> bool:
        """Whether another connection may speak with a ticket, if ``more`` hosts are expected."""
        most, now = _MOST_APPLICANTS + 2 * more, self._clock()
        left = min(1.0, self._left + (now - self._since) * _APPLICANTS_PER_SECOND / most)
        self._left, self._since = left, now
        if num_open >= most or left * most < 1.0:
            return False
        self._left -= 1.0 / most
        return True

    def refuse(self, route: bytes) -> None:
        """Accept nothing more from this connection, whose messages may still be queued."""
        self._refused[route] = None
        if len(self._refused) > _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    def is_refused(self, route: bytes) -> bool:
        """Whether :meth:`refuse` was called for this connection."""
        return route in self._refused
