"""Requests about slots, split among the hosts that own them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.errors import WorkerLostError
from clusterenv.head.fleet import Fleet, Host
from clusterenv.plain.values import pack
from clusterenv.protocol.requests import AnyRequest, Step, narrow
from clusterenv.sharing import Splitter


class HostRequests:
    """Numbers requests and sends them to the hosts of their slots."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.last_number = 0
        """The number of the latest request."""
        self.incomplete = ""
        """Why some slots will never be answered for, or empty."""
        self._deals = -1
        self._splitter = Splitter(())

    def new_number(self) -> int:
        """A number that no earlier request had; WorkerLostError if slots are gone for good."""
        if self.incomplete:
            raise WorkerLostError(self.incomplete)
        self.last_number += 1
        return self.last_number

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        return all(host.is_idle for host in self._fleet.hosts)

    def split(self, slots: Sequence[int]) -> list[tuple[Host, tuple[int, ...], slice]]:
        """``slots`` (ascending) by host, and where in ``slots`` each group is."""
        hosts = self._fleet.hosts
        if self._deals != self._fleet.deals:
            self._deals = self._fleet.deals
            self._splitter = Splitter([*(h.slots.start for h in hosts), hosts[-1].slots.stop])
        return [(hosts[owner], group, part) for owner, group, part in self._splitter.split(slots)]

    def ask(self, request: AnyRequest) -> None:
        """Request work on the slots of ``request``."""
        for host, slots, part in self.split(request.slots):
            host.ask(narrow(request, request.request, slots, part))

    def step(
        self, slots: Sequence[int], actions: Array | list[Any], num_parts: int, together: bool
    ) -> None:
        """Step these slots, with actions in the same order."""
        number, hosts = self.new_number(), self._fleet.hosts
        if len(hosts) == 1 and isinstance(actions, np.ndarray):
            # With workers on this machine, they wait for every microsecond of this.
            hosts[0].ask(
                Step(number, tuple(slots), num_parts=num_parts, together=together), actions
            )
            return
        for host, group, part in self.split(slots):
            if isinstance(actions, np.ndarray):
                step = Step(number, group, num_parts=num_parts, together=together)
                host.ask(step, actions[part])
            else:
                packed = tuple(pack(action, allow_pickle=True) for action in actions[part])
                host.ask(Step(number, group, packed_actions=packed, together=together))

    def abandon(self) -> set[int]:
        """Ignore the answers to all requests so far; returns the slots that hosts never got to."""
        return {slot for host in self._fleet.hosts for slot in host.abandon()}
