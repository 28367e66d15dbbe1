"""Places for hosts that come by themselves, with a ticket instead of an invitation."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from clusterenv.launchers.base import Order

Enrol = Callable[[str, Order], bool]
"""Gives an applicant the place of an order; False if the applicant is gone."""


class Enrolment:
    """Matches vacancies with applicants; applicants without a place wait as spares.

    Called by the I/O thread (applicants) and by the user's thread (vacancies).
    """

    def __init__(self, enrol: Enrol) -> None:
        self._enrol = enrol
        self._vacancies: deque[Order] = deque()
        self._spares: deque[str] = deque()
        self._lock = threading.Lock()

    @property
    def spares(self) -> list[str]:
        """The applicants that wait for a place."""
        return list(self._spares)

    def open(self, order: Order) -> None:
        """Offer a place for the host of this order."""
        with self._lock:
            self._vacancies.append(order)
            self._match()

    def withdraw(self, host: str) -> None:
        """Withdraw the place of this host if it is still open."""
        with self._lock:
            self._vacancies = deque(o for o in self._vacancies if o.host != host)

    def apply(self, applicant: str) -> None:
        """Take in an applicant with a ticket."""
        with self._lock:
            if applicant not in self._spares:
                self._spares.append(applicant)
            self._match()

    def leave(self, applicant: str) -> None:
        """Forget an applicant whose connection broke."""
        with self._lock:
            if applicant in self._spares:
                self._spares.remove(applicant)

    def _match(self) -> None:
        while self._vacancies and self._spares:
            if self._enrol(self._spares.popleft(), self._vacancies[0]):
                self._vacancies.popleft()
