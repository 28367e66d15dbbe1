"""Turns two snapshots of a run into the table that `top` shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterenv.status.run_status import HostSummary, RunStatus, WorkerSummary
from clusterenv.tools.tables import Table, short

_HEADINGS = (
    "host", "machine", "pid", "state",
    "slots", "steps/s", "version", "lag", "divergence", "pulls", "restarts", "losses",
)  # fmt: skip
_NOTHING = "-"
_MOST_REASONS = 3


def run_table(before: RunStatus | None, now: RunStatus, at_most: int | None = None) -> Table:
    """Hosts, each with its workers below it.

    Rates are between the two snapshots, or over the whole run if there is only one. If there are
    more than ``at_most`` lines, those that most need attention are shown: not ready, or slow.
    """
    elapsed_s = max(1e-9, now.uptime_s - (before.uptime_s if before else 0.0))
    rates = rates_by_host(before, now)
    hosts = _those_to_look_at(now.hosts, rates, at_most)
    room = None if at_most is None else max(0, at_most - len(hosts))
    workers = _workers_to_look_at([worker for host in hosts for worker in host.workers], room)
    rows: list[tuple[str, ...]] = []
    for host in hosts:
        rows.append(_host_row(host, rates[host.name], now.version))
        rows += [_worker_row(worker) for worker in host.workers if worker in workers]
    total = (
        f"run {now.run}  head {now.machine} pid {now.pid}  up {_duration(now.uptime_s)}  "
        f"{counted(len(now.hosts), 'host')}  {counted(now.num_workers, 'worker')}  "
        f"{now.num_envs} envs  {short(sum(rates.values()))} steps/s  version {now.version}"
    )
    notes = _hidden(now, len(hosts), len(workers)) + _notes(before, now, elapsed_s)
    return Table(total, _HEADINGS, rows, notes, text_columns=4)


def rates_by_host(before: RunStatus | None, now: RunStatus) -> dict[str, float]:
    """Steps per second between the two snapshots, or over the whole run if there is only one."""
    if before is None:
        return {host.name: host.rows / max(1e-9, now.uptime_s) for host in now.hosts}
    elapsed_s = max(1e-9, now.uptime_s - before.uptime_s)
    # A new host has no rate yet: the rows of its place are its predecessor's.
    earlier = {host.name: host.rows for host in before.hosts}
    return {
        host.name: (host.rows - earlier.get(host.name, host.rows)) / elapsed_s for host in now.hosts
    }


def _those_to_look_at(
    hosts: Sequence[HostSummary], rates: dict[str, float], at_most: int | None
) -> Sequence[HostSummary]:
    if at_most is None or len(hosts) <= at_most:
        return hosts
    slow_first = sorted(hosts, key=lambda host: (host.state == "ready", rates[host.name]))
    return slow_first[:at_most]


def _workers_to_look_at(
    workers: Sequence[WorkerSummary], at_most: int | None
) -> Sequence[WorkerSummary]:
    if at_most is None or len(workers) <= at_most:
        return workers
    troubled_first = sorted(workers, key=lambda one: (one.state == "ready", -one.restarts))
    return troubled_first[:at_most]


def _hidden(now: RunStatus, num_hosts: int, num_workers: int) -> list[str]:
    hosts, workers = len(now.hosts) - num_hosts, now.num_workers - num_workers
    if hosts:
        return [f"… and {hosts} more hosts, ready and faster, and {workers} more workers"]
    return [f"… and {workers} more workers"] if workers else []


def _host_row(host: HostSummary, rate: float, version: int) -> tuple[str, ...]:
    held = host.held
    return (
        host.name,
        host.machine or _NOTHING,
        str(host.pid or _NOTHING),
        host.state,
        str(host.slots),
        short(rate),
        _NOTHING if held is None else str(held),
        _NOTHING if held is None else str(version - held),
        _NOTHING if host.divergence is None else f"{host.divergence:.2g}",
        str(host.pulls),
        str(host.restarts),
        str(host.losses),
    )


def _worker_row(worker: WorkerSummary) -> tuple[str, ...]:
    name, pid, slots = f"  {worker.name}", str(worker.pid or _NOTHING), str(worker.slots)
    return name, "", pid, worker.state, slots, *[""] * 5, str(worker.restarts), ""


def counted(number: int, what: str) -> str:
    """``1 host``, ``2 hosts``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _notes(before: RunStatus | None, now: RunStatus, elapsed_s: float) -> list[str]:
    total = sum(now.bytes_by_kind.values())
    rate = (total - (sum(before.bytes_by_kind.values()) if before else 0)) / elapsed_s
    largest = sorted(now.bytes_by_kind.items(), key=lambda kind: -kind[1])[:4]
    kinds = ", ".join(f"{kind} {short(size)}B" for kind, size in largest)
    causes = ", ".join(f"{cause} {n}" for cause, n in sorted(now.pulls_by_cause.items()))
    shared = f"{short(now.shared_bytes)}B by shared memory, " if now.shared_bytes else ""
    seed = [] if now.hash_seed is None else [f"hash seed of all workers: {now.hash_seed}"]
    return [
        *seed,
        *_losses(now),
        f"socket: {short(total)}B ({short(rate)}B/s): {kinds or 'nothing yet'}",
        f"sync: {shared}{short(now.sync_bytes)}B by socket, {short(now.bytes_avoided)}B avoided; "
        f"pulls: {causes or 'none'}",
    ]


def _losses(now: RunStatus) -> list[str]:
    by_count = sorted(now.losses_by_reason.items(), key=lambda reason: -reason[1])
    if not by_count:
        return []
    most = by_count[:_MOST_REASONS]
    shown = ", ".join(f"{reason:.60} ({_often(count)})" for reason, count in most)
    rest = sum(count for _, count in by_count[_MOST_REASONS:])
    return [f"lost: {shown}" + (f", other reasons ({_often(rest)})" if rest else "")]


def _often(count: int) -> str:
    """``once``, ``twice``, ``3 times``."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds) // 60 % 60, int(seconds) // 3600
    return f"{hours}:{minutes:02}:{int(seconds) % 60:02}"
