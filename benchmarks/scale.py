"""How far one head scales: what each host, fragment, step and pull costs it.

    python benchmarks/scale.py
    python benchmarks/scale.py --hosts 640                       10,240 workers
    python benchmarks/scale.py --hosts 64 --slots 16 --label 16slots    larger fragments
    python benchmarks/scale.py --hosts 1 4 --seconds 1           a quick look
    python benchmarks/scale.py --hosts 64 --profile stream       where the head's time goes
    python benchmarks/scale.py --hosts 2 --real                  real hosts instead

Hosts are light (see ``light_host.py``), many per process, and speak the real protocol over
encrypted tcp; only the head is measured. Results go to ``benchmarks/results/scale``.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time, thread_time

import numpy as np
import report
from crowd import CrowdLauncher, allow_many_descriptors
from tally import CountedPolicy, Rows, Tally

import clusterenv

NUM_STEPS = 32
NUM_WEIGHTS = 16_384
NOTES = """\
- {workers} workers per host, {slots} slot(s) each; observations of 8 floats; fragments of
  {steps} steps; weights of {weights} kB, raw. Everything travels over CURVE-encrypted tcp.
- CPU: of the whole head process (user's thread, I/O thread, libzmq's thread with the encryption),
  from `process_time`, without what checking the rows takes. Per pull: what a rollout with a new
  version costs more than one without, divided by the hosts.
- `rollout`, and `stream, joined`: all workers of a host finish together. `stream, apart`: no two of
  them do, so that only fragments which wait for the head are joined.
- Join: from the constructor to the end of the first reset, with the start of the processes.
- Rows: every row of every rollout, fragment and step is checked: who, how many steps, which
  action, which version.
- {processes} processes hold the hosts.
- Before: commit 1b1e1ce on 16 cores, 256 and more workers with 2 slots each, otherwise the same.
"""


# Column → the number, and how it is written.
Columns = dict[str, tuple[str, str]]
COSTS: Columns = {
    "hosts": ("hosts", "{:,.0f}"),
    "workers": ("workers", "{:,.0f}"),
    "ms per host: joining": ("join_cpu_ms_per_host", "{:.1f}"),
    "µs per host: a `rollout`'s fragment": ("rollout_cpu_us_per_host", "{:.0f}"),
    "kB of it": ("kb_per_message", "{:.0f}"),
    "a `stream`'s, joined": ("stream_joined_cpu_us_per_message", "{:.0f}"),
    "a pull": ("cpu_us_per_pull", "{:.0f}"),
    "a `step`": ("step_cpu_us_per_host", "{:.0f}"),
    "µs per worker's fragment: `rollout`": ("rollout_cpu_us_per_fragment", "{:.1f}"),
    "`stream`, joined": ("stream_joined_cpu_us_per_fragment", "{:.1f}"),
    "`stream`, apart": ("stream_apart_cpu_us_per_fragment", "{:.1f}"),
    "MB of the head": ("head_mb", "{:.0f}"),
    "MB per host": ("mb_per_host", "{:.2f}"),
    "descriptors per host": ("descriptors_per_host", "{:.1f}"),
}
SPEEDS: Columns = {
    "hosts": ("hosts", "{:,.0f}"),
    "workers": ("workers", "{:,.0f}"),
    "s to join": ("join_s", "{:.1f}"),
    "ms per rollout": ("rollout_ms", "{:.1f}"),
    "with a new version": ("rollout_with_pulls_ms", "{:.1f}"),
    "ms per `step`": ("lockstep_ms", "{:.2f}"),
    "workers' fragments/s: `rollout`": ("rollout_fragments_per_s", "{:,.0f}"),
    "`stream`, joined": ("stream_joined_fragments_per_s", "{:,.0f}"),
    "`stream`, apart": ("stream_apart_fragments_per_s", "{:,.0f}"),
    "rows checked": ("rows_checked", "{:,.0f}"),
    "wrong": ("rows_wrong", "{:,.0f}"),
}
# What a connection per worker cost the head on 16 cores with 256 and more workers, in µs.
OLD_FRAGMENT_US, OLD_STEP_US = 420.0, 180.0


@dataclass
class Cost:
    """What some turns took."""

    turns: int
    wall_s: float
    cpu_s: float
    checks_s: float
    """How much of the wall-clock time was for checking; ``cpu_s`` is without."""

    @property
    def unchecked_s(self) -> float:
        """The wall-clock time without checks: right where hosts do nothing meanwhile."""
        return self.wall_s - self.checks_s


class Clock:
    """Times turns, and leaves out the checks between them."""

    def __init__(self, seconds: float, profiled: cProfile.Profile | None) -> None:
        self._seconds, self._profiled = seconds, profiled
        self._checks_wall_s = self._checks_cpu_s = 0.0

    def check(self, check: Callable[[], None]) -> None:
        """Check something; the head would not do that."""
        wall, cpu = perf_counter(), thread_time()
        check()
        self._checks_wall_s += perf_counter() - wall
        self._checks_cpu_s += thread_time() - cpu

    def time(self, turn: Callable[[], None]) -> Cost:
        """Let ``turn`` run for a while."""
        turn()
        self._checks_wall_s = self._checks_cpu_s = 0.0
        turns, wall, cpu = 0, perf_counter(), process_time()
        if self._profiled is not None:
            self._profiled.enable()
        while perf_counter() - wall < self._seconds or turns < 3:
            turn()
            turns += 1
        if self._profiled is not None:
            self._profiled.disable()
        wall_s, cpu_s = perf_counter() - wall, process_time() - cpu
        return Cost(turns, wall_s, cpu_s - self._checks_cpu_s, self._checks_wall_s)


class Bench:
    """One head and its hosts."""

    def __init__(self, envs: clusterenv.ClusterEnv, num_hosts: int, seconds: float) -> None:
        self._envs, self._num_hosts, self._num_workers = envs, num_hosts, envs.num_workers
        self._seconds = seconds
        self.rows = Rows(envs.num_envs)
        self._policy = CountedPolicy(NUM_WEIGHTS)
        self._same_s = 0.0

    def rollout(self, profiled: cProfile.Profile | None = None) -> dict[str, float]:
        """Rollouts of one version."""
        before = self._fragment_bytes()
        cost = self._time_rollouts(profiled, lambda: None)
        self._same_s = cost.cpu_s / cost.turns / self._num_hosts
        num_messages = (cost.turns + 1) * self._num_hosts  # with the turn before the clock started
        return {
            "kb_per_message": (self._fragment_bytes() - before) / num_messages / 1e3,
            "rollout_fragments_per_s": cost.turns * self._num_workers / cost.unchecked_s,
            "rollout_ms": 1e3 * cost.unchecked_s / cost.turns,
            "rollout_cpu_us_per_host": 1e6 * self._same_s,
            "rollout_cpu_us_per_fragment": 1e6 * cost.cpu_s / cost.turns / self._num_workers,
        }

    def pull(self, profiled: cProfile.Profile | None = None) -> dict[str, float]:
        """Rollouts with a new version for each."""
        cost = self._time_rollouts(profiled, self._policy.advance)
        pulled_s = cost.cpu_s / cost.turns / self._num_hosts
        return {
            "rollout_with_pulls_ms": 1e3 * cost.unchecked_s / cost.turns,
            "cpu_us_per_pull": 1e6 * (pulled_s - self._same_s),
        }

    def _time_rollouts(
        self, profiled: cProfile.Profile | None, advance: Callable[[], None]
    ) -> Cost:
        clock = Clock(self._seconds, profiled)

        def turn() -> None:
            advance()
            rollout = self._envs.rollout(self._policy.policy, NUM_STEPS)
            clock.check(lambda: self._check_newest(rollout))

        return clock.time(turn)

    def _fragment_bytes(self) -> int:
        return self._envs.ledger.bytes_by_kind.get("FragmentMade", 0)

    def _check_newest(self, rollout: clusterenv.Rollout) -> None:
        """Of the rows of a rollout, which are all made by the newest version."""
        self.rows.check_fragment(rollout)
        self.rows.wrong += int((rollout.versions != self._envs.version).sum())

    def stream(self, profiled: cProfile.Profile | None = None) -> dict[str, float]:
        """Fragments as they come; the unit is a worker's, however many come in one message."""
        envs, clock = self._envs, Clock(self._seconds, profiled)
        envs.reset(seed=0)
        self.rows.restart()
        envs.publish(self._policy.policy)
        stream = envs.stream(NUM_STEPS)
        num_slots = 0

        def turn() -> None:
            nonlocal num_slots
            fragment = next(stream)
            num_slots += len(fragment.slots)
            clock.check(lambda: self.rows.check_fragment(fragment))

        for _ in range(2 * self._num_hosts):  # what was made while nobody looked
            turn()
        num_slots = 0
        cost = clock.time(turn)
        stream.close()  # type: ignore[attr-defined]
        fragments = num_slots * self._num_workers / envs.num_envs
        return {
            "fragments_per_s": fragments / cost.wall_s,
            "cpu_us_per_message": 1e6 * cost.cpu_s / cost.turns,
            "cpu_us_per_fragment": 1e6 * cost.cpu_s / fragments,
        }

    def step(self, profiled: cProfile.Profile | None = None) -> dict[str, float]:
        """Lockstep with actions from the head."""
        envs, clock = self._envs, Clock(self._seconds, profiled)
        envs.reset(seed=0)
        self.rows.restart()
        actions = np.arange(envs.num_envs) % 2

        def turn() -> None:
            results = envs.step(actions)
            clock.check(lambda: self.rows.check_step(actions, results))

        cost = clock.time(turn)
        return {
            "lockstep_ms": 1e3 * cost.unchecked_s / cost.turns,
            "steps_per_s": cost.turns * envs.num_envs / cost.unchecked_s,
            "step_cpu_us_per_host": 1e6 * cost.cpu_s / cost.turns / self._num_hosts,
        }


def open_envs(
    args: argparse.Namespace, num_hosts: int, pieces: int
) -> tuple[clusterenv.ClusterEnv, Cost]:
    """A run with that many hosts, after its first reset; and what that took."""
    start, cpu = perf_counter(), process_time()
    launcher = CrowdLauncher(num_hosts, args.workers, args.processes, pieces)
    envs = clusterenv.ClusterEnv(
        Tally,
        num_hosts * args.workers * args.slots,
        num_hosts * args.workers,
        launcher=clusterenv.LocalLauncher(hosts=num_hosts) if args.real else launcher,
        limits=clusterenv.Limits(startup_timeout_s=600.0),
    )
    envs.reset(seed=0)
    return envs, Cost(1, perf_counter() - start, process_time() - cpu, 0.0)


def measure(args: argparse.Namespace, num_hosts: int) -> dict[str, float]:
    """One row of the table."""
    before_mb, before_fds = memory_mb(), num_descriptors()
    envs, join = open_envs(args, num_hosts, pieces=1)
    row: dict[str, float] = {
        "hosts": num_hosts,
        "workers": envs.num_workers,
        "join_s": join.wall_s,
        "join_cpu_ms_per_host": 1e3 * join.cpu_s / num_hosts,
    }
    with envs:
        bench = Bench(envs, num_hosts, args.seconds)
        row |= bench.rollout() | bench.pull()
        row |= {f"stream_joined_{name}": value for name, value in bench.stream().items()}
        row |= bench.step()
        row |= {
            "head_mb": memory_mb(),
            "mb_per_host": (memory_mb() - before_mb) / num_hosts,
            "descriptors_per_host": (num_descriptors() - before_fds) / num_hosts,
        }
    envs, _ = open_envs(args, num_hosts, pieces=args.workers)
    with envs:
        apart = Bench(envs, num_hosts, args.seconds)
        row |= {f"stream_apart_{name}": value for name, value in apart.stream().items()}
    row["rows_checked"] = bench.rows.checked + apart.rows.checked
    row["rows_wrong"] = bench.rows.wrong + apart.rows.wrong
    return row


def memory_mb() -> float:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def num_descriptors() -> int:
    """How many files and sockets this process has open."""
    return len(os.listdir("/proc/self/fd"))


def _cells(row: dict[str, float], columns: Columns) -> list[str]:
    return [pattern.format(row[name]) for name, pattern in columns.values()]


def beside_the_old(row: dict[str, float]) -> tuple[list[str], list[list[str]]]:
    """Per worker, what the head paid when each worker had its own connection, and what now."""
    per_worker = row["workers"] / row["hosts"]
    now = {
        "a worker's fragment, `rollout`": (OLD_FRAGMENT_US, row["rollout_cpu_us_per_fragment"]),
        "a worker's fragment, `stream`, joined": (
            OLD_FRAGMENT_US,
            row["stream_joined_cpu_us_per_fragment"],
        ),
        "a worker's fragment, `stream`, apart": (
            OLD_FRAGMENT_US,
            row["stream_apart_cpu_us_per_fragment"],
        ),
        "a worker's `step`": (OLD_STEP_US, row["step_cpu_us_per_host"] / per_worker),
    }
    lines = [
        [name, f"{old:.0f}", f"{new:.1f}", f"{old / new:.1f}x"] for name, (old, new) in now.items()
    ]
    return [f"head's CPU, {row['workers']:,.0f} workers", "µs before", "µs now", "less"], lines


def profile(args: argparse.Namespace, num_hosts: int, what: str) -> None:
    """Print where the user's thread spends its time in one of the measurements."""
    pieces = args.workers if what == "stream_apart" else 1
    envs, _ = open_envs(args, num_hosts, pieces)
    profiled = cProfile.Profile()
    with envs:
        bench = Bench(envs, num_hosts, args.seconds)
        print(getattr(bench, what.partition("_")[0])(profiled))
    pstats.Stats(profiled).sort_stats("tottime").print_stats(35)
    pstats.Stats(profiled).sort_stats("cumulative").print_stats(35)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--workers", type=int, default=16, help="that each host pretends to have")
    parser.add_argument("--slots", type=int, default=1, help="of each worker")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--processes", type=int, default=4, help="that the hosts share")
    parser.add_argument("--real", action="store_true", help="real hosts, one process each")
    kinds = ["rollout", "pull", "stream", "stream_apart", "step"]
    parser.add_argument("--profile", choices=kinds, help="profile this instead of measuring")
    parser.add_argument("--folder", type=Path, default=report.RESULTS, help="for the results")
    parser.add_argument("--label", default="", help="for a record beside the usual one")
    args = parser.parse_args()
    descriptors = allow_many_descriptors()
    if args.profile:
        profile(args, args.hosts[0], args.profile)
        return
    machine, rows = report.machine(), []
    # What is imported and allocated only once is no cost of a host.
    open_envs(args, 1, pieces=1)[0].close()
    for num_hosts in args.hosts:
        rows.append(measure(args, num_hosts))
        print({name: round(value, 4) for name, value in rows[-1].items()}, flush=True)
        time.sleep(1)
    notes = NOTES.format(
        workers=args.workers,
        slots=args.slots,
        steps=NUM_STEPS,
        weights=4 * NUM_WEIGHTS // 1024,
        processes=args.processes,
    )
    sections = {
        "Machine": report.facts(machine | {"descriptors allowed": descriptors}),
        "The head's costs": report.table([*COSTS], [_cells(row, COSTS) for row in rows]),
        "How fast": report.table([*SPEEDS], [_cells(row, SPEEDS) for row in rows]),
        "Beside a connection per worker": report.table(*beside_the_old(rows[-1])),
        "Notes": notes,
    }
    if args.slots > 2:
        del sections["Beside a connection per worker"]  # whose fragments were small
    numbers = {"machine": machine, "rows": rows}
    report.publish("scale", sections, numbers, None, args.folder, args.label)


if __name__ == "__main__":
    main()
