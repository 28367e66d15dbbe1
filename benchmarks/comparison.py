"""Systems side by side: from measurements, taken in turns, to tables and a picture."""

import statistics
import sys
from dataclasses import dataclass
from typing import Any

IDLE_SHARE = 0.97


@dataclass(frozen=True)
class Systems:
    """How the systems of one benchmark are named, compared and drawn."""

    labels: dict[str, str]
    compared_with: dict[str, str]
    """System to the title of the column with the ratios to it."""
    colours: dict[str, str]
    """Of the systems that are drawn."""
    promises: list[tuple[str, int, str, str, float]]
    """(env, num_envs, system, compared with, at least): what the project promises."""


@dataclass(frozen=True)
class Measurement:
    """One system in one cell and repeat; without a rate, ``missing`` says why."""

    env: str
    num_envs: int
    system: str
    steps_per_s: float | None
    missing: str = ""
    cpu_share: float | None = None
    """CPU time over wall time of the ceiling's loops: 1 where nothing else took their cores."""


@dataclass(frozen=True)
class Entry:
    """The repeats of one system in one cell: median, lowest and highest rate."""

    env: str
    num_envs: int
    system: str
    steps_per_s: float | None
    lowest: float | None
    highest: float | None
    missing: str
    ratios: dict[str, float]


def show_progress(systems: Systems, measured: Measurement) -> None:
    """One line about one measurement, for whoever waits."""
    rate = measured.steps_per_s
    outcome = measured.missing if rate is None else f"{rate:11,.0f} steps/s"
    cell = f"{measured.env:14s} {measured.num_envs:4d}"
    print(f"{cell}  {systems.labels[measured.system]:28s} {outcome}", file=sys.stderr, flush=True)


def summarise(measurements: list[Measurement]) -> list[Entry]:
    """One entry per cell and system, with its ratios to the ceiling and to each peer."""
    grouped: dict[tuple[str, int, str], list[Measurement]] = {}
    for one in measurements:
        grouped.setdefault((one.env, one.num_envs, one.system), []).append(one)
    names = list(dict.fromkeys(one.system for one in measurements))
    return [
        _entry(group, {other: grouped.get((env, num_envs, other), []) for other in names})
        for (env, num_envs, _), group in grouped.items()
    ]


def _entry(group: list[Measurement], cell: dict[str, list[Measurement]]) -> Entry:
    first = group[0]
    rates = [one.steps_per_s for one in group if one.steps_per_s is not None]
    ratios = {other: _ratios(group, repeats) for other, repeats in cell.items()}
    return Entry(
        first.env,
        first.num_envs,
        first.system,
        steps_per_s=statistics.median(rates) if rates else None,
        lowest=min(rates, default=None),
        highest=max(rates, default=None),
        missing=next((one.missing for one in group if one.missing), ""),
        ratios={other: statistics.median(many) for other, many in ratios.items() if many},
    )


def _ratios(group: list[Measurement], others: list[Measurement]) -> list[float]:
    """Repeat by repeat: neighbours in time have seen the same machine."""
    return [
        one.steps_per_s / other.steps_per_s
        for one, other in zip(group, others, strict=False)
        if one.steps_per_s and other.steps_per_s
    ]


def share_of_cores(measurements: list[Measurement]) -> float | None:
    """How much of their cores the ceiling's loops got; None when no ceiling was measured."""
    shares = [one.cpu_share for one in measurements if one.cpu_share is not None]
    return statistics.median(shares) if shares else None


def throughput_table(systems: Systems, entries: list[Entry]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the one table; a cell's name stands on its first line only."""
    lines, previous = [], None
    for entry in entries:
        cell = (entry.env, str(entry.num_envs))
        lines.append([*(cell if cell != previous else ("", "")), *_figures(systems, entry)])
        previous = cell
    header = ["env", "envs", "system", "steps/s", "range", *systems.compared_with.values()]
    return header, lines


def _figures(systems: Systems, entry: Entry) -> list[str]:
    label = systems.labels[entry.system]
    ratios = [
        f"{entry.ratios[other]:.2f}" if other in entry.ratios else ""
        for other in systems.compared_with
    ]
    if entry.steps_per_s is None:
        return [label, entry.missing, "", *ratios]
    spread = f"{entry.lowest:,.0f} to {entry.highest:,.0f}"
    if entry.missing:
        spread += f" (some {entry.missing})"
    return [label, f"{entry.steps_per_s:,.0f}", spread, *ratios]


def promises_table(
    systems: Systems, entries: list[Entry], idle: bool
) -> tuple[list[str], list[list[str]]]:
    """What was promised beside what was measured; on a busy machine no verdict."""
    found = {(entry.env, entry.num_envs, entry.system): entry.ratios for entry in entries}
    lines, labels = [], systems.labels
    for env, num_envs, system, other, floor in systems.promises:
        ratio = found.get((env, num_envs, system), {}).get(other)
        if ratio is not None:
            verdict = ("kept" if ratio >= floor else "missed") if idle else "machine not idle"
            name = f"{env}, {num_envs} envs: {labels[system]} / {labels[other]}"
            lines.append([name, f"≥ {floor:.2f}", f"{ratio:.2f}", verdict])
    return ["ratio", "promised", "measured", ""], lines


def picture(systems: Systems, entries: list[Entry]) -> Any:
    """Each system's share of the ceiling: one panel per env, one group of bars per num_envs.

    None where there is no matplotlib: the numbers are worth more than the picture.
    """
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    envs = list(dict.fromkeys(entry.env for entry in entries))
    figure, axes = pyplot.subplots(
        1, len(envs), figsize=(4.2 * len(envs) + 1, 3.8), sharey=True, squeeze=False
    )
    for panel, env in zip(axes[0], envs, strict=True):
        _draw_panel(panel, systems, env, [entry for entry in entries if entry.env == env])
    axes[0][0].set_ylabel("share of the ceiling")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure


def _draw_panel(panel: Any, systems: Systems, env: str, entries: list[Entry]) -> None:
    sizes = sorted({entry.num_envs for entry in entries})
    drawn = [s for s in systems.colours if any(entry.system == s for entry in entries)]
    width = 0.85 / max(1, len(drawn))
    for place, system in enumerate(drawn):
        shares = {e.num_envs: e.ratios.get("ceiling", 0.0) for e in entries if e.system == system}
        offsets = [n + (place - (len(drawn) - 1) / 2) * width for n in range(len(sizes))]
        heights = [shares.get(size, 0.0) for size in sizes]
        colour, label = systems.colours[system], systems.labels[system]
        bars = panel.bar(offsets, heights, width, color=colour, label=label)
        texts = [f"{height:.2f}" if height else "" for height in heights]
        panel.bar_label(bars, texts, fontsize=6, rotation=90, padding=2)
    panel.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    ceilings = {e.num_envs: e.steps_per_s or 0 for e in entries if e.system == "ceiling"}
    labels = [f"{size} envs\n1.0 = {ceilings.get(size, 0) / 1e3:.1f} k/s" for size in sizes]
    panel.set_xticks(range(len(sizes)), labels, fontsize=8)
    panel.set_ylim(0, 1.2)
    panel.set_title(env)
    panel.spines[["top", "right"]].set_visible(False)
