"""Where the time of one lockstep goes: envs, waiting for the slower worker, the rest.

    python benchmarks/profile_step.py
    python benchmarks/profile_step.py --envs LunarLander-v3 --num-envs 256 --seconds 2

A lockstep is one ``envs.step(actions)``. Runs take turns: the bare loops of the ceiling, these in
lockstep, and ClusterEnv, with the env itself and with its null twin, an env with the same spaces
whose step does nothing. Nothing is instrumented but the head's two calls, ``step_async`` and
``step_wait``. Results go to ``benchmarks/results/profile_step``.
"""

import argparse
import statistics
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np
import report
from leftovers import cpu_seconds, descendants
from sessions import FunctionSession, Turns
from systems import Result, Results, Task, open_cluster, step_ceiling, step_ceiling_in_lockstep
from workloads import WORKLOADS

NOTES = """\
- Microseconds per lockstep, means over a second, medians over the rounds, the runs in turns.
- "envs": one turn of the ceiling's bare loop over a worker's share, resets included. "the slower
  worker": what a turn takes longer when the same loops wait for one another after each.
- "ClusterEnv itself": lockstep with null twins minus the bare loop over null twins: messages,
  wake-ups, arrays, checks, at the head and at the workers. "not explained" is what remains of the
  measured lockstep: colder caches, the head taking a worker's core. It may be negative: the
  workers of a lockstep wait for each other once, and work of the head hides in such waits.
- What was measured: wall time inside the head's two calls; CPU time of the thread that calls
  `step` (what is not CPU is blocked waiting), of all threads of the head, and of one worker;
  spinning is CPU. "of the cores": CPU over wall time of the bare loops, 1 on an idle machine.
"""


def main() -> None:
    """Measure each env, then print and save its two tables."""
    options = _options()
    about = report.machine()
    settings = {name: value for name, value in vars(options).items() if name != "results"}
    budgets = {env: _measure(env, options) for env in options.envs}
    sections = {}
    for env, numbers in budgets.items():
        title = f"{env}, {options.num_envs} envs, {options.workers} workers"
        sections[title] = report.table(*_budget_table(numbers))
        sections[f"{title}: what was measured"] = report.table(*_measured_table(numbers))
    sections["How it was measured"] = NOTES + report.facts(settings)
    sections["Machine"] = report.facts(about)
    numbers = {"machine": about, "settings": settings, "seconds": budgets}
    report.publish("profile_step", sections, numbers, None, options.results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    with_twin = [env for env, workload in WORKLOADS.items() if workload.null_twin]
    add("--envs", nargs="+", choices=with_twin, default=with_twin)
    add("--num-envs", type=int, default=64)
    add("--workers", type=int, default=2)
    add("--seconds", type=float, default=1.0)
    add("--rounds", type=int, default=15)
    add("--results", type=Path, default=report.RESULTS, help="folder for the results")
    return parser.parse_args()


def _measure(env: str, options: argparse.Namespace) -> dict[str, Result]:
    task = Task(env, options.num_envs, options.workers, options.seconds)
    null = replace(task, null=True)
    runs = {
        "bare": (step_ceiling, task),
        "bare lockstep": (step_ceiling_in_lockstep, task),
        "cluster": (profile_cluster, task),
        "null bare": (step_ceiling, null),
        "null cluster": (profile_cluster, null),
        "null one env": (profile_cluster, replace(null, num_envs=1, workers=1)),
    }
    measured: dict[str, list[Result]] = {name: [] for name in runs}
    with Turns(timeout_s=120) as turns:
        for name, (function, of_run) in runs.items():
            turns.add(name, partial(FunctionSession, function, of_run))
        for _ in range(options.rounds):
            for name, result, _missing in turns.round():
                measured[name].append(result)
                print(env, name, result, file=sys.stderr, flush=True)
    return {name: _medians(results) for name, results in measured.items()}


def _medians(results: list[Result]) -> Result:
    return {name: statistics.median(one[name] for one in results) for name in results[0]}


def profile_cluster(task: Task) -> Results:
    """Seconds per lockstep: in all, in the head's two calls, and of the head's CPU time."""
    rows = task.action_rows()
    with closing(open_cluster(task)) as envs:
        envs.reset(seed=0)
        while True:
            _timed_steps(envs, rows, task.warmup_seconds)
            yield _profile_for(task, envs, rows)


def _profile_for(task: Task, envs: Any, rows: Any) -> Result:
    before = _cpu_times()
    sent, received = _timed_steps(envs, rows, task.seconds)
    thread, process, workers = (after - b for after, b in zip(_cpu_times(), before, strict=True))
    count = len(sent)
    return {
        "lockstep_s": float((received[-1] - sent[0, 0]) / count),
        "step_async_s": float((sent[:, 1] - sent[:, 0]).mean()),
        "step_wait_s": float((received - sent[:, 1]).mean()),
        "calling_thread_cpu_s": thread / count,
        "head_cpu_s": process / count,
        "worker_cpu_s": workers / count / task.workers,
    }


def _cpu_times() -> tuple[float, float, float]:
    """CPU seconds so far of the calling thread, of the whole head, and of all workers."""
    return thread_time(), process_time(), sum(cpu_seconds(pid) for pid in descendants())


def _timed_steps(envs: Any, rows: Any, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Times before and after each ``step_async``, and after each ``step_wait``."""
    sent, received = [], [perf_counter()]
    deadline = received[0] + seconds
    while received[-1] < deadline:
        actions = next(rows)
        before = perf_counter()
        envs.step_async(actions)
        sent.append((before, perf_counter()))
        envs.step_wait()
        received.append(perf_counter())
    return np.array(sent), np.array(received[1:])


def _budget_table(numbers: dict[str, Result]) -> tuple[list[str], list[list[str]]]:
    lockstep = numbers["cluster"]["lockstep_s"]
    envs = numbers["bare"]["turn_s"]
    waiting = numbers["bare lockstep"]["turn_s"] - envs
    itself = numbers["null cluster"]["lockstep_s"] - numbers["null bare"]["turn_s"]
    parts = {
        "one lockstep": lockstep,
        "envs": envs,
        "the slower worker": waiting,
        "ClusterEnv itself": itself,
        "not explained": lockstep - envs - waiting - itself,
    }
    return _lines("part", parts, lockstep)


def _measured_table(numbers: dict[str, Result]) -> tuple[list[str], list[list[str]]]:
    cluster, null = numbers["cluster"], numbers["null cluster"]
    parts = {
        "step_async": cluster["step_async_s"],
        "step_wait": cluster["step_wait_s"],
        "CPU of the calling thread": cluster["calling_thread_cpu_s"],
        "CPU of the whole head": cluster["head_cpu_s"],
        "CPU of a worker": cluster["worker_cpu_s"],
        "null twins: lockstep": null["lockstep_s"],
        "null twins: bare loop": numbers["null bare"]["turn_s"],
        "null twins: CPU of the calling thread": null["calling_thread_cpu_s"],
        "null twins: CPU of a worker": null["worker_cpu_s"],
        "one null twin, one worker: lockstep": numbers["null one env"]["lockstep_s"],
    }
    header, lines = _lines("measured", parts, cluster["lockstep_s"])
    share = f"{100 * numbers['bare']['cpu_share']:.0f} % of the cores"
    return header, [*lines, ["bare loops: what they got", "", share]]


def _lines(title: str, parts: dict[str, float], whole: float) -> tuple[list[str], list[list[str]]]:
    lines = [[name, f"{s * 1e6:.1f}", f"{100 * s / whole:.1f} %"] for name, s in parts.items()]
    return [title, "µs", "of a lockstep"], lines


if __name__ == "__main__":
    main()
