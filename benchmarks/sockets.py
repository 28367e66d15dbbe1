"""What a socket costs: one host and several behind encrypted tcp, beside shared memory, in turns.

    python benchmarks/sockets.py
    python benchmarks/sockets.py --workers 12 --hosts 1 4 --cells LunarLander-v3:480 CartPole-v1:64
    python benchmarks/sockets.py --cells CartPole-v1:16 --seconds 0.3 --rounds 2

The same workers and envs: of the host in the head's process, of one host process, of several. All
are there at once, and stopped while another is measured: first each in lockstep, then in rollouts,
then in streams, round after round. Results go to ``benchmarks/results/sockets``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import report
from leftovers import cpu_seconds, descendants, machine_cpu_seconds
from one_side import ChangingPolicy
from paired import Ratio, ratio_of
from sessions import FunctionSession, Turns
from systems import Result, Results, Task

FRAGMENT_STEPS = 128
MEMORY = "shared memory"
# With so many workers, and cores to spare …
WORKERS, CORES = 12, 16
# … of shared memory's speed: (env, envs) → in lockstep.
LOCKSTEP_FLOORS = {
    ("LunarLander-v3", 480): 0.85,
    ("CartPole-v1", 480): 0.60,
    ("CartPole-v1", 64): 0.35,
}
FLOOR = 0.95
"""Of rollouts and streams."""
OTHERS_TAKE = 0.05
"""Of all cores; where other processes took more, there is no verdict."""
NOTES = f"""\
- Steps per second: medians over the rounds. Of shared memory: the ratio to the measurement of
  shared memory in the same round, its median, and the 90 % interval of that by bootstrap.
- `step`: actions from the head, in lockstep. `rollout`: {FRAGMENT_STEPS} steps of each slot, an
  MLP of 64x64 by NumPy on the workers, new weights for each. `stream`: the same, new weights after
  as many steps as a rollout has.
- The head's CPU: of its whole process, all threads, per host and turn; a turn is a step of all
  slots, a rollout, or as many steps of a stream. In shared memory it includes the host, which
  looks for answers all the time while it waits. MB: arrays of a turn that come from a host.
- Others: the share of all cores that other processes took meanwhile, the most of any measurement.
  Above {OTHERS_TAKE:.0%} there is no verdict. Floors are for {WORKERS} workers on {CORES} cores.
"""


@dataclass(frozen=True)
class Place:
    """Where the hosts are: 0 of them is one in the head's process."""

    hosts: int

    def __str__(self) -> str:
        return f"tcp, {self.hosts} host{'s' * (self.hosts > 1)}" if self.hosts else MEMORY


# What is measured. Each call gives a function that does one turn, and returns how many steps that
# were and how many bytes of arrays they are.

Turn = Callable[[], tuple[int, int]]


@contextmanager
def _step(envs: Any, policy: ChangingPolicy, rows: Any) -> Iterator[Turn]:
    envs.reset(seed=0)

    def turn() -> tuple[int, int]:
        observations, rewards, terminated, truncated, _ = envs.step(next(rows))
        arrays = (observations, rewards, terminated, truncated)
        return envs.num_envs, sum(array.nbytes for array in arrays)

    yield turn


@contextmanager
def _rollout(envs: Any, policy: ChangingPolicy, rows: Any) -> Iterator[Turn]:
    envs.reset(seed=0)

    def turn() -> tuple[int, int]:
        return _size_of(envs.rollout(policy.change(), FRAGMENT_STEPS))

    yield turn


@contextmanager
def _stream(envs: Any, policy: ChangingPolicy, rows: Any) -> Iterator[Turn]:
    envs.reset(seed=0)
    envs.publish(policy.change())
    with closing(envs.stream(FRAGMENT_STEPS)) as fragments:

        def turn() -> tuple[int, int]:
            steps = num_bytes = 0
            # A fragment may be of one worker or of several.
            while steps < envs.num_envs * FRAGMENT_STEPS:
                size, more = _size_of(next(fragments))
                steps, num_bytes = steps + size, num_bytes + more
            envs.publish(policy.change())
            return steps, num_bytes

        yield turn


def _size_of(fragment: Any) -> tuple[int, int]:
    named = (fragment.outputs, fragment.distribution)
    arrays = [fragment.observations, fragment.actions, fragment.rewards, fragment.terminated]
    arrays += [fragment.truncated, *(array for group in named for array in group.values())]
    return fragment.rewards.size, sum(array.nbytes for array in arrays)


CALLS = {"step": _step, "rollout": _rollout, "stream": _stream}


def measure(task: Task, place: Place) -> Results:
    """First nothing, once the envs are there; then one call after the other, for ever."""
    import clusterenv

    launcher = clusterenv.LocalLauncher(hosts=place.hosts or None)
    # Whoever is stopped for long is not lost.
    limits = clusterenv.Limits(lease_s=3600.0, step_timeout_s=3600.0)
    envs = clusterenv.ClusterEnv(
        task.make, task.num_envs, task.workers, launcher=launcher, limits=limits
    )
    with closing(envs):
        policy, rows = ChangingPolicy(task, envs), task.action_rows()  # type: ignore[arg-type]
        yield {}
        while True:
            for call in CALLS.values():
                with call(envs, policy, rows) as turn:
                    _turns_for(turn, task.warmup_seconds)
                    yield _turns_for(turn, task.seconds) | {"hosts": max(1, place.hosts)}


def _turns_for(turn: Turn, seconds: float) -> Result:
    turns = steps = num_bytes = 0
    everybody, ours = machine_cpu_seconds(), _own_cpu_seconds()
    cpu = process_time()
    now = start = perf_counter()
    while now - start < seconds:
        made, size = turn()
        turns, steps, num_bytes = turns + 1, steps + made, num_bytes + size
        now = perf_counter()
    cpu_s, wall_s = process_time() - cpu, now - start
    others = machine_cpu_seconds() - everybody - (_own_cpu_seconds() - ours)
    return {
        "steps_per_s": steps / wall_s,
        "turn_s": wall_s / turns,
        "head_cpu_s": cpu_s / turns,
        "bytes": num_bytes / turns,
        "others": others / wall_s / report.cores(),
    }


def _own_cpu_seconds() -> float:
    """Of this process and those that it has started."""
    return process_time() + sum(cpu_seconds(pid) for pid in descendants())


# The report.


@dataclass(frozen=True)
class Cell:
    """One call in one env, at one place: all rounds."""

    env: str
    num_envs: int
    num_workers: int
    call: str
    place: str
    results: list[Result]
    in_memory: list[Result]

    def median(self, name: str) -> float:
        return statistics.median(result[name] for result in self.results)

    @property
    def ratio(self) -> Ratio:
        before, after = (
            [result["steps_per_s"] for result in many] for many in (self.in_memory, self.results)
        )
        return ratio_of(before, after)

    @property
    def floor(self) -> float | None:
        if (self.num_workers, report.cores()) != (WORKERS, CORES):
            return None
        if self.call != "step":
            return FLOOR
        return LOCKSTEP_FLOORS.get((self.env, self.num_envs))

    @property
    def verdict(self) -> str:
        if self.place == MEMORY or self.floor is None:
            return ""
        others = max(result["others"] for result in (*self.results, *self.in_memory))
        kept = "kept" if self.ratio.median >= self.floor else "missed"
        verdict = f"others took {others:.0%}" if others > OTHERS_TAKE else kept
        return f"≥ {self.floor:.2f}: {verdict}"

    def line(self) -> list[str]:
        hosts, ratio = self.median("hosts"), self.ratio
        is_memory = self.place == MEMORY
        return [
            self.call,
            self.place,
            f"{self.median('steps_per_s'):,.0f}",
            "" if is_memory else f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
            self.verdict,
            f"{1e3 * self.median('turn_s'):.3f}",
            f"{1e3 * self.median('head_cpu_s') / hosts:.3f}",
            f"{self.median('bytes') / hosts / 1e6:.3f}",
            f"{max(result['others'] for result in self.results):.0%}",
        ]


def _measure_cell(env: str, num_envs: int, options: argparse.Namespace) -> list[Cell]:
    task = Task(env, num_envs, options.workers, options.seconds, options.warmup)
    places = [str(place) for place in options.places]
    measured: dict[tuple[str, str], list[Result]] = {}
    with Turns(options.timeout) as turns:
        for place in options.places:
            turns.add(str(place), partial(FunctionSession, measure, task, place))
        for _ in range(options.rounds):
            for call in CALLS:
                found = {place: result for place, result, missing in turns.round() if not missing}
                if set(found) != set(places):
                    raise SystemExit(f"{env}, {call}: {set(places) - set(found)} failed")
                for place, result in found.items():
                    measured.setdefault((call, place), []).append(result)
                    print(env, num_envs, call, place, result, file=sys.stderr, flush=True)
    return [
        Cell(
            env, num_envs, task.workers, call, place, measured[call, place], measured[call, MEMORY]
        )
        for call in CALLS
        for place in places
    ]


HEADER = [
    "call",
    "where",
    "steps/s",
    "of shared memory",
    "floor",
    "ms per turn",
    "head's CPU, ms per host and turn",
    "MB per host and turn",
    "others",
]


def main() -> None:
    """Measure each env, then print and save its table."""
    options = _options()
    about = report.machine()
    cells = {(env, n): _measure_cell(env, n, options) for env, n in options.cells}
    sections = {
        f"{env}, {num_envs} envs, {options.workers} workers": report.table(
            HEADER, [cell.line() for cell in many]
        )
        for (env, num_envs), many in cells.items()
    }
    settings = {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "workers": options.workers,
    }
    sections["How it was measured"] = NOTES + report.facts(settings)
    sections["Machine"] = report.facts(about)
    rows = [
        {"env": one.env, "envs": one.num_envs, "call": one.call, "place": one.place} | result
        for many in cells.values()
        for one in many
        for result in one.results
    ]
    numbers = {"machine": about, "settings": settings, "rows": rows}
    report.publish("sockets", sections, numbers, None, options.results, options.label)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    # Four cores are for the head, and for the processes of the hosts.
    many = report.cores() >= CORES
    add("--workers", type=int, default=WORKERS if many else report.cores())
    add("--hosts", type=int, nargs="+", default=[1, 4] if many else [1, min(2, report.cores())])
    default = [*LOCKSTEP_FLOORS] if many else [("LunarLander-v3", 64), ("CartPole-v1", 64)]
    add("--cells", type=_cell, nargs="+", default=default, metavar="ENV:NUM_ENVS")
    add("--seconds", type=float, default=1.0, help="per measurement, after the warm-up")
    add("--warmup", type=float, default=0.2, help="seconds before each measurement")
    add("--rounds", type=int, default=15)
    add("--timeout", type=float, default=180.0, help="seconds for one measurement with its start")
    add("--results", type=Path, default=report.RESULTS, help="folder for the results")
    add("--label", default="", help="for a record beside the usual one")
    options = parser.parse_args()
    options.places = [Place(0), *map(Place, dict.fromkeys(options.hosts))]
    return options


def _cell(text: str) -> tuple[str, int]:
    env, _, num_envs = text.partition(":")
    return env, int(num_envs)


if __name__ == "__main__":
    main()
