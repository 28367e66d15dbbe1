"""Is a pull budget kept? PullRate(0.1) on LunarLander-v3, over whole runs.

    PYTHONPATH=examples:benchmarks python experiments/budget.py

Runs that are there already are not run again, see sync_run.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import report
import tyro
from intervals import interval
from sync_run import file_name

ENV, SHARE = "LunarLander-v3", 0.1
RULE = f"rate:{SHARE}"


def main(seeds: int = 5, runs: Path = Path("runs/experiments")) -> None:
    """All runs, one after the other, then the table."""
    script, results = Path(__file__).with_name("sync_run.py"), []
    for seed in range(1, seeds + 1):
        arguments = ["--rule", RULE, "--seed", str(seed), "--out", str(runs)]
        subprocess.run([sys.executable, script, *arguments], check=True)
        results.append(json.loads((runs / file_name(ENV, RULE, seed)).read_text()))
    rows = []
    for result in results:
        pulled, versions = result["pulled_versions"], result["versions"]
        rate = sum(map(len, pulled)) / len(pulled) / versions
        late = [version for of_host in pulled for version in of_host if version > 20]
        late_rate = len(late) / len(pulled) / (versions - 20)
        shares = [f"{100 * rate:.1f} %", f"{100 * late_rate:.1f} %"]
        rows.append([str(result["seed"]), *shares, f"{result['return']:.1f}"])
    header = ["seed", "pulls per version and host", "after the first 20 versions", "return"]
    returns = interval([result["return"] for result in results])
    sections = {
        "Results": report.table(header, rows),
        "How it was measured": f"PPO on {ENV} as in the other sync runs, 2 hosts, "
        f"{results[0]['versions']} versions, budget PullRate({SHARE}), which begins with threshold "
        f"0.1; return of 128 episodes, {returns} over the seeds.\n",
        "Machine": report.facts(results[0]["machine"]),
    }
    for result in results:
        del result["curve"], result["bytes_by_kind"]
    report.publish("sync_budget", sections, {"runs": results}, None)


if __name__ == "__main__":
    tyro.cli(main)
