"""What ``before_and_after.py`` measured: tables, and the files in ``results``."""

import gzip
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import report
from one_side import CALLS, WORKERS, task_for
from paired import Ratio, ratio_of

FLOOR, ENOUGH_ROUNDS, ENOUGH_STARTS = 0.97, 15, 5
# Of all cores. Where others take more, there is no verdict.
OTHERS_TAKE = 0.05
START = "start"
LABELS = {"step": "step", "half": "half batches", "rollout": "rollout", "stream": "stream"}
BEGINNINGS = {"start_s": "the constructor", "import_and_start_s": "`import clusterenv`"}
Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Pair:
    """The same on both sides, one right after the other."""

    env: str
    call: str
    round: int
    first: str
    """The side that was measured first."""
    before: dict[str, float]
    after: dict[str, float]

    def __str__(self) -> str:
        name, digits = ("start_s", 2) if self.call == START else ("steps_per_s", 0)
        before, after = self.before[name], self.after[name]
        numbers = f"{before:11,.{digits}f} {after:11,.{digits}f}   x {after / before:.3f}"
        return f"{self.round + 1:3d}  {self.env:14s} {self.call:8s} {numbers}"


@dataclass(frozen=True)
class Cell:
    """All pairs of one env and call; without any, ``missing`` says why."""

    env: str
    call: str
    pairs: list[Pair]
    missing: str

    def compared(self, name: str) -> tuple[float, float, Ratio]:
        """The medians of both sides, and their ratio."""
        before = [pair.before[name] for pair in self.pairs]
        after = [pair.after[name] for pair in self.pairs]
        return statistics.median(before), statistics.median(after), ratio_of(before, after)

    @property
    def others(self) -> float:
        """The share of all cores that other processes took meanwhile; 0 where nobody knows."""
        both = [
            max(pair.before.get("others", 0), pair.after.get("others", 0)) for pair in self.pairs
        ]
        return statistics.median(both)

    def verdict(self, kept: bool, enough: int) -> str:
        """In a word, if there are pairs enough and the machine was idle."""
        if len(self.pairs) < enough:
            return f"{len(self.pairs)} of {enough} pairs"
        if self.others > OTHERS_TAKE:
            return "machine not idle"
        return "kept" if kept else "missed"


def publish(
    pairs: list[Pair],
    missing: dict[tuple[str, str], str],
    settings: dict[str, Any],
    about: dict[str, str],
    results: Path,
) -> None:
    """Print the tables, and save them with every pair."""
    cells = [
        Cell(env, call, [p for p in pairs if (p.env, p.call) == (env, call)], why)
        for env in settings["envs"]
        for call in settings["only"]
        for why in [missing.get((env, call), "")]
    ]
    sections = dict(_tables(cells))
    sections["How it was measured"] = NOTES + report.facts(settings)
    sections["Machine"] = report.facts(about)
    text = "# before_and_after\n\n" + "\n\n".join(f"## {t}\n\n{b}" for t, b in sections.items())
    lines = [{"machine": about, "settings": settings}, *({"pairs": asdict(p)} for p in pairs)]
    raw = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    folder, stem = results / "before_and_after", f"{report.cores()}cores"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.md").write_text(text + "\n")
    (folder / f"{stem}.jsonl.gz").write_bytes(gzip.compress(raw.encode(), mtime=0))
    print(text)
    print(f"\nsaved in results/before_and_after: {stem}")


def _tables(cells: list[Cell]) -> Iterator[tuple[str, str]]:
    if calls := [cell for cell in cells if cell.call in CALLS]:
        yield "Steps per second", report.table(*_throughput_table(calls))
    if starts := [cell for cell in cells if cell.call == START]:
        yield "Seconds to the first reset", report.table(*_start_table(starts))


def _throughput_table(cells: list[Cell]) -> Table:
    header = ["env", "envs", "call", "before", "after", "after / before", "90 % interval"]
    lines = []
    for cell in cells:
        line = [cell.env, str(task_for(cell.env).num_envs), LABELS[cell.call]]
        if cell.missing or not cell.pairs:
            lines.append([*line, cell.missing or "not run", "", "", "", "", ""])
            continue
        before, after, ratio = cell.compared("steps_per_s")
        verdict = cell.verdict(ratio.median >= FLOOR, ENOUGH_ROUNDS)
        lines.append(
            [
                *line,
                f"{before:,.0f}",
                f"{after:,.0f}",
                *_figures(ratio),
                f"{cell.others:.0%}",
                verdict,
            ]
        )
    return [*header, "others", f"at least {FLOOR}"], lines


def _start_table(cells: list[Cell]) -> Table:
    header = ["env", "from", "before", "after", "after / before", "90 % interval", "not later"]
    lines = []
    for cell in cells:
        for name, beginning in BEGINNINGS.items():
            if cell.missing or not cell.pairs:
                lines.append([cell.env, beginning, cell.missing or "not run", "", "", "", ""])
                continue
            before, after, ratio = cell.compared(name)
            verdict = cell.verdict(ratio.low <= 1, ENOUGH_STARTS)
            times = [f"{before:.3f} s", f"{after:.3f} s"]
            lines.append([cell.env, beginning, *times, *_figures(ratio), verdict])
    return header, lines


def _figures(ratio: Ratio) -> list[str]:
    return [f"{ratio.median:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}"]


NOTES = f"""\
- Each side is a process of its own with the package of its commit; the script, Python, NumPy,
  Gymnasium and the envs are the same. Envs stay open, {WORKERS} workers each. After every few
  rounds (`fresh_every`) both sides start anew: one process may be luckier with its memory than
  another. While one side runs one call, everybody else sleeps: how much of a core the waiting side
  took is under Machine.
- Steps per second: the median over the rounds. Ratios are taken within each round, the sides one
  right after the other with the same seeds, the first one in turns; then the median, with the 90 %
  interval of that median (bootstrap over the rounds). The floor: a median of at least {FLOOR} over
  {ENOUGH_ROUNDS} rounds or more.
- others: the share of all cores that other processes took during the calls (the larger of both
  sides, the median over the rounds). Above {OTHERS_TAKE:.0%} there is no verdict.
- step, half batches: random actions, drawn beforehand; steps are slot-steps. Half batches: `recv`
  and `send` with `batch_size=num_envs // 2`.
- rollout, stream: fragments of 128 steps (Pong: 32), new weights before each rollout, in a stream
  after as many steps. The policy acts by NumPy: an MLP of 64x64 with a linear critic; for Pong both
  are linear, on every 12th pixel of each axis.
- Seconds to the first reset, in fresh processes, in turns: "missed" if the whole interval is above
  1. Gymnasium and NumPy are imported before the clock starts.
"""
