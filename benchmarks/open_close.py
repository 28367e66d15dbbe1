"""How long ClusterEnv takes to open and to close, and whether it leaves anything behind.

    python benchmarks/open_close.py                       # both parts, 200 cycles
    python benchmarks/open_close.py --cycles 20 --repeats 1
    python benchmarks/open_close.py --cycles 0            # only the times

Part one: seconds from the constructor to the end of the first ``reset``, and of ``close``, with 2
workers, beside ``AsyncVectorEnv`` with as many envs and the bare import of the env's packages, each
in a fresh process. Part two: open, reset, step, close, again and again in one process, with a line
every 20 cycles that counts what is left. Results go to ``benchmarks/results/open_close``.
"""

import argparse
import statistics
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import report
from fresh_process import in_fresh_process
from leftovers import Leftovers, count_leftovers, growth, marked_temporary_folder
from systems import Task, open_cluster
from workloads import WORKLOADS

OPENERS = ("cluster", "async")
PROMISED_START_S, PROMISED_CLOSE_S = 1.5, 0.5
Times = dict[str, float]


def main() -> None:
    """Measure both parts, then print and save the tables and the picture."""
    options = _options()
    about = report.machine()
    times = {env: _times(env, options) for env in options.envs}
    leftovers = {env: _leftovers(env, options) for env in options.envs if options.cycles}
    settings = {name: value for name, value in vars(options).items() if name != "results"}
    sections = {"Seconds to open and to close": report.table(*_times_table(times))}
    for env, counted in leftovers.items():
        sections[f"{env}: {options.cycles} cycles"] = report.table(*_leftovers_table(counted))
    sections["How it was measured"] = NOTES + report.facts(settings)
    sections["Machine"] = report.facts(about)
    numbers = {
        "machine": about,
        "settings": settings,
        "seconds": times,
        "leftovers": {env: [asdict(one) for one in many] for env, many in leftovers.items()},
    }
    report.publish("open_close", sections, numbers, _picture(times, leftovers), options.results)


NOTES = f"""\
- Start: from the constructor to the end of the first `reset`. The promise: at most
  {PROMISED_START_S} s with 2 local workers, plus the import of the env's own packages (the column
  "env imports": what a fresh Python needs beyond `import gymnasium`). Close: at most
  {PROMISED_CLOSE_S} s. Medians over the repeats, the systems in turns, each in a fresh process that
  has imported its own library before the clock starts.
- Left behind is counted after `close` returned: processes that descend from this one or carry its
  mark, open file descriptors, threads and mappings of this process, files in /dev/shm, files in
  the temporary folder. Growth is the last line minus the first (cycle 1); for memory also the
  slope over the second half.
"""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    default_envs = ["CartPole-v1", "LunarLander-v3"]
    add("--envs", nargs="+", choices=list(WORKLOADS), default=default_envs)
    add("--num-envs", type=int, default=64)
    add("--workers", type=int, default=2)
    add("--repeats", type=int, default=5)
    add("--cycles", type=int, default=200)
    add("--every", type=int, default=20, help="cycles between two lines")
    add("--results", type=Path, default=report.RESULTS, help="folder for the results")
    return parser.parse_args()


def _times(env: str, options: argparse.Namespace) -> Times:
    """Medians by name: start and close of each system, and the imports of a fresh Python."""
    task = Task(env, options.num_envs, options.workers, seconds=0)
    repeats: list[Times] = []
    for _ in range(options.repeats):
        measured = _import_times(env)
        for opener in OPENERS:
            measured |= in_fresh_process(_open_and_close, opener, task, timeout_s=120)
        repeats.append(measured)
        print(env, {name: f"{s:.2f} s" for name, s in measured.items()}, file=sys.stderr)
    return {name: statistics.median(one[name] for one in repeats) for name in repeats[0]}


IMPORTS = """\
from time import perf_counter
start = perf_counter()
import gymnasium
between = perf_counter()
import {own_module}
print(between - start, perf_counter() - between)
"""


def _import_times(env: str) -> Times:
    """Seconds that a fresh Python needs to import Gymnasium, and then the env's own packages."""
    code = IMPORTS.format(own_module=WORKLOADS[env].own_module)
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return {"gymnasium_import": float(printed[0]), "env_imports": float(printed[1])}


def _open_and_close(opener: str, task: Task) -> Times:
    if opener == "cluster":
        import clusterenv  # noqa: F401  (the library's own import is not part of the start)
    start = perf_counter()
    envs = _open(opener, task)
    envs.reset(seed=0)
    ready = perf_counter()
    envs.close()
    return {f"{opener}_start": ready - start, f"{opener}_close": perf_counter() - ready}


def _open(opener: str, task: Task) -> gym.vector.VectorEnv[Any, Any, Any]:
    if opener == "cluster":
        return open_cluster(task)
    return gym.vector.AsyncVectorEnv([task.make] * task.num_envs)


def _leftovers(env: str, options: argparse.Namespace) -> list[Leftovers]:
    task = Task(env, options.num_envs, options.workers, seconds=0)
    timeout_s = 60 + 10 * options.cycles
    return in_fresh_process(_cycle, task, options.cycles, options.every, timeout_s=timeout_s)


def _cycle(task: Task, cycles: int, every: int) -> list[Leftovers]:
    """Open, reset, step and close; count what is left now and then."""
    actions = np.zeros(task.num_envs, np.int64)
    counted = []
    with marked_temporary_folder() as folder:
        for cycle in range(1, cycles + 1):
            with closing(open_cluster(task)) as envs:
                envs.reset(seed=cycle)
                envs.step(actions)
            if cycle == 1 or cycle % every == 0 or cycle == cycles:
                counted.append(count_leftovers(cycle, folder))
                print(task.workload, counted[-1], file=sys.stderr, flush=True)
    return counted


def _times_table(times: dict[str, Times]) -> tuple[list[str], list[list[str]]]:
    header = ["env", "system", "start to first reset", "close", "env imports", "promises"]
    lines = []
    for env, of_env in times.items():
        for opener, label in zip(OPENERS, ("ClusterEnv", "AsyncVectorEnv"), strict=True):
            start, close = of_env[f"{opener}_start"], of_env[f"{opener}_close"]
            imports = of_env["env_imports"]
            kept = start <= PROMISED_START_S + imports and close <= PROMISED_CLOSE_S
            verdict = ("kept" if kept else "missed") if opener == "cluster" else ""
            lines.append([env, label, *(f"{s:.2f} s" for s in (start, close, imports)), verdict])
        bare = f"{of_env['gymnasium_import']:.2f} s"
        lines.append([env, "(bare import of gymnasium)", bare, "", "", ""])
    return header, lines


def _leftovers_table(counted: list[Leftovers]) -> tuple[list[str], list[list[str]]]:
    names = list(asdict(counted[0]))
    lines = [[str(value) for value in asdict(one).values()] for one in counted]
    return names, [*lines, growth(counted)]


def _picture(times: dict[str, Times], leftovers: dict[str, list[Leftovers]]) -> Any:
    """Left: start and close, beside the imports. Right: memory over the cycles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (bars, lines) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    names = ["cluster_start", "async_start", "cluster_close", "async_close", "env_imports"]
    for place, (env, of_env) in enumerate(times.items()):
        offsets = np.arange(len(names)) + 0.38 * (place - (len(times) - 1) / 2)
        drawn = bars.bar(offsets, [of_env[name] for name in names], 0.36, label=env)
        bars.bar_label(drawn, fmt="%.2f", fontsize=7)
    bars.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names], fontsize=8)
    bars.set_ylabel("seconds")
    for env, counted in leftovers.items():
        lines.plot([one.cycle for one in counted], [one.rss_mb for one in counted], label=env)
    lines.set_xlabel("open/close cycles")
    lines.set_ylabel("memory of the head, MB")
    lines.set_ylim(bottom=0)
    for panel, corner in ((bars, "upper right"), (lines, "lower right")):
        if panel.has_data():
            panel.legend(frameon=False, fontsize=8, loc=corner)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    main()
