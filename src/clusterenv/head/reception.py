"""Lets in hosts that come with a ticket, which is the same for all of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from clusterenv.head.enrolment import Enrolment
from clusterenv.head.watch import Watch
from clusterenv.launchers.base import Launcher, Order
from clusterenv.wire.driver import Driver
from clusterenv.wire.handshake import refusal
from clusterenv.wire.messages import Close, Enrol, Hello, Refused

_log = logging.getLogger("clusterenv")
_MOST_REFUSALS = 20


class Reception:
    """Answers applicants: gives them an open place, lets them wait, or refuses them.

    Args:
        driver: Sends the answers.
        watch: Is told which hosts must be back soon, with an invitation.
        launcher: Is told where its hosts are.
        versions: What hosts must have to be let in.
        lease_s: How long an enrolled host may take to come back.
    """

    def __init__(
        self,
        driver: Driver,
        watch: Watch,
        launcher: Launcher,
        versions: dict[str, str],
        lease_s: float,
    ) -> None:
        self._driver, self._watch, self._launcher = driver, watch, launcher
        self._versions, self._lease_s = versions, lease_s
        self._enrolment = Enrolment(self._enrol)
        self._places: dict[str, str] = {}
        self._refusals: list[str] = []

    def receive(self, applicant: str, hello: Hello) -> None:
        """Answer an applicant with a ticket. Only while driving."""
        if reason := refusal(self._versions, hello):
            self._note_refusal(f"a host on machine {hello.machine}: {reason}")
            self._driver.send(applicant, Refused(reason))
            return
        self._places[applicant] = hello.place
        self._enrolment.apply(applicant)

    def _note_refusal(self, text: str) -> None:
        if text not in self._refusals and len(self._refusals) < _MOST_REFUSALS:
            self._refusals.append(text)
            _log.warning("refused %s", text)

    def _enrol(self, applicant: str, order: Order) -> bool:
        if not self._driver.send(applicant, Enrol(order.invitation)):
            return False
        self._watch.expect_within(order.host, self._lease_s)
        self._launcher.enrolled(order.host, self._places.get(applicant, ""))
        return True

    def open(self, orders: Sequence[Order]) -> None:
        """Offer places for the hosts of these orders."""
        with self._driver:
            for order in orders:
                self._enrolment.open(order)

    def withdraw(self, host: str) -> None:
        """Withdraw the place of this host if it is still open."""
        self._enrolment.withdraw(host)

    def forget(self, applicant: str) -> None:
        """Forget an applicant whose connection broke."""
        self._enrolment.leave(applicant)
        self._places.pop(applicant, None)

    @property
    def spares(self) -> list[str]:
        """The applicants that wait for a place."""
        return self._enrolment.spares

    def dismiss_spares(self) -> None:
        """Send away the applicants that wait. Only while driving."""
        for applicant in self.spares:
            self._driver.send(applicant, Close(0.0))

    @property
    def last_refusal(self) -> str:
        """The applicant that was refused last, and why, or empty."""
        return self._refusals[-1] if self._refusals else ""

    @property
    def turned_away(self) -> str:
        """Who was refused last, and why, for error messages."""
        return f"\nThe head refused {self.last_refusal}" if self._refusals else ""
