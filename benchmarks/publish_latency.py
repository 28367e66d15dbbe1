"""What publishing 1.7 million parameters costs the learner, and how long hosts wait for them.

    python benchmarks/publish_latency.py
    python benchmarks/publish_latency.py --seconds 1 --repeats 1

Run it on an idle machine. Each measurement has a fresh process, and they take turns. Results go
to ``benchmarks/results/publish_latency``.
"""

import argparse
import copy
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import report
from comparison import IDLE_SHARE
from fresh_process import in_fresh_process
from learners import LEARNERS, LEARNING_S
from workloads import NullEnv

PROMISED_MS = 1.0
FRAGMENT_STEPS = 8
# Where the host is → ClusterEnv's ``shared_memory``.
PLACES = {"tcp": False, "memory": True}
NOTES = f"""\
- The network is the CNN of the Nature paper (three convolutions, a layer of 512), in 10 arrays.
- Publish: `envs.publish(policy)` after every number has changed. The bare copy: all arrays one
  after the other into one new array. Both in turns; "beyond the copy" is the difference of
  neighbours. "unchanged": publishing the same weights again, which is no new version.
- Pull: from a host's decision to pull until its worker has loaded the weights. "tcp": a host
  behind a socket: request, the head's I/O thread, checksum, encryption, transfer, decryption,
  check, shared memory, load. "memory": a host in the head's process: a copy into shared memory,
  load. One worker with one env, in a `stream`; the learner takes a fragment, learns for
  {1e3 * LEARNING_S:.0f} ms, publishes, and so on, so that pulls fall into its learning. Torch has
  one thread.
- Learners: "idle" sleeps; "torch, CNN" trains the network itself with batches of 16; "torch, MLP"
  trains one of 64x64 with batches of 256, many short calls between which Python holds the GIL;
  "Python" counts in a loop and never gives the GIL away of its own accord.
- "publish meanwhile": how long `publish` took in that stream, where a pull may be under way.
"""


# The learner's side.


@contextmanager
def published_envs(place: str = "tcp") -> Iterator[tuple[Any, Any]]:
    """One worker with one env, and a policy whose weights are the large network."""
    import torch
    from networks import nature_cnn
    from pull_clock import ClockedEveryVersion, PullClockedPolicy, make_clock
    from torch.distributions import Categorical

    import clusterenv

    torch.set_num_threads(1)

    def distribution(module: Any, observations: Any) -> Any:
        # Acts with a small part of the network only, so that fragments are short.
        return Categorical(logits=module.actor(observations), validate_args=False)

    with TemporaryDirectory() as folder:
        make_clock(clock := Path(folder) / "clock")
        policy = PullClockedPolicy(str(clock), nature_cnn(num_actions=6), distribution)
        rule, make = ClockedEveryVersion(file=str(clock)), partial(NullEnv, 512, 6)
        here = PLACES[place]
        with closing(clusterenv.ClusterEnv(make, 1, 1, sync=rule, shared_memory=here)) as envs:
            envs.publish(policy)
            yield envs, policy


def measure_publish(seconds: float) -> dict[str, Any]:
    """Seconds of each publish, of each bare copy, and of publishing what has not changed."""
    from rollout_systems import change_weights

    times: dict[str, list[float]] = {"publish_s": [], "copy_s": [], "unchanged_s": []}
    with published_envs() as (envs, policy):
        cpu_start, start = thread_time(), perf_counter()
        while perf_counter() - start < seconds:
            change_weights(policy)
            times["publish_s"].append(_seconds(envs.publish, policy))
            times["unchanged_s"].append(_seconds(envs.publish, policy))
            times["copy_s"].append(_seconds(_bare_copy, policy.weights()))
        share = (thread_time() - cpu_start) / (perf_counter() - start)
        vector, weights = _bare_copy(policy.weights()), copy.deepcopy(policy.weights())
        times["checksum_s"] = [_seconds(zlib.crc32, vector) for _ in range(20)]
        times["load_s"] = [_seconds(policy.load, weights) for _ in range(20)]
    return {name: values[1:] for name, values in times.items()} | {"cpu_share": share}


def _bare_copy(weights: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in weights.values()])


def _seconds(function: Callable[..., Any], *arguments: Any) -> float:
    before = perf_counter()
    function(*arguments)
    return perf_counter() - before


# The hosts' side.


def measure_pulls(place: str, learner: str, seconds: float) -> dict[str, Any]:
    """Seconds of each pull and of each publish while ``learner`` learns."""
    from rollout_systems import change_weights

    pulls, publishes = {}, []
    with published_envs(place) as (envs, policy):
        learn = LEARNERS[learner](policy)
        # The worker imports torch first.
        envs.rollout(policy, FRAGMENT_STEPS)
        start = perf_counter()
        with closing(envs.stream(FRAGMENT_STEPS)) as fragments:
            for fragment in fragments:
                learn()
                change_weights(policy)
                publishes.append(_seconds(envs.publish, policy))
                pulls[int(fragment.versions[0, 0])] = float(fragment.outputs["pull_s"][0, 0])
                if perf_counter() - start > seconds:
                    break
    # The first pull brings the policy itself.
    return {"pull_s": list(pulls.values())[1:], "publish_s": publishes[1:]}


# The report.


def main() -> None:
    """Measure in turns, then print and save the tables and the picture."""
    options = _options()
    about = report.machine()
    published: list[dict[str, Any]] = []
    pulled: dict[tuple[str, str], list[dict[str, Any]]] = {
        (place, learner): [] for place in PLACES for learner in LEARNERS
    }
    for _ in range(options.repeats):
        published.append(in_fresh_process(measure_publish, options.seconds, timeout_s=180))
        _show("publish", published[-1]["publish_s"])
        for (place, learner), results in pulled.items():
            measured = in_fresh_process(
                measure_pulls, place, learner, options.seconds, timeout_s=180
            )
            results.append(measured)
            _show(f"pull, {place}, {learner}", measured["pull_s"])
    share = float(np.median([result["cpu_share"] for result in published]))
    about["share of a core that the publishing thread got"] = f"{share:.2f}"
    by_name = {f"{place}, {learner}": results for (place, learner), results in pulled.items()}
    pull_s = {name: _joined(results, "pull_s") for name, results in by_name.items()}
    sections = {
        "Publish, in ms": report.table(*_publish_table(published, share >= IDLE_SHARE)),
        "Pull, in ms": report.table(*_pull_table(by_name)),
        "How it was measured": NOTES + report.facts({"repeats": options.repeats}),
        "Machine": report.facts(about),
    }
    numbers = {"machine": about, "publish": published, "pull": by_name}
    report.publish("publish_latency", sections, numbers, _picture(pull_s), options.results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="per measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=report.RESULTS)
    return parser.parse_args()


def _show(what: str, seconds: list[float]) -> None:
    print(f"{what:25s} {1e3 * np.median(seconds):8.2f} ms", file=sys.stderr, flush=True)


def _joined(results: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.concatenate([result[name] for result in results])


def _figures(seconds: np.ndarray) -> list[str]:
    quantiles = np.quantile(1e3 * seconds, [0.5, 0.1, 0.9, 1.0])
    return [*(f"{value:.2f}" for value in quantiles), str(len(seconds))]


def _publish_table(results: list[dict[str, Any]], idle: bool) -> tuple[list[str], list[list[str]]]:
    publish, bare = _joined(results, "publish_s"), _joined(results, "copy_s")
    beyond = publish - bare
    kept = np.median(beyond) * 1e3 <= PROMISED_MS
    verdict = ("kept" if kept else "missed") if idle else "machine not idle"
    lines = [
        ["publish", *_figures(publish), ""],
        ["the bare copy", *_figures(bare), ""],
        ["beyond the copy", *_figures(beyond), f"promised ≤ {PROMISED_MS:g}: {verdict}"],
        ["publish, unchanged", *_figures(_joined(results, "unchanged_s")), ""],
        ["of a pull: checksum", *_figures(_joined(results, "checksum_s")), "at either end"],
        ["of a pull: load", *_figures(_joined(results, "load_s")), "on the worker"],
    ]
    return ["", "median", "10 %", "90 %", "longest", "times", ""], lines


def _pull_table(pulled: dict[str, list[dict[str, Any]]]) -> tuple[list[str], list[list[str]]]:
    lines = []
    for name, results in pulled.items():
        meanwhile = _joined(results, "publish_s") * 1e3
        publishes = [f"{np.median(meanwhile):.2f}", f"{meanwhile.max():.2f}"]
        lines.append([name, *_figures(_joined(results, "pull_s")), *publishes])
    header = ["host, learner", "median", "10 %", "90 %", "longest", "times"]
    return [*header, "publish meanwhile", "longest"], lines


def _picture(seconds_by_name: dict[str, np.ndarray]) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 3))
    milliseconds = [1e3 * seconds for seconds in seconds_by_name.values()]
    axes.boxplot(milliseconds, tick_labels=list(seconds_by_name), whis=(0, 100))
    axes.set_yscale("log")
    axes.set_ylabel("ms from decision to loaded")
    axes.set_title("Pull of 1.7 M parameters while the learner …")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    main()
