"""Ends a host whose head is gone; its workers end with it.

A thread does this. If standard input is the head's, the kernel ends the process when it closes.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time

from clusterenv.lifelines import EXIT_HOST_GONE as EXIT_HEAD_GONE
from clusterenv.wire.addresses import why_unreachable
from clusterenv.wire.host_socket import Contact, HostSocket
from clusterenv.wire.invitation import Invitation

_TICK_S = 0.5
# A silent head counts as gone after up to four fifths of the lease.
_LEFT_OF_LEASE = 0.2
# Slurm sends it ahead of both, as the launcher asks it to; other signals have more meanings.
_MEANS = {"SIGUSR1": "SIGUSR1: a time limit or a preemption"}


class HostLifeline(threading.Thread):
    """Watches the head's end of our standard input, and the connection.

    If standard input is not the head's, only the connection tells whether the head is there.
    """

    def __init__(
        self,
        socket: HostSocket,
        invitation: Invitation,
        watch_input: bool,
        exit_without_head: int = EXIT_HEAD_GONE,
    ) -> None:
        super().__init__(name="lifeline", daemon=True)
        self._socket, self._invitation = socket, invitation
        self._watch_input, self._exit_without_head = watch_input, exit_without_head
        self._parent = os.getppid()
        self._in_contact_at = time.monotonic()
        self._told_by = ""

    @property
    def leaves_on(self) -> str:
        """The signal after which this host hands its slots over, and what it means."""
        return _MEANS.get(self._told_by, self._told_by)

    @leaves_on.setter
    def leaves_on(self, name: str) -> None:
        """Note the name of the signal that has come."""
        self._told_by = name

    @property
    def last_words(self) -> str:
        """What to say of a host that was told to leave, once the head has taken its slots."""
        return f"{self._told_by}: handed its slots over and ended"

    def run(self) -> None:
        """Tick until something ends the process."""
        while True:
            self._wait_for_end_of_input(_TICK_S)
            if self._watch_input and os.getppid() != self._parent:
                self._end("the process that started this host is gone")
            self._check_connection()

    def _wait_for_end_of_input(self, seconds: float) -> None:
        if not self._watch_input:
            time.sleep(seconds)
            return
        readable, _, _ = select.select([0], [], [], seconds)
        if readable and not os.read(0, 4096):
            self._end("the head is gone: standard input was closed")

    def _check_connection(self) -> None:
        now, lease_s = time.monotonic(), self._invitation.lease_s
        address = self._invitation.address
        without_s = now - self._in_contact_at
        match self._socket.contact():
            case Contact.THERE:
                self._in_contact_at = now
            # The head gave its place to another, as it had asked.
            case Contact.REFUSED if self.leaves_on:
                self._end(self.last_words)
            case Contact.REFUSED:
                reason = "another host has its place, or the run is over"
                self._end(f"the head at {address} refused its key: {reason}")
            # It may just have been told to close, and is doing so.
            case Contact.BROKEN if without_s > _LEFT_OF_LEASE * lease_s:
                self._end(f"the connection to the head at {address} broke")
            case Contact.NOT_YET if without_s > lease_s:
                reason = f"no head at {address} for lease_s={lease_s:g}"
                self._end(f"{reason}: {why_unreachable(address)}")

    def _end(self, reason: str) -> None:
        print(f"clusterenv host ends: {reason}", file=sys.stderr, flush=True)
        # Workers notice that their standard input closes, even if env code is stuck.
        os._exit(self._exit_without_head)
