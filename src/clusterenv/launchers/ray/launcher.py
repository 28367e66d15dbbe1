"""Hosts on a Ray cluster. The only file that imports ray."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterenv.counts import check_count
from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.parameters import (
    check_environment,
    names_valid_parameters,
)
from clusterenv.launchers.ray.keeper import Bundle, HostActor, RayHost
from clusterenv.launchers.ray.needs import Needs, in_one_line

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
    """One actor and one host per bundle of CPUs, each on a node of its own.

    Each actor keeps ``python -m clusterenv host`` as a process beside it, with the Python and the
    packages of its ``runtime_env``. A replacement takes the place of a lost host; if the node
    died, Ray finds it another. Ray itself restarts nothing.

    A script that has called ``ray.init`` keeps its connection. Otherwise the launcher connects,
    and disconnects after the run.

    Args:
        address: The cluster, as in ``ray.init``: None (that of ``RAY_ADDRESS``, of this machine,
            or a new local one), "auto", "host:6379", "ray://host:10001".
        nodes: How many hosts, each with a bundle of resources on one node.
        cpus_per_node: CPUs of each, as Ray counts them, and as many workers.
        gpus_per_node: GPUs of each.
        memory_per_node: Bytes for each.
        resources: Other resources of each, by name.
        spread: Whether each host needs its own node. Otherwise Ray uses as few as it can.
        runtime_env: Ray's runtime environment for the hosts: pip packages, a working_dir …
        placement_timeout_s: How long Ray may take to find room for all hosts.
        environment: Environment variables for the workers.
        log_dir: Where each host's output goes on its node (``host-0.0.log`` …). By default it goes
            to unnamed files, and errors show the end of them.
    """

    trusted = False
    enrols = False
    watch_every_s = 1.0

    @names_valid_parameters
    def __init__(
        self,
        address: str | None = None,
        *,
        nodes: int = 1,
        cpus_per_node: float = 1,
        gpus_per_node: float = 0,
        memory_per_node: int = 0,
        resources: Mapping[str, float] | None = None,
        spread: bool = True,
        runtime_env: Mapping[str, Any] | None = None,
        placement_timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
        log_dir: str | None = None,
    ) -> None:
        self.num_hosts = check_count("nodes", nodes, advice="each has one host")
        self._needs = Needs(
            cpus_per_node,
            gpus_per_node,
            memory_per_node,
            dict(resources or {}),
            spread,
            runtime_env,
        )
        # Ray counts cores but pins nobody to them, so a host must be told.
        self.workers_per_host = max(1, int(cpus_per_node))
        self._address = address
        self._placement_timeout_s = placement_timeout_s
        self._actor_arguments = check_environment(environment), log_dir
        self._hosts: dict[str, RayHost] = {}
        self._free: list[Bundle] = []
        # The watcher asks while the user's thread replaces hosts or disconnects.
        self._lock = threading.Lock()

    @property
    def towards(self) -> str:
        """A node of the cluster, if possible not this one."""
        _connection.open(self, self._address)
        here = str(ray.util.get_node_ip_address())
        addresses = [str(node["NodeManagerAddress"]) for node in _living_nodes()]
        return next((address for address in addresses if address != here), here)

    def start(self, orders: Sequence[Order]) -> None:
        """Start these hosts; do not wait for them."""
        _connection.open(self, self._address)
        with self._lock:
            if len(self._free) < len(orders):
                self._free += self._new_bundles(len(orders) - len(self._free))
            for order in orders:
                self._hosts[order.host] = self._begin(order, self._free[0])
                self._free.pop(0)

    def _new_bundles(self, count: int) -> list[Bundle]:
        group = placement_group([self._needs.bundle] * count, self._needs.strategy)
        placed_by = time.monotonic() + self._placement_timeout_s
        return [Bundle(group, number, placed_by) for number in range(count)]

    def _begin(self, order: Order, bundle: Bundle) -> RayHost:
        actor = (
            ray.remote(HostActor)
            .options(
                **self._needs.options,
                scheduling_strategy=PlacementGroupSchedulingStrategy(bundle.group, bundle.number),
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
            )
            .remote(*self._actor_arguments)
        )
        # Sent to the actor directly: arguments that create an actor are kept in Ray's own store.
        over = actor.run.remote(order.host, order.invitation)
        return RayHost(actor, bundle, actor.where.remote(), over)

    def status(self) -> dict[str, Status]:
        """The status of each host that was started and not yet stopped, with its node."""
        with self._lock:
            refs = [ref for host in self._hosts.values() for ref in (host.located, host.over)]
            ready = _wait_for(refs, 0.0)
            return {name: self._look(host, ready) for name, host in self._hosts.items()}

    def _look(self, host: RayHost, ready: set[ray.ObjectRef[Any]]) -> Status:
        if host.end is not None:
            return host.end
        if not host.node and host.located in ready:
            with contextlib.suppress(RayError):
                host.node = ray.get(host.located, timeout=_ANSWER_S)
        if host.over in ready:
            host.end = self._ended(host)
        elif not host.node and time.monotonic() > host.bundle.placed_by:
            host.end = self._unplaced(host.bundle.group)
        return host.end or _not_ended(host.node)

    def _ended(self, host: RayHost) -> Status:
        node = f"Ray node {host.node}" if host.node else "Ray"
        try:
            reason, host.log = ray.get(host.over, timeout=_ANSWER_S)
        except RayError as error:
            living = {node["NodeManagerHostname"] for node in _living_nodes()}
            if host.node and host.node not in living:
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

    def logs(self, host: str) -> str:
        """The end of what the host printed."""
        known = self._hosts.get(host)
        if known is None or known.end is not None:
            return known.log if known is not None else ""
        if not known.node:
            return f"Ray has not started its actor yet: {self._shortage(known.group)}"
        actor = known.actor
        with contextlib.suppress(RayError):
            return str(ray.get(actor.logs.remote(host), timeout=_ANSWER_S))
        return ""

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End these hosts and forget them; first give them ``grace_s`` to end by themselves."""
        with self._lock:
            leaving = {name: self._hosts.pop(name) for name in hosts if name in self._hosts}
        _end(leaving, grace_s)
        with self._lock:
            self._free += [replace(host.bundle, placed_by=math.inf) for host in leaving.values()]
            self._give_back()

    def enrolled(self, host: str, place: str) -> None:
        """No host comes with a ticket: each has an invitation of its own."""

    def _give_back(self) -> None:
        """Remove the groups without hosts, and disconnect when none is left."""
        used = {host.group.id for host in self._hosts.values()}
        for group_id, group in {bundle.group.id: bundle.group for bundle in self._free}.items():
            if group_id not in used:
                remove_placement_group(group)
        self._free = [bundle for bundle in self._free if bundle.group.id in used]
        if not self._hosts:
            _connection.close(self)


def _end(leaving: Mapping[str, RayHost], grace_s: float) -> None:
    _wait_for([host.over for host in leaving.values()], grace_s)
    # Those that can are asked to end their hosts, so that these are gone when we return.
    actors = [(name, h.actor) for name, h in leaving.items() if h.node and not h.end]
    _wait_for([actor.end.remote(name) for name, actor in actors], _ANSWER_S)
    for host in leaving.values():
        with contextlib.suppress(RayError):
            ray.kill(host.actor)


def _wait_for(refs: list[ray.ObjectRef[Any]], seconds: float) -> set[ray.ObjectRef[Any]]:
    """The refs that are ready once all are, or when time is up."""
    if not refs:
        return set()
    return set(ray.wait(refs, num_returns=len(refs), timeout=seconds, fetch_local=False)[0])


def _not_ended(node: str) -> Status:
    return Status(False, f"runs on Ray node {node}" if node else "waits for Ray to place it")


def _living_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]
