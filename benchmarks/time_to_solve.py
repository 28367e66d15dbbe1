"""How long until it is solved? PPO with ClusterEnv and with its peers, in turns, seed by seed.

python benchmarks/time_to_solve.py                          # about 3 hours on 2 cores
python benchmarks/time_to_solve.py --envs CartPole-v1 --seeds 5

Solved: the mean return of 100 episodes in a row, as training meets them, is 475 (CartPole-v1) or
200 (LunarLander-v3). Each system trains as its own manual recommends, so that steps needed are the
algorithm's and its settings' doing, and steps/s the system's. See ``solvers/``.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import report
from fresh_process import THREAD_LIMITS
from goal import TARGETS, Goal

ROOT = Path(__file__).parents[1]
SOLVERS = Path(__file__).parent / "solvers"


@dataclass(frozen=True)
class System:
    """A way to train: a script of ``solvers/``, and the Python that runs it."""

    label: str
    script: str
    options: tuple[str, ...] = ()
    venv: str = ""
    colour: str = "grey"

    @property
    def python(self) -> Path:
        """Its interpreter: this one, or that of a peer."""
        return ROOT / self.venv / "bin" / "python" if self.venv else Path(sys.executable)


SYSTEMS = {
    "clusterenv": System("ClusterEnv, `examples/ppo.py`", "with_clusterenv.py", colour="C0"),
    "ahead": System(
        "ClusterEnv, `examples/ppo.py --ahead`", "with_clusterenv.py", ("ahead",), colour="C9"
    ),
    "sb3-clusterenv": System(
        "Stable-Baselines3 on our adapter", "with_sb3.py", ("clusterenv",), colour="C4"
    ),
    "sb3": System("Stable-Baselines3, SubprocVecEnv", "with_sb3.py", colour="C1"),
    "async": System("CleanRL's way, AsyncVectorEnv", "with_async_vector_env.py", colour="C2"),
    "rllib": System("RLlib", "with_rllib.py", venv=".venv-rllib", colour="C3"),
}


@dataclass
class Run:
    """One system, one env, one seed; the last point is where it was solved or given up."""

    env: str
    system: str
    seed: int
    outcome: str = "no word"
    curve: list[tuple[float, int, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Until solved, or until it ended."""
        return self.curve[-1][0] if self.curve else float("nan")

    @property
    def steps(self) -> int:
        """Env steps until then."""
        return self.curve[-1][1] if self.curve else 0

    @property
    def is_solved(self) -> bool:
        """Whether the goal was reached."""
        return self.outcome == "solved"


def train(name: str, env: str, seed: int, limit_s: float) -> Run:
    """Let one system train until it is solved, out of budget, or past its limit."""
    system, run = SYSTEMS[name], Run(env, name, seed)
    if not system.python.exists():
        run.outcome = f"not run: no {system.venv}, see peers/install.sh"
        return run
    command = [system.python, SOLVERS / system.script, Goal(env, seed, system.options).to_json()]
    run.outcome = "budget spent"
    for line in _lines(command, limit_s):
        run.curve.append((line["seconds"], line["steps"], line["mean"]))
        if line["solved"]:
            run.outcome = "solved"
        elif line["seconds"] > limit_s:
            run.outcome = f"given up after {limit_s:.0f} s"
            break
    return run


def _lines(command: Sequence[Any], limit_s: float) -> Iterator[dict[str, Any]]:
    """What a solver prints; it is ended with all its children when nobody reads on."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **dict.fromkeys(THREAD_LIMITS, "1")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def summarise(runs: Sequence[Run]) -> list[list[str]]:
    """A row per env and system: solved, seconds, steps, steps/s, and seconds beside ours."""
    rows = []
    for env in dict.fromkeys(run.env for run in runs):
        ours = _median([run for run in runs if (run.env, run.system) == (env, "clusterenv")])
        for name, system in SYSTEMS.items():
            group = [run for run in runs if (run.env, run.system) == (env, name)]
            if group:
                rows.append([env, system.label, *_figures(group, ours)])
    return rows


def _figures(group: list[Run], ours: float) -> list[str]:
    solved = [run for run in group if run.is_solved]
    share = f"{len(solved)} of {len(group)}"
    median = _median(group)
    if not math.isfinite(median):
        return [share, "-", "-", "-", "-"]
    seconds = sorted(run.seconds for run in solved)
    steps = statistics.median(run.steps for run in solved)
    speed = statistics.median(run.steps / run.seconds for run in solved)
    return [
        share,
        f"{median:.0f} ({seconds[0]:.0f} to {seconds[-1]:.0f})",
        f"{steps:,.0f}",
        f"{speed:,.0f}",
        f"{median / ours:.2f}",
    ]


def _median(group: list[Run]) -> float:
    """The median time, where a run that did not get there counts as endless."""
    times = [run.seconds if run.is_solved else float("inf") for run in group]
    return statistics.median_low(times) if times else float("nan")


def draw(runs: Sequence[Run]) -> Any:
    """Mean return over time, a line per run, a panel per env."""
    from matplotlib import pyplot as plt

    envs = list(dict.fromkeys(run.env for run in runs))
    size = (5.5 * len(envs), 3.6)
    figure, panels = plt.subplots(1, len(envs), figsize=size, squeeze=False, layout="constrained")
    for panel, env in zip(panels[0], envs, strict=True):
        for name, system in SYSTEMS.items():
            for k, run in enumerate(one for one in runs if (one.env, one.system) == (env, name)):
                label = system.label.replace("`", "") if k == 0 else None
                seconds, _, means = zip(*run.curve, strict=True) if run.curve else ((), (), ())
                panel.plot(seconds, means, color=system.colour, label=label, linewidth=1)
                if run.is_solved:
                    panel.plot(seconds[-1], means[-1], "o", color=system.colour, markersize=4)
        panel.axhline(TARGETS[env], color="grey", linestyle=":")
        panel.set(xlabel="seconds of training", ylabel="return, last 100 episodes", title=env)
    panels[0][0].legend(fontsize="x-small")
    return figure


def run_all(args: argparse.Namespace) -> list[Run]:
    """All runs, in turns: seed by seed, so that the machine's hours touch all systems alike."""
    runs = []
    for env in args.envs:
        for seed in range(1, args.seeds + 1):
            for name in args.systems:
                run = train(name, env, seed, args.limit_s)
                runs.append(run)
                told = f"{run.outcome}, {run.seconds:.0f} s, {run.steps:,} steps"
                print(f"{env} seed {seed} {name}: {told}", file=sys.stderr, flush=True)
    return runs


def main() -> None:
    """Run, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=900.0, help="a run is given up after it")
    parser.add_argument("--label", default="", help="put after the name of the record")
    args = parser.parse_args()
    machine, started = report.machine(), time.monotonic()
    runs = run_all(args)
    header = ["env", "system", "solved", "seconds (range)", "steps", "steps/s", "x ClusterEnv"]
    sections = {
        "Machine": report.facts(machine),
        "Time to solve": f"Medians over seeds 1 to {args.seeds}, in turns, one thread for maths "
        f"each; {(time.monotonic() - started) / 60:.0f} minutes in all. A run that was not solved "
        "within its budget counts as endless.\n\n" + report.table(header, summarise(runs)),
    }
    numbers = {"machine": machine, "runs": [asdict(run) for run in runs]}
    report.publish("time_to_solve", sections, numbers, draw(runs), label=args.label)


if __name__ == "__main__":
    main()
