"""Images from two hosts, over a free link and over one of 100 Mbit/s, compressed and as they are.

    python benchmarks/image_bytes.py
    python benchmarks/image_bytes.py --rounds 1 --seconds 3      a quick look

Each host is a network namespace of this machine with one worker, so it needs root. The runs take
turns. Results go to ``benchmarks/results/image_bytes``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from workloads import WORKLOADS  # noqa: E402

import clusterenv  # noqa: E402
from clusterenv import Network, NumpyPolicy  # noqa: E402
from clusterenv.distributions import Categorical  # noqa: E402
from tests.engines.attaching import HandStarted  # noqa: E402
from tests.engines.harness.namespaces import Hosts  # noqa: E402

NUM_ENVS, NUM_STEPS = 16, 64
LINKS = {"free": "", "100 Mbit/s": "100mbit"}
KINDS = {"coded": True, "raw": False}
CALLS = ("rollout", "stream")
NOTES = f"""\
- Pong, 84 by 84 by 4 (ALE, standard preprocessing), {NUM_ENVS} envs, fragments of {NUM_STEPS}
  steps, a policy that costs next to nothing; two hosts with one worker each, which share the
  machine's cores with the head.
- The link of each host is limited with `tbf` on its own side. Medians over rounds in which all runs
  take turns.
- Bytes: those of `FragmentMade` on the socket, per env step. An observation has 28,224.
"""


def logits(weights: dict[str, np.ndarray], observations: np.ndarray) -> Categorical:
    """From a few pixels."""
    return Categorical(
        observations[:, -1, ::12, ::12].reshape(len(observations), -1) @ weights["w"]
    )


def limit(hosts: Hosts, rate: str) -> None:
    """Let each host send no faster; an empty rate is no limit."""
    for host in hosts.values():
        host.run(["sh", "-c", "tc qdisc del dev eth0 root 2>/dev/null || true"])
        if rate:
            shape = f"tc qdisc add dev eth0 root tbf rate {rate} burst 64kb latency 200ms"
            host.run(["sh", "-c", shape])


class Turns:
    """One run with live envs; every call measures one of its ways for a while."""

    def __init__(self, hosts: Hosts, folder: Path, compress: bool) -> None:
        name = "coded" if compress else "raw"
        folder = folder / name
        folder.mkdir()
        self._envs = clusterenv.ClusterEnv(
            WORKLOADS["Pong"].make,
            NUM_ENVS,
            launcher=HandStarted(folder / "run.key", list(hosts.values()), "--workers", "1"),
            network=Network(compress=compress),
        )
        self._policy = NumpyPolicy(logits, {"w": np.full((49, 6), 1e-3, np.float32)})

    def measure(self, call: str, seconds: float) -> tuple[float, float]:
        """Env steps per second, and bytes on the socket per env step."""
        envs = self._envs
        envs.reset(seed=1)
        envs.publish(self._policy)
        turns = self._rollouts() if call == "rollout" else self._stream()
        next(turns)
        bytes_before, began, num_steps = self._bytes(), perf_counter(), 0
        while perf_counter() - began < seconds:
            num_steps += next(turns)
        took, num_bytes = perf_counter() - began, self._bytes() - bytes_before
        turns.close()  # type: ignore[attr-defined]
        return num_steps / took, num_bytes / num_steps

    def _rollouts(self) -> Iterator[int]:
        while True:
            yield self._envs.rollout(self._policy, NUM_STEPS).rewards.size

    def _stream(self) -> Iterator[int]:
        for fragment in self._envs.stream(NUM_STEPS):
            yield fragment.rewards.size

    def _bytes(self) -> int:
        return self._envs.ledger.bytes_by_kind.get("FragmentMade", 0)

    def close(self) -> None:
        """End the run."""
        self._envs.close()


def measure(args: argparse.Namespace) -> list[dict[str, object]]:
    """Every link, kind and call, in turns."""
    found = []
    with Hosts(2) as hosts, tempfile.TemporaryDirectory() as folder:
        runs = {kind: Turns(hosts, Path(folder), compress) for kind, compress in KINDS.items()}
        for number in range(args.rounds):
            for link, rate in LINKS.items():
                limit(hosts, rate)
                for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                    for call in CALLS:
                        speed, size = runs[kind].measure(call, args.seconds)
                        row = {"link": link, "kind": kind, "call": call, "round": number}
                        found.append(row | {"steps_per_s": speed, "bytes_per_step": size})
                        print(found[-1], flush=True)
        for run in runs.values():
            run.close()
    return found


def table_of(found: list[dict[str, object]]) -> str:
    """Medians, and the ratios that count."""

    def middle(call: str, link: str, kind: str, what: str) -> float:
        fitting = (r for r in found if (r["call"], r["link"], r["kind"]) == (call, link, kind))
        return median(float(row[what]) for row in fitting)  # type: ignore[arg-type]

    lines = []
    for call in CALLS:
        speed = {
            (link, kind): middle(call, link, kind, "steps_per_s")
            for link in LINKS
            for kind in KINDS
        }
        size = {kind: middle(call, "free", kind, "bytes_per_step") for kind in KINDS}
        slow = "100 Mbit/s"
        lines.append(
            [
                f"`{call}`",
                f"{size['raw']:,.0f}",
                f"{size['coded']:,.0f}",
                f"{size['raw'] / size['coded']:.0f}x",
                *(f"{speed[link, kind]:,.0f}" for link in LINKS for kind in ("raw", "coded")),
                f"{speed[slow, 'coded'] / speed['free', 'coded']:.2f}",
                f"{speed[slow, 'coded'] / speed[slow, 'raw']:.1f}x",
            ]
        )
    head = ["", "bytes per step, raw", "coded", "fewer", "steps/s: free, raw", "free, coded"]
    head += ["limited, raw", "limited, coded", "limited / free, coded", "coded / raw, limited"]
    return report.table(head, lines)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--folder", type=Path, default=report.RESULTS, help="for the results")
    args = parser.parse_args()
    machine = report.machine()
    found = measure(args)
    sections = {
        "Machine": report.facts(machine),
        "Pong from two hosts": table_of(found),
        "Notes": NOTES,
    }
    report.publish("image_bytes", sections, {"machine": machine, "rows": found}, None, args.folder)


if __name__ == "__main__":
    main()
