"""``examples/ppo_atari.py`` for some minutes: what it learns, how fast, and where the time goes.

    python benchmarks/atari_learning.py
    python benchmarks/atari_learning.py --minutes 15 --engine ale --label ale

Takes a minute longer than ``--minutes``. Results go to ``benchmarks/results/atari_learning``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import report
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import ppo_atari

PARTS = ("env", "policy", "transfer", "learner", "other")
RETURN, SPEED = "charts/episodic_return", "charts/SPS"
MOST_POINTS = 40
NOTES = f"""\
- Return: the mean of the {ppo_atari.RECENT_EPISODES} most recent episodes while it learns, with
  actions drawn at random from the policy. Scores are the game's own; the learner clips rewards to
  -1 … 1. Pong goes from -21 to 21.
- A step is one action of one game, which lasts four frames.
- Where the time goes: of an average worker. `env`: the games. `policy`: the network acts.
  `transfer`: rows are written and read, messages and weights are under way, rollouts are put
  together. `learner`: the worker waits while the head learns. `other`: the rest, such
  as the worker's first import of torch.
"""
Rows = list[dict[str, float]]


def main() -> None:
    """Learn, and write the record."""
    options = _options()
    machine = {**report.machine(), "GPU": _gpu()}
    args = ppo_atari.Args(
        game=options.game,
        engine=options.engine,
        minutes=options.minutes,
        total_steps=options.total_steps,
        eval_episodes=options.eval_episodes,
        seed=options.seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        args.out = Path(folder)
        rows, mean = ppo_atari.run(args)
    publish(args, rows, mean, machine, options)


def _gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def publish(
    args: ppo_atari.Args,
    rows: Rows,
    mean: float,
    machine: dict[str, str],
    options: argparse.Namespace,
) -> None:
    """The curve, the numbers, and what made them."""
    sections = {
        "What came of it": report.table(("", ""), outcome(args, rows, mean)),
        "Where the time went": report.table(("part", "of the time"), time_lines(rows)),
        "The curve": report.table(("minutes", "steps", "steps/s", "return"), curve_lines(rows)),
        "Notes": NOTES,
        "Settings": report.facts(settings_of(args)),
        "Machine": report.facts(machine),
    }
    numbers = {**machine, "settings": settings_of(args), "evaluation": mean, "rows": rows}
    picture = picture_of(args, rows)
    report.publish("atari_learning", sections, numbers, picture, options.results, options.label)


def settings_of(args: ppo_atari.Args) -> dict[str, Any]:
    """All but where TensorBoard's file was."""
    return {name: value for name, value in vars(args).items() if name != "out"}


def outcome(args: ppo_atari.Args, rows: Rows, mean: float) -> list[tuple[str, str]]:
    """The run in a few lines."""
    last, returns = rows[-1], [row[RETURN] for row in rows if RETURN in row]
    return [
        ("game, engine", f"{args.game}, {args.engine}"),
        ("minutes of training", f"{last['seconds'] / 60:.1f}"),
        ("steps", f"{last['step']:,}"),
        ("steps per second, learning included", f"{last['step'] / last['seconds']:,.0f}"),
        ("return of the first episodes", f"{returns[0]:.1f}" if returns else "none ended"),
        ("return of the last episodes", f"{returns[-1]:.1f}" if returns else "none ended"),
        (f"return of {args.eval_episodes} evaluation episodes", f"{mean:.1f}"),
    ]


def time_lines(rows: Rows) -> list[tuple[str, str]]:
    """Each update counts by how long it took."""
    ends = [row["seconds"] for row in rows]
    durations = [end - before for before, end in zip([0.0, *ends], ends, strict=False)]
    whole = sum(durations)
    return [(part, f"{100 * _sum_of(rows, durations, part) / whole:.1f} %") for part in PARTS]


def _sum_of(rows: Rows, durations: list[float], part: str) -> float:
    pairs = zip(rows, durations, strict=True)
    return sum(row[f"time/{part}"] * duration for row, duration in pairs)


def curve_lines(rows: Rows) -> list[tuple[str, str, str, str]]:
    """Some of the updates, the last among them."""
    every = -(-len(rows) // MOST_POINTS)
    return [
        (
            f"{row['seconds'] / 60:.1f}",
            f"{row['step']:,}",
            f"{row[SPEED]:,.0f}",
            f"{row[RETURN]:.1f}" if RETURN in row else "",
        )
        for row in rows[::-1][::every][::-1]
    ]


def picture_of(args: ppo_atari.Args, rows: Rows) -> Any:
    """Return over minutes; None where there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    shown = [(row["seconds"] / 60, row[RETURN]) for row in rows if RETURN in row]
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*shown, strict=True) if shown else ([], []))
    axes.set(xlabel="minutes", ylabel="return", title=f"{args.game}, PPO, {args.engine}")
    axes.grid(alpha=0.3)
    return figure


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=15.0)
    add("--game", default="pong")
    add("--engine", choices=["envpool", "ale"], default="envpool")
    add("--total-steps", type=int, default=ppo_atari.Args.total_steps)
    add("--eval-episodes", type=int, default=ppo_atari.Args.eval_episodes)
    add("--seed", type=int, default=ppo_atari.Args.seed)
    add("--results", type=Path, default=report.RESULTS, help="folder for the results")
    add("--label", default="", help="for a record beside the usual one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
