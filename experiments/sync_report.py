"""Tables and pictures of the sync experiments, one set per env.

    PYTHONPATH=examples:benchmarks python experiments/sync_report.py
    PYTHONPATH=examples:benchmarks python experiments/sync_report.py RECORD.jsonl.gz

Without arguments it takes what ``sync_runs.py`` left in runs/experiments; else records that it made
of these (``benchmarks/results/sync_*``).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import report
import sync_pictures
from intervals import interval
from records import SUFFIX, Record, read_record
from sync_runs import RUNS

Result = dict[str, Any]
Runs = dict[int, Result]
"""Those of one rule, by seed."""
# What all runs of an env share is in its record once.
_SHARED = ("env", "settings", "machine")
_SETTLED = 20
HEADER = (
    "rule",
    "seeds",
    "return",
    "median",
    "worst",
    "minus always",
    "while training, minus always",
    "fewer pulls",
    "due to the lag",
    "kB",
    "fewer bytes",
    "sample size",
)


def main() -> None:
    """Read, then report each env."""
    files = [Path(name) for name in sys.argv[1:]] or sorted(RUNS.glob("*.json"))
    results = [result for file in files for result in _read(file)]
    for env in sorted({result["env"] for result in results}):
        _report(env, [result for result in results if result["env"] == env])


def _read(file: Path) -> list[Result]:
    """A run of its own, or all of an env as :func:`_record` put them together."""
    if not file.name.endswith(SUFFIX):
        return [json.loads(file.read_text())]
    record = read_record(file)
    runs = record.pop("runs")
    return [{**record, **run} for run in runs]


def _record(results: list[Result]) -> Record:
    shared = {key: results[0][key] for key in _SHARED}
    return {**shared, "runs": [{k: v for k, v in r.items() if k not in _SHARED} for r in results]}


def _report(env: str, results: list[Result]) -> None:
    rules: dict[str, Runs] = {}
    for result in sorted(results, key=lambda r: (_order(r["rule"]), r["seed"])):
        rules.setdefault(result["rule"], {})[result["seed"]] = result
    machine = {k: v for k, v in results[0]["machine"].items() if v != "not installed"}
    machine.pop("load before the run", None)
    sections = {
        "Results": report.table(HEADER, (_row(runs, rules["always"]) for runs in rules.values())),
        **_at_equal_pulls(rules),
        **_budgets(rules),
        "How it was measured": _METHOD,
        "Settings": report.facts(results[0]["settings"]),
        "Machine": report.facts(machine),
    }
    cores = machine["CPU"].rsplit(", ", 1)[1].replace(" ", "")
    report.publish(
        f"sync_{env}",
        sections,
        _record([run for runs in rules.values() for run in runs.values()]),
        sync_pictures.draw(env, {rule: list(runs.values()) for rule, runs in rules.items()}),
        stem=cores,
    )


_METHOD = """\
Return: the mean of 128 evaluation episodes of the learner's policy after training, then mean ± 95 %
interval (Student's t) over seeds. Differences to `always` are paired by seed. While training: the
mean over the learning curve, whose points are the mean returns of the last 100 episodes; these were
played by the workers, with the weights that they had. Fewer pulls: than one per version and host.
Due to the lag: the share of pulls because of `max_lag`. kB: all that went through the socket, to
and from both hosts, for weights, pulls and announcements (the whole requests that carry these).
Fewer bytes: than the full policy, actor and critic in fp32, for every version and host. Sample
size: the mean effective sample size of the measured rows; `always` and fixed periods do not
measure. One core per run, for head and two hosts of one worker each; tcp, actor only, deltas."""


def _order(rule: str) -> tuple[int, float]:
    name, _, value = rule.partition(":")
    return ("always", "adaptive", "rate", "every").index(name), float(value or 0)


def _row(runs: Runs, always: Runs) -> list[str]:
    results = list(runs.values())
    returns = [run["return"] for run in results]
    causes = sum((Counter(run["pulls_by_cause"]) for run in results), Counter())
    sizes = [run["effective_sample_size"] for run in results]
    is_always = results[0]["rule"] == "always"
    return [
        results[0]["rule"],
        str(len(results)),
        interval(returns),
        f"{np.median(returns):.0f}",
        f"{min(returns):.0f}",
        "" if is_always else interval(_differences(runs, always, _final)),
        "" if is_always else interval(_differences(runs, always, _training)),
        f"{1 / _pulled_share(results):.1f}x",
        f"{causes['lag'] / causes.total():.0%}" if sizes[0] else "",
        f"{np.mean([run['sync_bytes'] for run in results]) / 1e3:.0f}",
        f"{_fewer_bytes(results):.0f}x",
        f"{np.mean(sizes):.2f}" if sizes[0] else "",
    ]


def _final(run: Result) -> float:
    return float(run["return"])


def _training(run: Result) -> float:
    return float(np.mean([value for _, value, _ in run["curve"]]))


def _differences(runs: Runs, others: Runs, of: Any) -> list[float]:
    return [of(run) - of(others[seed]) for seed, run in runs.items() if seed in others]


def _pulled_share(results: list[Result], after: int = 0) -> float:
    """Of the versions after that one, how many a host pulled."""
    pulls = sum(v > after for run in results for pulled in run["pulled_versions"] for v in pulled)
    return pulls / sum(len(run["pulled_versions"]) * (run["versions"] - after) for run in results)


def _fewer_bytes(results: list[Result]) -> float:
    return sum(run["full_bytes"] for run in results) / sum(run["sync_bytes"] for run in results)


def _at_equal_pulls(rules: dict[str, Runs]) -> dict[str, str]:
    """The adaptive rule beside the fixed period that pulls about as often, by seed."""
    if not {"adaptive:0.1", "every:8"} <= rules.keys():
        return {}
    adaptive, fixed = rules["adaptive:0.1"], rules["every:8"]
    results = list(adaptive.values())
    least = min(run["full_bytes"] / run["sync_bytes"] for run in results)
    facts = {
        "threshold 0.1 minus every 8th, return": interval(_differences(adaptive, fixed, _final)),
        "the same while training": interval(_differences(adaptive, fixed, _training)),
        "fewer bytes at 0.1, the worst seed": f"{least:.1f}x",
        "a run at 0.1 moved": f"{np.mean([run['sync_bytes'] for run in results]) / 1e6:.2f} MB",
        "the full policy at every version": f"{results[0]['full_bytes'] / 1e6:.1f} MB",
        "all weights as JSON to each worker at every step (computed)": (
            f"{results[0]['prototype_bytes'] / 1e9:.2f} GB"
        ),
    }
    return {"Recommended setting": report.facts(facts)}


def _budgets(rules: dict[str, Runs]) -> dict[str, str]:
    """What share of the versions was pulled where that was the target."""
    facts = {
        f"{rule}, seed {seed}": f"{_pulled_share([run]):.1%} of the versions were pulled, "
        f"{_pulled_share([run], _SETTLED):.1%} of those after the first {_SETTLED}"
        for rule, runs in rules.items()
        if rule.startswith("rate")
        for seed, run in runs.items()
    }
    return {"Budget": report.facts(facts)} if facts else {}


if __name__ == "__main__":
    main()
