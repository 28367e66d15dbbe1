"""Workers on a Ray cluster. The only file that imports ray."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.ray_keeper import Hired, Keeper, Place
from clusterenv.launchers.ray_needs import Needs, in_one_line

try:
    import ray
    from ray.exceptions import RayError
    from ray.util.placement_group import (
        PlacementGroup,
        placement_group,
        placement_group_table,
        remove_placement_group,
    )
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ImportError("RayLauncher needs Ray: pip install 'clusterenv[ray]'") from error

# A node that does not answer must not hold up the head.
_ANSWER_S = 2.0


class _Connection:
    """This process's connection to Ray, for all its launchers.

    It ends with the last of them, unless the user's own script made it.
    """

    def __init__(self) -> None:
        self._users: set[int] = set()
        self._is_ours = False

    def open(self, user: object, address: str | None) -> None:
        if not ray.is_initialized():
            ray.init(address, log_to_driver=False, logging_level="WARNING")
            self._is_ours = True
        self._users.add(id(user))

    def close(self, user: object) -> None:
        self._users.discard(id(user))
        if self._is_ours and not self._users:
            ray.shutdown()
            self._is_ours = False


_connection = _Connection()


class RayLauncher:
    """One actor per worker, spread over the cluster by a placement group.

    Each actor keeps ``python -m clusterenv worker`` as a process beside it, with the Python and
    the packages of its ``runtime_env``. A replacement takes the place of the worker that was lost;
    if the node died, Ray finds it another. Ray itself restarts nothing.

    A script that has called ``ray.init`` keeps its connection. Otherwise the launcher connects,
    and disconnects after the run.

    Args:
        address: The cluster, as ``ray.init`` takes it: None (that of ``RAY_ADDRESS``, of this
            machine, or a new local one), "auto", "host:6379", "ray://host:10001".
        num_cpus: CPUs per worker, as Ray counts them.
        num_gpus: GPUs per worker.
        memory: Bytes per worker.
        resources: Other resources per worker, by name.
        strategy: "SPREAD", "STRICT_SPREAD" (no two workers on a node), "PACK" or "STRICT_PACK".
        runtime_env: Ray's runtime environment for the workers: pip packages, a working_dir …
        placement_timeout_s: How long Ray may take to find room for all workers.
        environment: Environment variables for the workers.
        log_dir: Where each worker's output goes on its node (``worker-0.0.log`` …). By default it
            goes to files without a name, of which errors show the end.
    """

    spawns_here = False
    shares_memory = False
    enrols = False
    watch_every_s = 1.0

    def __init__(
        self,
        address: str | None = None,
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
        memory: int = 0,
        resources: Mapping[str, float] | None = None,
        strategy: str = "SPREAD",
        runtime_env: Mapping[str, Any] | None = None,
        placement_timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
        log_dir: str | None = None,
    ) -> None:
        self._needs = Needs(
            num_cpus, num_gpus, memory, dict(resources or {}), strategy, runtime_env
        )
        self._address = address
        self._placement_timeout_s = placement_timeout_s
        self._keeper_arguments = dict(environment or {}), log_dir
        self._hired: dict[str, Hired] = {}
        self._free: list[Place] = []
        # The watcher asks while the user's thread replaces workers, or disconnects.
        self._lock = threading.Lock()

    @property
    def towards(self) -> str:
        """A node of the cluster, another than this one if there is one."""
        _connection.open(self, self._address)
        here = str(ray.util.get_node_ip_address())
        addresses = [str(node["NodeManagerAddress"]) for node in _living_nodes()]
        return next((address for address in addresses if address != here), here)

    def start(self, orders: Sequence[Order]) -> None:
        """Start these workers; do not wait for them."""
        _connection.open(self, self._address)
        with self._lock:
            if len(self._free) < len(orders):
                self._free += self._new_places(len(orders) - len(self._free))
            for order in orders:
                self._hired[order.worker] = self._hire(order, self._free[0])
                self._free.pop(0)

    def _new_places(self, count: int) -> list[Place]:
        group = placement_group([self._needs.bundle] * count, self._needs.strategy)
        placed_by = time.monotonic() + self._placement_timeout_s
        return [Place(group, bundle, placed_by) for bundle in range(count)]

    def _hire(self, order: Order, place: Place) -> Hired:
        keeper = (
            ray.remote(Keeper)
            .options(
                **self._needs.options,
                scheduling_strategy=PlacementGroupSchedulingStrategy(place.group, place.bundle),
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
            )
            .remote(*self._keeper_arguments)
        )
        # The invitation goes straight to the actor: what creates one is kept in Ray's own store.
        over = keeper.run.remote(order.worker, order.invitation)
        return Hired(keeper, place, keeper.where.remote(), over)

    def status(self) -> dict[str, Status]:
        """Each worker that was started and not yet stopped, with its node."""
        with self._lock:
            refs = [ref for hired in self._hired.values() for ref in (hired.located, hired.over)]
            ready = _wait_for(refs, 0.0)
            return {worker: self._look(hired, ready) for worker, hired in self._hired.items()}

    def _look(self, hired: Hired, ready: set[ray.ObjectRef[Any]]) -> Status:
        if hired.end is not None:
            return hired.end
        if not hired.node and hired.located in ready:
            with contextlib.suppress(RayError):
                hired.node = ray.get(hired.located, timeout=_ANSWER_S)
        if hired.over in ready:
            hired.end = self._ended(hired)
        elif not hired.node and time.monotonic() > hired.place.placed_by:
            hired.end = self._unplaced(hired.place.group)
        return hired.end or _not_ended(hired.node)

    def _ended(self, hired: Hired) -> Status:
        node = f"Ray node {hired.node}" if hired.node else "Ray"
        try:
            reason, hired.log = ray.get(hired.over, timeout=_ANSWER_S)
        except RayError as error:
            living = {node["NodeManagerHostname"] for node in _living_nodes()}
            if hired.node and hired.node not in living:
                return Status(True, f"{node} died")
            return Status(True, f"its actor on {node} died: {in_one_line(error)}")
        return Status(True, f"{reason} on {node}")

    def _unplaced(self, group: PlacementGroup) -> Status | None:
        if placement_group_table(group)["state"] == "CREATED":
            return None  # its runtime_env may take long, and the head has a limit for that
        return Status(
            True,
            f"no room on Ray within placement_timeout_s={self._placement_timeout_s:g}: "
            f"{self._shortage(group)}",
        )

    def _shortage(self, group: PlacementGroup) -> str:
        free = ray.available_resources()
        return self._needs.shortage(group.bundle_count, _living_nodes(), free)

    def logs(self, worker: str) -> str:
        """The end of what the worker printed."""
        hired = self._hired.get(worker)
        if hired is None or hired.end is not None:
            return hired.log if hired is not None else ""
        if not hired.node:
            return f"Ray has not started its actor yet: {self._shortage(hired.place.group)}"
        with contextlib.suppress(RayError):
            return str(ray.get(hired.keeper.logs.remote(worker), timeout=_ANSWER_S))
        return ""

    def stop(self, workers: Sequence[str], grace_s: float = 0.0) -> None:
        """End these workers, forget them; let them end by themselves for ``grace_s`` first."""
        with self._lock:
            leaving = {w: self._hired.pop(w) for w in workers if w in self._hired}
        _end(leaving, grace_s)
        with self._lock:
            self._free += [replace(hired.place, placed_by=math.inf) for hired in leaving.values()]
            self._give_back()

    def _give_back(self) -> None:
        """Remove the groups in which nobody works; disconnect when nobody is left."""
        used = {hired.place.group.id for hired in self._hired.values()}
        for group_id, group in {place.group.id: place.group for place in self._free}.items():
            if group_id not in used:
                remove_placement_group(group)
        self._free = [place for place in self._free if place.group.id in used]
        if not self._hired:
            _connection.close(self)


def _end(leaving: Mapping[str, Hired], grace_s: float) -> None:
    _wait_for([hired.over for hired in leaving.values()], grace_s)
    # Those that can are asked to end their workers, so that these are gone when we return.
    known = [(worker, hired) for worker, hired in leaving.items() if hired.node and not hired.end]
    _wait_for([hired.keeper.end.remote(worker) for worker, hired in known], _ANSWER_S)
    for hired in leaving.values():
        with contextlib.suppress(RayError):
            ray.kill(hired.keeper)


def _wait_for(refs: list[ray.ObjectRef[Any]], seconds: float) -> set[ray.ObjectRef[Any]]:
    """Those that are there when all are, or the time is over."""
    if not refs:
        return set()
    return set(ray.wait(refs, num_returns=len(refs), timeout=seconds, fetch_local=False)[0])


def _not_ended(node: str) -> Status:
    return Status(False, f"runs on Ray node {node}" if node else "waits for Ray to place it")


def _living_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]
