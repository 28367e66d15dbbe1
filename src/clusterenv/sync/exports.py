"""The ledger for people: totals by name, a table and a plot."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from clusterenv.sync.ledger import Ledger
from clusterenv.sync.records import PullRecord
from clusterenv.sync.rules import EVALUATION


def summary(ledger: Ledger) -> dict[str, float]:
    """What was said about weights, by name: the numbers for a dashboard.

    ``times_fewer_bytes`` is there once bytes of weights went through a socket, the divergence
    once it was measured, and the latency once a host has loaded weights that it pulled.
    """
    pulls = sum(n for cause, n in ledger.pulls_by_cause.items() if cause != EVALUATION)
    measurements = ledger.measurements
    totals: dict[str, float] = {
        "versions": ledger.versions[-1].version if ledger.versions else 0,
        "pulls": pulls,
        "sync_bytes": ledger.sync_bytes,
        "weight_bytes": ledger.bytes_by_kind.get("Weights", 0),
        "bytes_avoided": ledger.bytes_avoided,
        "shared_bytes": ledger.shared_bytes,
    }
    if ledger.sync_bytes:
        totals["times_fewer_bytes"] = ledger.bytes_of_always_pulling / ledger.sync_bytes
    if measurements:
        last = measurements[-1]
        totals["divergence"] = last.divergence
        totals["effective_sample_size"] = last.effective_sample_size
        totals["lag"] = last.newest - last.held
    if ledger.pull_latencies_s:
        totals["median_pull_latency_s"] = float(np.median(ledger.pull_latencies_s))
    return totals


def cluster_totals(ledger: Ledger) -> dict[str, float]:
    """What was lost, and all that went through the socket, by name."""
    return {
        "losses": sum(ledger.losses_by_host.values()),
        "socket_bytes": sum(ledger.bytes_by_kind.values()),
    }


def table(ledger: Ledger) -> str:
    """Pulls by host and cause, bytes by kind, and totals, as plain text."""
    lines = [f"{'host':<14}{'pulls':>7}  causes"]
    for host, pulls in sorted(_by_host(ledger).items()):
        causes: dict[str, int] = defaultdict(int)
        for pull in pulls:
            causes[pull.cause] += 1
        told = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items()))
        lines.append(f"{host:<14}{len(pulls):>7}  {told}")
    lines += ["", f"{'message':<18}{'bytes':>14}"]
    kinds = sorted(ledger.bytes_by_kind.items(), key=lambda pair: -pair[1])
    lines += [f"{kind:<18}{size:>14,}" for kind, size in kinds]
    totals = summary(ledger)
    lines += ["", *(f"{name:<24}{value:>14,.6g}" for name, value in totals.items())]
    return "\n".join(lines)


def draw(ledger: Ledger, file: str | Path) -> None:
    """Plot pulls, versions held, divergences and bytes over time into ``file``."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(11, 7), layout="constrained")
    (top_left, top_right), (bottom_left, bottom_right) = figure.subplots(2, 2)
    for index, (host, pulls) in enumerate(sorted(_by_host(ledger).items())):
        # In lockstep the hosts' lines coincide: dashes let both show.
        style = {"where": "post", "label": host, "linestyle": ("-", "--", ":")[index % 3]}
        times = [pull.time_s for pull in pulls]
        top_left.step(times, range(1, len(pulls) + 1), **style)
        top_right.step(times, [pull.version for pull in pulls], **style)
    versions = ledger.versions
    top_right.plot(
        [v.time_s for v in versions], [v.version for v in versions], color="grey", label="newest"
    )
    _draw_divergences(ledger, bottom_left)
    _draw_bytes(ledger, bottom_right)
    top_left.set(xlabel="seconds", ylabel="pulls", title="Cumulative pulls per host")
    top_right.set(xlabel="seconds", ylabel="version", title="Version that each host holds")
    for axes in (top_left, top_right, bottom_right):
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    figure.savefig(file, dpi=110)


def _draw_divergences(ledger: Ledger, axes: Any) -> None:
    measurements = ledger.measurements
    axes.set(xlabel="seconds", ylabel="divergence", title="Divergence of copies from the newest")
    if measurements:
        axes.semilogy(
            [m.time_s for m in measurements],
            [max(m.divergence, 1e-6) for m in measurements],
            ".",
            markersize=3,
        )
        pulls = [pull for pull in ledger.pulls if pull.threshold]
        axes.plot([p.time_s for p in pulls], [p.threshold for p in pulls], color="grey")


def _draw_bytes(ledger: Ledger, axes: Any) -> None:
    pulls = [pull for pull in ledger.pulls if pull.cause != EVALUATION]
    hosts = len({pull.host for pull in pulls})
    versions = ledger.versions
    axes.plot(
        [v.time_s for v in versions],
        np.cumsum([v.bytes * hosts for v in versions]) / 1e6,
        color="grey",
        label="pulling every version in full",
    )
    axes.plot([p.time_s for p in pulls], np.cumsum([p.bytes for p in pulls]) / 1e6, label="pulled")
    axes.set(xlabel="seconds", ylabel="MB of weights", title="Bytes of weights", yscale="log")


def _by_host(ledger: Ledger) -> dict[str, list[PullRecord]]:
    pulls: dict[str, list[PullRecord]] = defaultdict(list)
    for pull in ledger.pulls:
        if pull.cause != EVALUATION:
            pulls[pull.host].append(pull)
    return pulls
