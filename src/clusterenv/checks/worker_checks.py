"""Starts real workers through the launcher, and looks at them and at the lines to them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from clusterenv.backends.base import Backend
from clusterenv.checks.explanations import (
    compare_versions,
    explain_env,
    explain_loss,
    explain_startup,
    judge_clock,
    judge_line,
)
from clusterenv.checks.findings import Finding
from clusterenv.checks.host import HostFacts, memory_trouble
from clusterenv.checks.host_checks import check_arena, check_host, check_threads
from clusterenv.checks.probe import ProbeEnv
from clusterenv.env import ClusterEnv
from clusterenv.errors import ClusterEnvError
from clusterenv.launchers.base import Launcher
from clusterenv.limits import Limits
from clusterenv.wire.addresses import Network

_ROUND_TRIPS = 30
_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Question:
    """What the doctor was asked to look at."""

    launcher: Launcher
    network: Network
    num_workers: int
    num_envs: int
    env: str
    backend: Backend | None
    """None: no env is tried out."""
    timeout_s: float
    megabytes: float


def check_workers(asked: Question, head: HostFacts) -> Iterator[Finding]:
    """Start the workers, look at them, end them."""
    try:
        envs = _start(asked)
    except (ClusterEnvError, OSError, ValueError) as error:
        yield explain_startup(str(error))
        return
    with envs:
        try:
            yield from _look_around(envs, asked, head)
        except ClusterEnvError as error:
            yield explain_loss(asked.env, str(error))


def _start(asked: Question) -> ClusterEnv:
    return ClusterEnv(
        [ProbeEnv] * asked.num_workers,
        num_workers=asked.num_workers,
        launcher=asked.launcher,
        limits=Limits(
            startup_timeout_s=asked.timeout_s,
            step_timeout_s=asked.timeout_s,
            lease_s=2 * asked.timeout_s,
            # A worker that is lost is what the doctor wants to know of.
            max_restarts_per_minute=0,
        ),
        network=asked.network,
    )


def _look_around(envs: ClusterEnv, asked: Question, head: HostFacts) -> Iterator[Finding]:
    facts = [HostFacts(**one) for one in envs.call("host")]
    workers_on = Counter(one.host for one in facts)
    seen: set[str] = set()
    for slot, one in enumerate(facts):
        where = f"worker {slot} on {one.host}"
        yield compare_versions(head.versions, one.versions, where)
        yield from _line(envs, slot, where, int(asked.megabytes * _MEGABYTE))
        if one.host not in seen:
            seen.add(one.host)
            yield check_threads(one)
            if one.host != head.host:
                yield from check_host(one, workers_on[one.host], workers_here=True)
    if asked.backend is not None:
        yield from _env(envs, asked, facts)


def _line(envs: ClusterEnv, slot: int, where: str, num_bytes: int) -> Iterator[Finding]:
    """One worker at a time, so that the others do not share the line."""
    trips = [_trip(envs, slot, {}) for _ in range(_ROUND_TRIPS)]
    round_trip_s = median(took_s for took_s, _ in trips)
    shortest_s, skew_s = min(trips)
    yield judge_clock(skew_s, shortest_s, where)
    there_s, _ = _trip(envs, slot, {"payload": bytes(num_bytes)})
    back_s, _ = _trip(envs, slot, {"reply_bytes": num_bytes})
    down, up = (num_bytes / max(1e-6, took_s - shortest_s) for took_s in (there_s, back_s))
    yield judge_line(round_trip_s, down, up, where)


def _trip(envs: ClusterEnv, slot: int, options: dict[str, Any]) -> tuple[float, float]:
    """How long a message there and back took, and how far that worker's clock is ahead."""
    mask = np.arange(envs.num_envs) == slot
    began_s, began = time.time(), time.perf_counter()
    _, infos = envs.reset(options={**options, "reset_mask": mask})
    took_s = time.perf_counter() - began
    return took_s, float(infos["time_s"][slot]) - (began_s + took_s / 2)


def _env(envs: ClusterEnv, asked: Question, facts: list[HostFacts]) -> Iterator[Finding]:
    tried: dict[str, dict[str, Any]] = {}
    for one, result in zip(facts, envs.call("try_out", asked.backend, asked.num_envs), strict=True):
        tried.setdefault(one.host, result)
    for host, result in tried.items():
        yield explain_env(asked.env, host, result)
    works = [result for result in tried.values() if "error" not in result]
    if works and asked.launcher.shares_memory:
        size = int(works[0]["arena_bytes"])
        yield check_arena(size, asked.num_envs, memory_trouble(size))
