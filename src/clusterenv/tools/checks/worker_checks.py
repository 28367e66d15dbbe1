"""Starts real hosts and workers with the launcher, and examines them and their connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from clusterenv.backends.base import Backend
from clusterenv.env import ClusterEnv
from clusterenv.errors import ClusterEnvError
from clusterenv.launchers.base import Launcher, cores
from clusterenv.limits import Limits
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.tools.checks.explanations import (
    compare_versions,
    explain_env,
    explain_loss,
    explain_startup,
    judge_clock,
    judge_line,
)
from clusterenv.tools.checks.findings import Finding
from clusterenv.tools.checks.machine import MachineFacts
from clusterenv.tools.checks.machine_checks import check_machine, check_rows, check_threads
from clusterenv.tools.checks.probe import ProbeEnv
from clusterenv.wire.addresses import Network

_ROUND_TRIPS = 30
_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Question:
    """What the doctor was asked to examine."""

    launcher: Launcher
    network: Network
    num_workers: int | None
    """None if not given."""
    num_envs: int | None
    env: str
    backend: Backend | None
    """None if no env is tried out."""
    timeout_s: float
    megabytes: float

    @property
    def is_local(self) -> bool:
        """Whether the host is in the head's process, so that nothing listens."""
        return self.launcher.num_hosts == 0

    @property
    def num_probes(self) -> int:
        """How many workers to examine: all of them here, one of each host elsewhere."""
        wanted = self.num_workers or (cores() if self.is_local else self.launcher.num_hosts)
        return min(wanted, self.num_envs or wanted)

    @property
    def num_workers_here(self) -> int:
        """How many workers will run on the head's own machine."""
        launcher = self.launcher
        if self.is_local or not launcher.trusted:
            return self.num_probes if self.is_local else 0
        return self.num_workers or launcher.num_hosts * (launcher.workers_per_host or 1)

    @property
    def num_envs_per_host(self) -> int:
        """How many slots each host will have."""
        num_hosts = max(1, self.launcher.num_hosts)
        return -(-(self.num_envs or self.num_workers or self.num_probes) // num_hosts)


def check_workers(asked: Question, head: MachineFacts) -> Iterator[Finding]:
    """Start workers, examine them and the connections to their hosts, and end them."""
    try:
        envs = _start(asked)
    except (ClusterEnvError, OSError, ValueError) as error:
        yield explain_startup(error)
        return
    with envs:
        try:
            yield from _look_around(envs, asked, head)
        except ClusterEnvError as error:
            yield explain_loss(asked.env, str(error))


def _start(asked: Question) -> ClusterEnv:
    return ClusterEnv(
        [ProbeEnv] * asked.num_probes,
        num_workers=asked.num_probes,
        launcher=asked.launcher,
        limits=Limits(
            startup_timeout_s=asked.timeout_s,
            step_timeout_s=asked.timeout_s,
            lease_s=2 * asked.timeout_s,
            # The doctor wants to hear of a lost worker, not have it replaced.
            max_restarts_per_minute=0,
        ),
        network=asked.network,
    )


def _look_around(envs: ClusterEnv, asked: Question, head: MachineFacts) -> Iterator[Finding]:
    facts = {
        worker: MachineFacts(**envs.call("machine")[worker.slots.start])
        for worker in _one_per_line(envs, asked)
    }
    seen = {head.name} if asked.num_workers_here else set()
    looked_at: set[str] = set()
    for worker, one in facts.items():
        where = f"{worker.name if asked.is_local else worker.host} on {one.name}"
        yield compare_versions(head.versions, one.versions, where)
        yield from _line(envs, worker.slots.start, where, int(asked.megabytes * _MEGABYTE))
        if one.name not in looked_at:
            looked_at.add(one.name)
            yield check_threads(one)
        if one.name not in seen:
            seen.add(one.name)
            count = sum(other.name == one.name for other in facts.values())
            per_host = asked.launcher.workers_per_host or one.cores
            yield from check_machine(one, count * per_host)
    if asked.backend is not None:
        machines = {worker.slots.start: one.name for worker, one in facts.items()}
        yield from _env(envs, asked, machines)


def _one_per_line(envs: ClusterEnv, asked: Question) -> list[WorkerStatus]:
    """All workers in this process; or one per host elsewhere, since a host has one connection."""
    if asked.is_local:
        return list(envs.workers)
    return list({worker.host: worker for worker in reversed(envs.workers)}.values())[::-1]


def _line(envs: ClusterEnv, slot: int, where: str, num_bytes: int) -> Iterator[Finding]:
    """Measure one connection at a time, so that others do not share the network."""
    trips = [_trip(envs, slot, {}) for _ in range(_ROUND_TRIPS)]
    round_trip_s = median(took_s for took_s, _ in trips)
    shortest_s, skew_s = min(trips)
    yield judge_clock(skew_s, shortest_s, where)
    there_s, _ = _trip(envs, slot, {"payload": bytes(num_bytes)})
    back_s, _ = _trip(envs, slot, {"reply_bytes": num_bytes})
    down, up = (num_bytes / max(1e-6, took_s - shortest_s) for took_s in (there_s, back_s))
    yield judge_line(round_trip_s, down, up, where)


def _trip(envs: ClusterEnv, slot: int, options: dict[str, Any]) -> tuple[float, float]:
    """How long a message took there and back, and how far that worker's clock is ahead."""
    mask = np.arange(envs.num_envs) == slot
    began_s, began = time.time(), time.perf_counter()
    _, infos = envs.reset(options={**options, "reset_mask": mask})
    took_s = time.perf_counter() - began
    return took_s, float(infos["time_s"][slot]) - (began_s + took_s / 2)


def _env(envs: ClusterEnv, asked: Question, machines: dict[int, str]) -> Iterator[Finding]:
    """Try out the env on the ``machines`` of these slots."""
    num_envs = asked.num_envs_per_host
    results = envs.call("try_out", asked.backend, num_envs)
    tried = {machine: results[slot] for slot, machine in reversed(machines.items())}
    for machine, result in tried.items():
        yield explain_env(asked.env, machine, result)
        if "error" not in result:
            trouble = str(result["rows_trouble"])
            yield check_rows(int(result["rows_bytes"]), num_envs, trouble, machine)
