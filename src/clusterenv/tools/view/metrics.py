"""A snapshot of a run for Prometheus: the one place that needs prometheus_client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from clusterenv.status.run_status import HostSummary, RunStatus
from clusterenv.tools.view.history import point_of

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
except ImportError as error:
    raise ImportError("/metrics needs prometheus_client: pip install 'clusterenv[view]'") from error

__all__ = ["CONTENT_TYPE", "exposition"]


def _lag(host: HostSummary, now: RunStatus) -> int | None:
    return None if host.held is None else now.version - host.held


_Read = Callable[[HostSummary, RunStatus], float | None]
_TOTALS: dict[str, tuple[str, _Read]] = {
    "steps": ("Rows that came back: steps and resets of slots.", lambda host, now: host.rows),
    "host_losses": ("Lost workers, and the host itself.", lambda host, now: host.losses),
    "host_restarts": ("How often the host was replaced.", lambda host, now: host.restarts),
}
_STATES: dict[str, tuple[str, _Read]] = {
    "host_ready": ("1 if it is ready.", lambda host, now: float(host.state == "ready")),
    "host_slots": ("Slots that it has.", lambda host, now: host.slots),
    "host_lag": ("Versions behind.", _lag),
    "host_divergence": ("Of its copy from the newest.", lambda host, now: host.divergence),
    "host_threshold": ("Divergence above which it pulls.", lambda host, now: host.threshold),
}


def exposition(status: RunStatus, has_ended: bool) -> bytes:
    """The metrics as Prometheus reads them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected([*_of_run(status, has_ended), *_of_hosts(status)]))
    text: bytes = generate_latest(registry)
    return text


class _Collected:
    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        yield from self._families


def _of_run(now: RunStatus, has_ended: bool) -> Iterator[Any]:
    about = {"run": now.run, "env": now.env, "machine": now.machine}
    yield InfoMetricFamily("clusterenv_run", "The run.", value=about)
    point = point_of(None, now, 0.0)
    for name, text, value in (
        ("up", "1 while the head answers.", 0 if has_ended else 1),
        ("uptime_seconds", "Since the run began.", now.uptime_s),
        ("envs", "Slots.", now.num_envs),
        ("version", "Newest version that was published.", now.version),
        ("bytes_avoided", "Against pulling every version in full.", now.bytes_avoided),
        ("episode_return", "Mean of the last hundred.", point.mean_reward),
        ("episode_length", "Mean of the last hundred.", point.mean_length),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"clusterenv_{name}", text, value=value)
    for name, text, total in (
        (
            "episodes",
            "Episodes that have ended; those of steps while somebody looked.",
            now.episodes,
        ),
        ("sync_bytes", "Through the socket for weights, pulls, announcements.", now.sync_bytes),
        ("shared_bytes", "Of weights by shared memory.", now.shared_bytes),
    ):
        yield CounterMetricFamily(f"clusterenv_{name}", text, value=total)
    yield _counts("pulls", "Pulls by cause.", "cause", now.pulls_by_cause)
    yield _counts("socket_bytes", "By kind of message, both ways.", "kind", now.bytes_by_kind)
    yield _counts("losses", "Lost workers and hosts.", "reason", now.losses_by_reason)


def _counts(name: str, text: str, label: str, counts: dict[str, int]) -> Any:
    family = CounterMetricFamily(f"clusterenv_{name}", text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _of_hosts(now: RunStatus) -> Iterator[Any]:
    for kind, table in ((CounterMetricFamily, _TOTALS), (GaugeMetricFamily, _STATES)):
        for name, (text, read) in table.items():
            family: Any = kind(f"clusterenv_{name}", text, labels=["host"])
            for host in now.hosts:
                if (value := read(host, now)) is not None:
                    family.add_metric([_place_of(host)], value)
            yield family
    workers = GaugeMetricFamily("clusterenv_workers", "By state.", labels=["host", "state"])
    for host in now.hosts:
        for state, count in Counter(worker.state for worker in host.workers).items():
            workers.add_metric([_place_of(host), state], count)
    yield workers


def _place_of(host: HostSummary) -> str:
    """A host's place: its counts continue when a replacement takes over."""
    return host.name.rpartition(".")[0]
