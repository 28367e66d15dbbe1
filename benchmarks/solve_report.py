"""The runs of ``time_to_solve.py`` as a table and a picture."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import report
from goal import TARGETS
from solve_systems import SYSTEMS, Run

HEADER = [
    "env",
    "system",
    "seeds",
    "solved",
    "seconds (range)",
    "steps",
    "steps/s",
    "x ClusterEnv",
    "on seeds",
]
NOTES = """\
Medians over the seeds that each row has, one thread for maths each; {minutes:.0f} minutes in all,
on {sittings}. Seconds count from before the envs are made, after the imports. A run that was not
solved within its budget counts as endless. "x ClusterEnv" is the median time beside that of
`examples/ppo.py`, both over the seeds that both rows have: one of few seeds says little.
"""


def sections_of(runs: Sequence[Run], sittings: Sequence[dict[str, str]]) -> dict[str, str]:
    """The machine, and the table."""
    dates = dict.fromkeys(about["date"] for about in sittings)
    minutes = sum(run.wall_s for run in runs) / 60
    told = NOTES.format(minutes=minutes, sittings=", ".join(dates))
    failed = "".join(
        f"\n- not counted: {run.env}, seed {run.seed}, {SYSTEMS[run.system].label}: {run.outcome}"
        for run in runs
        if not run.is_valid
    )
    return {
        "Machine": report.facts(sittings[-1]),
        "Time to solve": f"{told}\n{report.table(HEADER, summarise(runs))}\n{failed}",
    }


def summarise(runs: Sequence[Run]) -> list[list[str]]:
    """A row per env and system: seeds, solved, seconds, steps, steps/s, and time beside ours."""
    rows = []
    for env in dict.fromkeys(run.env for run in runs):
        ours = _group(runs, env, "clusterenv")
        for name, system in SYSTEMS.items():
            if group := _group(runs, env, name):
                rows.append([env, system.label, *_figures(group), *_beside(group, ours)])
    return rows


def _group(runs: Sequence[Run], env: str, system: str) -> list[Run]:
    return [run for run in runs if (run.env, run.system) == (env, system) and run.is_valid]


def _figures(group: list[Run]) -> list[str]:
    solved = [run for run in group if run.is_solved]
    counts = [ranges_of(run.seed for run in group), f"{len(solved)} of {len(group)}"]
    median = _median(group)
    if not math.isfinite(median):
        return [*counts, "-", "-", "-"]
    seconds = sorted(run.seconds for run in solved)
    steps = statistics.median(run.steps for run in solved)
    speed = statistics.median(run.steps / run.seconds for run in solved)
    return [
        *counts,
        f"{median:.0f} ({seconds[0]:.0f} to {seconds[-1]:.0f})",
        f"{steps:,.0f}",
        f"{speed:,.0f}",
    ]


def _beside(group: list[Run], ours: list[Run]) -> list[str]:
    """The ratio of median times over the seeds that both have, and how many those are."""
    common = {run.seed for run in group} & {run.seed for run in ours}
    times = [_median([run for run in many if run.seed in common]) for many in (group, ours)]
    is_known = all(math.isfinite(one) for one in times)
    return [f"{times[0] / times[1]:.2f}" if is_known else "-", str(len(common))]


def _median(group: list[Run]) -> float:
    """The median time, where a run that did not get there counts as endless."""
    times = [run.seconds if run.is_solved else float("inf") for run in group]
    return statistics.median_low(times) if times else float("nan")


def ranges_of(seeds: Iterable[int]) -> str:
    """As they are written: ``1-3, 5``."""
    ranges: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if ranges and ranges[-1][-1] == seed - 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    return ", ".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in ranges)


def draw(runs: Sequence[Run]) -> Any:
    """Mean return over time, a line per run, a panel per env."""
    from matplotlib.figure import Figure

    envs = list(dict.fromkeys(run.env for run in runs))
    # Not by pyplot, which would keep those of all runs.
    figure = Figure(figsize=(5.5 * len(envs), 3.6), layout="constrained")
    panels = figure.subplots(1, len(envs), squeeze=False)
    for panel, env in zip(panels[0], envs, strict=True):
        for name in SYSTEMS:
            _draw_lines(panel, name, _group(runs, env, name))
        panel.axhline(TARGETS[env], color="grey", linestyle=":")
        panel.set(xlabel="seconds of training", ylabel="return, last 100 episodes", title=env)
    # Where the first run failed, nothing is drawn.
    if any(run.is_valid for run in runs if run.env == envs[0]):
        panels[0][0].legend(fontsize="x-small")
    return figure


def _draw_lines(panel: Any, name: str, group: list[Run]) -> None:
    system = SYSTEMS[name]
    for number, run in enumerate(group):
        label = system.label.replace("`", "") if number == 0 else None
        seconds, _, means = zip(*run.curve, strict=True) if run.curve else ((), (), ())
        panel.plot(seconds, means, color=system.colour, label=label, linewidth=1)
        if run.is_solved:
            panel.plot(seconds[-1], means[-1], "o", color=system.colour, markersize=4)
