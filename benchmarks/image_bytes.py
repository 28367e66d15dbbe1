"""Observations from two hosts, coded and as they are: images over a slow link too, and floats.

    python benchmarks/image_bytes.py                             # eight minutes
    python benchmarks/image_bytes.py --rounds 1 --seconds 3      a quick look

Each host is a network namespace of this machine with one worker, so it needs root. The runs take
turns. Results go to ``benchmarks/results/image_bytes``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from image_bytes_report import FREE, KINDS, LINKS, Row, sections_of  # noqa: E402
from others import OthersWatch  # noqa: E402
from workloads import WORKLOADS  # noqa: E402

import clusterenv  # noqa: E402
from clusterenv import Network, NumpyPolicy  # noqa: E402
from clusterenv.distributions import Categorical  # noqa: E402
from tests.engines.attaching import HandStarted  # noqa: E402
from tests.engines.harness.namespaces import Hosts  # noqa: E402
from tests.environments.floats import Floats  # noqa: E402

CALLS = ("rollout", "stream")


@dataclass(frozen=True)
class Task:
    """What is stepped, and for how long."""

    make: Any
    num_envs: int
    num_steps: int
    num_inputs: int
    num_actions: int
    every: int = 1
    """Only every so many pixels of the newest frame are looked at; 1: vectors."""

    def policy(self) -> NumpyPolicy:
        """Costs next to nothing."""
        weights = {"w": np.full((self.num_inputs, self.num_actions), 1e-3, np.float32)}
        return NumpyPolicy(of_pixels if self.every > 1 else of_vectors, weights)


def of_pixels(weights: dict[str, np.ndarray], images: np.ndarray) -> Categorical:
    """From a few pixels."""
    return Categorical(images[:, -1, ::12, ::12].reshape(len(images), -1) @ weights["w"])


def of_vectors(weights: dict[str, np.ndarray], observations: np.ndarray) -> Categorical:
    """From all numbers."""
    return Categorical(observations @ weights["w"])


TASKS = {
    "Pong": Task(WORKLOADS["Pong"].make, 16, 64, num_inputs=49, num_actions=6, every=12),
    "LunarLander-v3": Task(WORKLOADS["LunarLander-v3"].make, 64, 128, 8, 4),
    "376 floats": Task(Floats, 64, 64, 376, 4),
}


def limit(hosts: Hosts, rate: str) -> None:
    """Let each host send no faster; an empty rate is no limit."""
    for host in hosts.values():
        host.run(["sh", "-c", "tc qdisc del dev eth0 root 2>/dev/null || true"])
        if rate:
            shape = f"tc qdisc add dev eth0 root tbf rate {rate} burst 64kb latency 200ms"
            host.run(["sh", "-c", shape])


class Live:
    """One run with live envs; every call measures one of its ways for a while."""

    def __init__(self, task: Task, hosts: Hosts, folder: Path, kind: str) -> None:
        folder = folder / kind
        folder.mkdir()
        self._task, self._policy = task, task.policy()
        self._envs = clusterenv.ClusterEnv(
            task.make,
            task.num_envs,
            launcher=HandStarted(folder / "run.key", list(hosts.values()), "--workers", "1"),
            network=Network(compress=KINDS[kind]),
        )

    def measure(self, call: str, seconds: float) -> dict[str, float]:
        """Env steps per second, bytes on the socket per env step, and what others took."""
        envs = self._envs
        envs.reset(seed=1)
        envs.publish(self._policy)
        turns = self._rollouts() if call == "rollout" else self._stream()
        next(turns)
        watch, bytes_before, began, num_steps = OthersWatch(), self._bytes(), perf_counter(), 0
        while perf_counter() - began < seconds:
            num_steps += next(turns)
        took, num_bytes = perf_counter() - began, self._bytes() - bytes_before
        others = watch.share()
        turns.close()  # type: ignore[attr-defined]
        sizes = {"bytes_per_step": num_bytes / num_steps, "others": others}
        return {"steps_per_s": num_steps / took, **sizes}

    def _rollouts(self) -> Iterator[int]:
        while True:
            yield self._envs.rollout(self._policy, self._task.num_steps).rewards.size

    def _stream(self) -> Iterator[int]:
        for fragment in self._envs.stream(self._task.num_steps):
            yield fragment.rewards.size

    def _bytes(self) -> int:
        return self._envs.ledger.bytes_by_kind.get("FragmentMade", 0)

    def close(self) -> None:
        """End the run."""
        self._envs.close()


def measure(
    env: str, links: Sequence[str], rounds: int, seconds: float, hosts: Hosts
) -> Iterator[Row]:
    """Every link, kind and call, in turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = {}
        for kind in KINDS:
            runs[kind] = Live(TASKS[env], hosts, folder, kind)
            stack.callback(runs[kind].close)
        for number in range(rounds):
            for link in links:
                limit(hosts, LINKS[link])
                for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                    for call in CALLS:
                        row = {"env": env, "link": link, "kind": kind, "call": call}
                        yield row | {"round": number} | runs[kind].measure(call, seconds)
        limit(hosts, "")


def measure_all(args: argparse.Namespace) -> list[Row]:
    """Images over both links; floats, in shorter turns, over the free one."""
    found = []
    with Hosts(2) as hosts:
        for env in args.envs:
            is_image = env == "Pong"
            links = tuple(LINKS) if is_image else (FREE,)
            times = (1, 1.0) if is_image else (2, 0.5)
            rounds, seconds = args.rounds * times[0], args.seconds * times[1]
            for row in measure(env, links, rounds, seconds, hosts):
                found.append(row)
                print(row, file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--envs", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--folder", type=Path, default=report.RESULTS, help="for the results")
    args = parser.parse_args()
    machine = report.machine()
    found = measure_all(args)
    sections = sections_of(found) | {"Machine": report.facts(machine)}
    report.publish("image_bytes", sections, {"machine": machine, "rows": found}, None, args.folder)


if __name__ == "__main__":
    main()
