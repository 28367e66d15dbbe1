"""Env steps per second with a policy that acts on the workers: ClusterEnv, peers, the ceiling.

    benchmarks/peers/install.sh                                   # the peers' environments, once
    python benchmarks/rollout_throughput.py                       # everything: a quarter of an hour
    python benchmarks/rollout_throughput.py --envs LunarLander-v3 --rounds 3
    python benchmarks/rollout_throughput.py --systems ceiling rollout-shm --no-budget

Run it on an idle machine. The systems of one env take turns for a second or two each, all others
being stopped meanwhile, so that a drift of the machine hits all alike. The table shows medians over
the rounds; results go to ``benchmarks/results/rollout_throughput``.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import report
from comparison import (
    IDLE_SHARE,
    Entry,
    Measurement,
    picture,
    promises_table,
    share_of_cores,
    show_progress,
    summarise,
    throughput_table,
)
from rollout_peers import PEERS
from rollout_report import NOTES, SYSTEMS_COMPARED
from rollout_systems import SYSTEMS, Result, Results
from rollout_tasks import RolloutTask
from sessions import FunctionSession, Session, Turns

# env → network, envs per worker, steps per fragment
CELLS = {
    "CartPole-v1": ("MLP 64x64", 32, 128),
    "LunarLander-v3": ("MLP 64x64", 32, 128),
    "Pong": ("small CNN", 8, 32),
}
BUDGET = "budget"


class Run:
    """Measures, and keeps what was measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.measurements: list[Measurement] = []
        self.results: dict[tuple[str, str], list[Result]] = {}
        self.versions: dict[str, str] = {}

    def task(self, env: str) -> RolloutTask:
        """What every system does with ``env``."""
        options = self._options
        network, envs_per_worker, fragment_steps = CELLS[env]
        return RolloutTask(
            env,
            network,
            options.workers,
            options.envs_per_worker or envs_per_worker,
            options.fragment_steps or fragment_steps,
            options.seconds,
            options.warmup,
        )

    def measure(self, env: str) -> None:
        """All systems, in turns."""
        options, task = self._options, self.task(env)
        with Turns(options.timeout) as turns:
            for system in [*options.systems, *([BUDGET] if options.budget else [])]:
                turns.add(system, _start(system, task))
            for _ in range(options.rounds):
                for system, result, missing in turns.round():
                    self._keep(env, system, result, missing)

    def _keep(self, env: str, system: str, result: dict[str, Any], missing: str) -> None:
        if "versions" in result:
            self.versions[PEERS[system].venv] = result.pop("versions")
        self.results.setdefault((env, system), []).append(result)
        if system != BUDGET:
            rate, share = result.get("steps_per_s"), result.get("cpu_share")
            idle_share = share if system == "ceiling" else None
            num_envs = self.task(env).num_envs
            measured = Measurement(env, num_envs, system, rate, missing, idle_share)
            self.measurements.append(measured)
            show_progress(SYSTEMS_COMPARED, measured)

    def medians(self, env: str, system: str) -> Result:
        """Of every number that the system's repeats gave; nothing if one of them failed."""
        repeats = self.results.get((env, system), [{}])
        names = set.intersection(*(set(result) for result in repeats))
        return {name: statistics.median(result[name] for result in repeats) for name in names}


def _start(system: str, task: RolloutTask) -> Callable[[], Session] | str:
    """How to start it, or why not to."""
    if system in PEERS:
        return PEERS[system].reason_not_to_run() or partial(PEERS[system].start, task)
    return partial(FunctionSession, _profile if system == BUDGET else SYSTEMS[system], task)


def _profile(task: RolloutTask) -> Results:
    from rollout_profile import profile_rollout

    return profile_rollout(task)


def main() -> None:
    """Measure every env, then print and save the tables and the picture."""
    options = _options()
    about = report.machine()
    run = Run(options)
    for env in options.envs:
        run.measure(env)
    share = share_of_cores(run.measurements)
    about["share of the cores that the ceiling got"] = f"{share:.2f}" if share else "not measured"
    about.update(run.versions)
    settings = {name: value for name, value in vars(options).items() if name != "results"}
    entries = summarise(run.measurements)
    numbers = {
        "machine": about,
        "settings": settings,
        "tasks": [asdict(run.task(env)) for env in options.envs],
        "summary": [asdict(entry) for entry in entries],
        "repeats": {f"{env} {system}": many for (env, system), many in run.results.items()},
    }
    idle = share is not None and share >= IDLE_SHARE
    sections = _sections(run, entries, settings, about, idle)
    figure = picture(SYSTEMS_COMPARED, entries)
    report.publish("rollout_throughput", sections, numbers, figure, options.results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    systems = [*SYSTEMS, *PEERS]
    add("--envs", nargs="+", choices=list(CELLS), default=list(CELLS))
    add("--systems", nargs="+", choices=systems, default=systems)
    add("--workers", type=int, default=2)
    add("--envs-per-worker", type=int, help="default: 32, for Pong 8")
    add("--fragment-steps", type=int, help="default: 128, for Pong 32")
    add("--seconds", type=float, default=1.5, help="per measurement, after the warm-up")
    add("--warmup", type=float, default=0.3, help="seconds of rollouts before each measurement")
    add("--rounds", type=int, default=15, help="measurements of each system")
    add("--budget", action=argparse.BooleanOptionalAction, default=True, help="where time goes")
    add("--timeout", type=float, default=180.0, help="seconds for one measurement with its start")
    add("--results", type=Path, default=report.RESULTS, help="folder for the results")
    return parser.parse_args()


def _sections(
    run: Run, entries: list[Entry], settings: dict[str, Any], about: dict[str, str], idle: bool
) -> dict[str, str]:
    sections = {"Steps per second": report.table(*throughput_table(SYSTEMS_COMPARED, entries))}
    header, lines = promises_table(SYSTEMS_COMPARED, entries, idle)
    if lines and settings["workers"] == 2:
        sections["Promises"] = report.table(header, lines)
    sections |= _budgets(run, settings["envs"])
    sections["How it was measured"] = NOTES + report.facts(settings)
    sections["Machine"] = report.facts(about)
    return sections


def _budgets(run: Run, envs: list[str]) -> dict[str, str]:
    measured = {
        env: [run.medians(env, name) for name in (BUDGET, "ceiling", "recorded")] for env in envs
    }
    complete = {env: parts for env, parts in measured.items() if all(parts)}
    if not complete:
        return {}
    from rollout_profile import NOTES as BUDGET_NOTES
    from rollout_profile import budget_table

    sections = {
        f"Where the time of a rollout goes: {env}": report.table(
            *budget_table(run.task(env), *parts)
        )
        for env, parts in complete.items()
    }
    return sections | {"What the parts are": BUDGET_NOTES}


if __name__ == "__main__":
    main()
