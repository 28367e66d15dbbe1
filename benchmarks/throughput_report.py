"""From the measurements of ``step_throughput.py`` to its table and its picture."""

import statistics
from dataclasses import dataclass
from typing import Any

LABELS = {
    "ceiling": "ceiling: bare loops",
    "ceiling-resets": "ceiling, resets counted",
    "sync": "SyncVectorEnv",
    "async": "AsyncVectorEnv",
    "sb3": "SB3 SubprocVecEnv",
    "cluster-shm": "ClusterEnv",
    "cluster-tcp": "ClusterEnv, tcp",
    "cluster-partial": "ClusterEnv, half batches",
}
COMPARED_WITH = {
    "ceiling": "of ceiling",
    "ceiling-resets": "(resets counted)",
    "sync": "vs Sync",
    "async": "vs Async",
    "sb3": "vs SB3",
}
COLOURS = {
    "sync": "#b8c4d0",
    "async": "#8fa1b3",
    "sb3": "#66788a",
    "cluster-shm": "#d1495b",
    "cluster-tcp": "#edae49",
    "cluster-partial": "#e38b7f",
}
# (env, num_envs, system, compared with, at least): what the project promises, with 2 workers.
PROMISES = [
    ("LunarLander-v3", 64, "cluster-shm", "ceiling", 0.80),
    ("LunarLander-v3", 64, "cluster-shm", "async", 8.0),
    ("LunarLander-v3", 64, "cluster-shm", "sb3", 6.0),
    ("LunarLander-v3", 64, "cluster-partial", "cluster-shm", 1.0),
    ("CartPole-v1", 64, "cluster-shm", "ceiling", 0.60),
    ("Pong", 64, "cluster-shm", "ceiling", 0.90),
]
IDLE_SHARE = 0.97
NOTES = """\
- Steps are slot-steps: num_envs per vector step, batch_size per `recv`. All systems build the same
  envs (`gymnasium.make`, so with its checker and time limit; Pong: frame skip 4, grey 84x84, stack
  of 4) and get the same random actions, drawn beforehand. Maths is single-threaded everywhere.
- Ceiling: as many independent processes as workers, each stepping its share of the envs in a bare
  loop, without any communication; it counts `env.step` calls. Under `NEXT_STEP` autoreset, the
  default of the Gymnasium systems and of ClusterEnv, a reset takes a slot's place in a step; the
  line "resets counted" counts them for the ceiling too and is the stricter yardstick.
- SB3 resets within the step and starts by fork here (its default imports torch once per env; the
  steps are the same). AsyncVectorEnv and SB3 run one process per env, whatever the workers.
- Steps per second are medians over the repeats. Ratios are taken within each repeat, where all
  systems have seen the same machine, and then the median; vs 2.00 is twice as many steps.
- Half batches: `batch_size` = num_envs / 2 with `recv` and `send`.
- "not run": a system with one process per env is left out where its processes would need more
  than half of the memory available, or number more than max_env_processes; and any system whose
  package is not installed. "failed": it raised or took longer than the time-out.
"""


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


def summarise(measurements: list[Measurement]) -> list[Entry]:
    """One entry per cell and system, with its ratios to the ceiling and to each peer."""
    grouped: dict[tuple[str, int, str], list[Measurement]] = {}
    for one in measurements:
        grouped.setdefault((one.env, one.num_envs, one.system), []).append(one)
    return [
        _entry(group, {other: grouped.get((env, num_envs, other), []) for other in LABELS})
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


def throughput_table(entries: list[Entry]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the one table; a cell's name stands on its first line only."""
    lines, previous = [], None
    for entry in entries:
        cell = (entry.env, str(entry.num_envs))
        lines.append([*(cell if cell != previous else ("", "")), *_figures(entry)])
        previous = cell
    header = ["env", "envs", "system", "steps/s", "range", *COMPARED_WITH.values()]
    return header, lines


def _figures(entry: Entry) -> list[str]:
    ratios = [f"{entry.ratios[o]:.2f}" if o in entry.ratios else "" for o in COMPARED_WITH]
    if entry.steps_per_s is None:
        return [LABELS[entry.system], entry.missing, "", *ratios]
    spread = f"{entry.lowest:,.0f} to {entry.highest:,.0f}"
    if entry.missing:
        spread += f" (some {entry.missing})"
    return [LABELS[entry.system], f"{entry.steps_per_s:,.0f}", spread, *ratios]


def promises_table(entries: list[Entry], idle: bool) -> tuple[list[str], list[list[str]]]:
    """What was promised beside what was measured; on a busy machine no verdict."""
    found = {(entry.env, entry.num_envs, entry.system): entry.ratios for entry in entries}
    lines = []
    for env, num_envs, system, other, floor in PROMISES:
        ratio = found.get((env, num_envs, system), {}).get(other)
        if ratio is not None:
            verdict = ("kept" if ratio >= floor else "missed") if idle else "machine not idle"
            name = f"{env}, {num_envs} envs: {LABELS[system]} / {LABELS[other]}"
            lines.append([name, f"≥ {floor:.2f}", f"{ratio:.2f}", verdict])
    return ["ratio", "promised", "measured", ""], lines


def picture(entries: list[Entry]) -> Any:
    """Each system's share of the ceiling: one panel per env, one group of bars per num_envs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    envs = list(dict.fromkeys(entry.env for entry in entries))
    figure, axes = pyplot.subplots(
        1, len(envs), figsize=(4.2 * len(envs) + 1, 3.8), sharey=True, squeeze=False
    )
    for panel, env in zip(axes[0], envs, strict=True):
        _draw_panel(panel, env, [entry for entry in entries if entry.env == env])
    axes[0][0].set_ylabel("share of the ceiling")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure


def _draw_panel(panel: Any, env: str, entries: list[Entry]) -> None:
    sizes = sorted({entry.num_envs for entry in entries})
    systems = [s for s in COLOURS if any(entry.system == s for entry in entries)]
    width = 0.85 / max(1, len(systems))
    for place, system in enumerate(systems):
        shares = {e.num_envs: e.ratios.get("ceiling", 0.0) for e in entries if e.system == system}
        offsets = [n + (place - (len(systems) - 1) / 2) * width for n in range(len(sizes))]
        heights = [shares.get(size, 0.0) for size in sizes]
        bars = panel.bar(offsets, heights, width, color=COLOURS[system], label=LABELS[system])
        texts = [f"{height:.2f}" if height else "" for height in heights]
        panel.bar_label(bars, texts, fontsize=6, rotation=90, padding=2)
    panel.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    ceilings = {e.num_envs: e.steps_per_s or 0 for e in entries if e.system == "ceiling"}
    labels = [f"{size} envs\n1.0 = {ceilings.get(size, 0) / 1e3:.1f} k/s" for size in sizes]
    panel.set_xticks(range(len(sizes)), labels, fontsize=8)
    panel.set_ylim(0, 1.2)
    panel.set_title(env)
    panel.spines[["top", "right"]].set_visible(False)
