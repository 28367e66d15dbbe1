"""How long until it is solved? PPO with ClusterEnv and with its peers, in turns, seed by seed.

    python benchmarks/time_to_solve.py                          # about 3 hours on 2 cores
    python benchmarks/time_to_solve.py --seeds 1-2              # a part of it, and later …
    python benchmarks/time_to_solve.py --seeds 1-5 --add        # … the rest

Solved: the mean return of 100 episodes in a row, as training meets them, is 475 (CartPole-v1) or
200 (LunarLander-v3). Each system trains as its own manual recommends, so that steps needed are the
algorithm's and its settings' doing, and steps/s the system's. See ``solvers/``. The record is
written after every run, so that one that is interrupted can be gone on with by ``--add``: what is
there of an env, a system and a seed is not run again, unless it had failed or was given up sooner.
"""

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import report
from fresh_process import THREAD_LIMITS
from goal import TARGETS, Goal
from leftovers import descendants
from records import SUFFIX, read_record
from solve_report import draw, ranges_of, sections_of
from solve_systems import GIVEN_UP, SOLVED, SPENT, SYSTEMS, Run

SOLVERS = Path(__file__).parent / "solvers"
BENCHMARK = "time_to_solve"
SILENT_S = 120.0
"""A system may be silent for so long after its limit, while it imports or learns; then it ends."""


def train(name: str, env: str, seed: int, limit_s: float) -> Run:
    """Let one system train until it is solved, out of budget, or past its limit."""
    system, run = SYSTEMS[name], Run(env, name, seed, limit_s=limit_s)
    if not system.python.exists():
        run.outcome = f"not run: no {system.venv}, see peers/install.sh"
        return run
    command = [system.python, SOLVERS / system.script, Goal(env, seed, system.options).to_json()]
    started = time.monotonic()
    with _started(command, limit_s + SILENT_S) as process:
        for line in _lines(process):
            run.curve.append((line["seconds"], line["steps"], line["mean"]))
            if line["solved"] or line["seconds"] > limit_s:
                run.outcome = SOLVED if line["solved"] else GIVEN_UP
                break
        else:
            run.outcome = _how_it_ended(process.wait())
    run.wall_s = time.monotonic() - started
    return run


def _how_it_ended(status: int) -> str:
    if status == 0:
        return SPENT
    return "failed: silent" if status == -signal.SIGKILL else f"failed with status {status}"


@contextmanager
def _started(command: Sequence[Any], deadline_s: float) -> Iterator[subprocess.Popen[str]]:
    """A solver; it is ended with all its children when nobody reads on, or after the deadline."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **dict.fromkeys(THREAD_LIMITS, "1")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    alarm = threading.Timer(deadline_s, _end, [process.pid])
    alarm.start()
    try:
        yield process
    finally:
        alarm.cancel()
        _end(process.pid)
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def _end(pid: int) -> None:
    # First the solver, which would complain of children that have ended.
    for one in (pid, *descendants(pid)):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What a solver says; libraries may print other things."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


class Book:
    """The record: all runs so far, and the machine at each time that some were made."""

    def __init__(self, folder: Path, label: str) -> None:
        self._folder, self._label = folder, label
        self.runs: list[Run] = []
        self._sittings: list[dict[str, str]] = []
        self._about = report.machine()

    def read(self) -> None:
        """Go on with the last record of such a machine, if there is one."""
        stem = "-".join(filter(None, (f"{report.cores()}cores", self._label)))
        file = self._folder / BENCHMARK / f"{stem}{SUFFIX}"
        if file.exists():
            record = read_record(file)
            self.runs = [Run(**fields) for fields in record.get("runs", [])]
            self._sittings = record.get("sittings") or [record["machine"]]

    def has(self, env: str, system: str, seed: int, limit_s: float) -> bool:
        """Whether there is a run that need not be made again with this limit."""
        key = env, system, seed
        return any(run.key == key and run.is_enough(limit_s) for run in self.runs)

    def keep(self, run: Run) -> None:
        """One more, in the place of one that failed; the record is written."""
        self.runs = [one for one in self.runs if one.key != run.key] + [run]
        if self._about not in self._sittings:
            self._sittings.append(self._about)
        # The table is shown once, at the end.
        with contextlib.redirect_stdout(io.StringIO()):
            self.publish()

    def publish(self) -> None:
        """Print and write the tables, the picture and the numbers."""
        runs = sorted(self.runs, key=_order)
        numbers = {"sittings": self._sittings, "runs": [asdict(run) for run in runs]}
        sections, figure = sections_of(runs, self._sittings), draw(runs)
        report.publish(BENCHMARK, sections, numbers, figure, self._folder, self._label)


def _order(run: Run) -> tuple[int, int, int]:
    return list(TARGETS).index(run.env), list(SYSTEMS).index(run.system), run.seed


def run_all(args: argparse.Namespace, book: Book, train: Callable[..., Run] = train) -> None:
    """What is not there yet, in turns: seed by seed, so that the hours touch all systems alike."""
    for seed in args.seeds:
        for env in args.envs:
            for name in args.systems:
                if book.has(env, name, seed, args.limit_s):
                    continue
                run = train(name, env, seed, args.limit_s)
                book.keep(run)
                told = f"{run.outcome}, {run.seconds:.0f} s, {run.steps:,} steps"
                print(f"{env} seed {seed} {name}: {told}", file=sys.stderr, flush=True)


def seeds_in(text: str) -> list[int]:
    """``5`` is how many, from 1 on; ``2-4`` and ``1,3`` are which."""
    if text.isdecimal():
        return list(range(1, int(text) + 1))
    seeds = []
    for part in text.split(","):
        first, *last = part.split("-", 1)
        if not all(one.isdecimal() for one in (first, *last)):
            raise argparse.ArgumentTypeError(f"{text!r} is neither a count nor seeds such as 1-5")
        seeds += range(int(first), int(last[0] if last else first) + 1)
    return seeds


def main() -> None:
    """Run, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--envs", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    add("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    add("--seeds", type=seeds_in, default="5", help="how many, or which: 5, 1-5, 1,3")
    add("--limit-s", type=float, default=900.0, help="a run is given up after it")
    add("--add", action="store_true", help="go on with the last record of this kind of machine")
    add("--folder", type=Path, default=report.RESULTS, help="for the results")
    add("--label", default="", help="put after the name of the record")
    args = parser.parse_args()
    book = Book(args.folder, args.label)
    if args.add:
        book.read()
        print(f"{len(book.runs)} runs are there; seeds {ranges_of(args.seeds)}", file=sys.stderr)
    run_all(args, book)
    if book.runs:
        book.publish()


if __name__ == "__main__":
    main()
