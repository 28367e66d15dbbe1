"""Env steps per second, without a policy: ClusterEnv, its peers, and the machine's ceiling.

    python benchmarks/step_throughput.py                                    # everything
    python benchmarks/step_throughput.py --envs LunarLander-v3 --num-envs 64 --seconds 2
    python benchmarks/step_throughput.py --systems ceiling cluster-shm --workers 2

Run it on an idle machine. The systems of one cell (env and number of envs) take short turns,
all others being stopped meanwhile, so that a drift of the machine hits all alike.
The table shows medians over the rounds; results go to ``benchmarks/results/step_throughput``.
"""

import argparse
import importlib.util
from dataclasses import asdict
from functools import partial
from pathlib import Path

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
from sessions import FunctionSession, Turns
from systems import PROCESS_PER_ENV, SYSTEMS, Result, Task
from throughput_report import NOTES, SYSTEMS_COMPARED
from workloads import WORKLOADS

NEEDED_PACKAGE = {"sb3": "stable_baselines3"} | {
    system: "clusterenv" for system in SYSTEMS if system.startswith("cluster")
}


def main() -> None:
    """Measure every cell, then print and save the table and the picture."""
    options = _options()
    about = report.machine()
    measurements = [
        measurement
        for env in options.envs
        for num_envs in options.num_envs
        for measurement in _measure_cell(env, num_envs, options)
    ]
    entries = summarise(measurements)
    share = share_of_cores(measurements)
    about["share of the cores that the ceiling got"] = f"{share:.2f}" if share else "not measured"
    settings = {
        name: value for name, value in vars(options).items() if name not in ("results", "label")
    }
    numbers = {
        "machine": about,
        "settings": settings,
        "summary": [asdict(entry) for entry in entries],
        "measurements": [asdict(measurement) for measurement in measurements],
    }
    idle = share is not None and share >= IDLE_SHARE
    sections = _sections(entries, settings, about, idle)
    figure = picture(SYSTEMS_COMPARED, entries)
    report.publish(
        "step_throughput", sections, numbers, figure, options.results, label=options.label
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--envs", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    add("--num-envs", nargs="+", type=int, default=[16, 64, 256])
    add("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    add("--workers", type=int, default=report.cores(), help="default: one per core")
    add("--seconds", type=float, default=0.3, help="per measurement, after the warm-up")
    add("--warmup", type=float, default=0.1, help="seconds stepped before each measurement")
    add("--rounds", type=int, default=30, help="measurements of each system")
    add("--max-env-processes", type=int, default=256)
    add("--timeout", type=float, default=180.0, help="seconds for one measurement with its start")
    add("--results", type=Path, default=report.RESULTS, help="folder for the results")
    add("--label", default="", help="of a record beside the usual one, such as 15workers")
    return parser.parse_args()


def _measure_cell(env: str, num_envs: int, options: argparse.Namespace) -> list[Measurement]:
    task = Task(env, num_envs, min(options.workers, num_envs), options.seconds, options.warmup)
    with Turns(options.timeout) as turns:
        for system in options.systems:
            missing = _reason_not_to_run(env, num_envs, system, options.max_env_processes)
            turns.add(system, missing or partial(FunctionSession, SYSTEMS[system], task))
        return [
            measurement
            for _ in range(options.rounds)
            for system, result, missing in turns.round()
            for measurement in _measurements(env, num_envs, system, result, missing)
        ]


def _measurements(
    env: str, num_envs: int, system: str, result: Result, missing: str
) -> list[Measurement]:
    rate = result.get("steps_per_s")
    measured = [Measurement(env, num_envs, system, rate, missing, result.get("cpu_share"))]
    if system == "ceiling" and rate is not None:
        counted = rate + result["resets_per_s"]
        measured.append(Measurement(env, num_envs, "ceiling-resets", counted))
    show_progress(SYSTEMS_COMPARED, measured[0])
    return measured


def _reason_not_to_run(env: str, num_envs: int, system: str, max_env_processes: int) -> str:
    package = NEEDED_PACKAGE.get(system)
    if package and not importlib.util.find_spec(package):
        return f"not run: no {package}"
    if system not in PROCESS_PER_ENV:
        return ""
    needed_gb = num_envs * WORKLOADS[env].process_mb / 1e3
    if num_envs > max_env_processes:
        return f"not run: {num_envs} processes"
    if needed_gb > report.memory_gb("MemAvailable") / 2:
        return f"not run: needs {needed_gb:.1f} GB"
    return ""


def _sections(
    entries: list[Entry], settings: dict[str, object], about: dict[str, str], idle: bool
) -> dict[str, str]:
    sections = {"Steps per second": report.table(*throughput_table(SYSTEMS_COMPARED, entries))}
    header, lines = promises_table(SYSTEMS_COMPARED, entries, idle)
    if lines and settings["workers"] == 2:
        sections["Promises"] = report.table(header, lines)
    sections["How it was measured"] = NOTES + report.facts(settings)
    sections["Machine"] = report.facts(about)
    return sections


if __name__ == "__main__":
    main()
