"""Is the measured divergence the right one? During a real PPO training on LunarLander-v3.

    PYTHONPATH=examples:benchmarks python experiments/estimator.py

Two hosts pull every 16th version, so that copies of every lag act. Before each rollout the head
measures as always, on 64 rows of each host's last fragment. The exact value is the mean KL
between the copy and that newest policy on *all* states that the host sees next. The cost of
measuring is compared with that of the PPO updates in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import inside
import numpy as np
import ppo
import report
import torch
import tyro
from sync_run import Curve

from clusterenv import AdaptiveSync, ClusterEnv, LocalLauncher, TorchPolicy

THRESHOLD = 0.1


class Stopwatch:
    """Adds up the seconds that a function takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.seconds = function, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the function."""
        begun = time.perf_counter()
        try:
            return self._function(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - begun


class Pairs:
    """Estimates with their standard errors, and what they were estimates of."""

    def __init__(self, envs: ClusterEnv) -> None:
        self._envs = envs
        self.rows: list[tuple[float, float, float]] = []

    def add(self, rollout: Any, policy: TorchPolicy, newest: int) -> None:
        """A rollout has come that was decided on while ``newest`` was the newest version."""
        latest = {m.host: m for m in self._envs.ledger.measurements if m.newest == newest}
        for host, columns in inside.slots_by_host(self._envs).items():
            estimate = latest.get(host)
            if estimate is not None and rollout.versions[0, columns[0]] == estimate.held:
                exact = _exact(rollout, policy, columns)
                self.rows.append((estimate.divergence, estimate.standard_error, exact))


def _exact(rollout: Any, policy: TorchPolicy, columns: range) -> float:
    rows = rollout.flatten(rollout.observations[:-1, columns])
    newest = policy.act(rows, None, None).distribution
    assert newest is not None
    acted = newest.with_arrays(
        {n: rollout.flatten(array[:, columns]) for n, array in rollout.distribution.items()}
    )
    return float(acted.divergence(newest).mean())


def main(total_steps: int = 1_000_000, seed: int = 1) -> None:
    """Train, compare, report."""
    args = replace(ppo.Args(), total_steps=total_steps, seed=seed, num_workers=2)
    rule = AdaptiveSync(1e9, 16, spread=0.0)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    # Hosts with a worker each.
    hosts = LocalLauncher(hosts=2)
    with ClusterEnv(args.env_id, args.num_envs, 2, launcher=hosts, sync=rule) as envs:
        survey = inside.wrap_survey(envs, Stopwatch)
        update = Stopwatch(ppo.update)
        agent = ppo.Agent(envs, args.hidden)
        policy = TorchPolicy(agent, stays_at_head=("critic",))
        optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
        envs.reset(seed=seed)
        curve, pairs = Curve(), Pairs(envs)
        while curve.step < total_steps:
            version = envs.publish(policy)
            rollout = envs.rollout(policy, args.num_steps)
            pairs.add(rollout, policy, version)
            curve.collected(rollout, version)
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - curve.step / total_steps)
            update(agent, optimizer, rollout, args)
    _report(np.array(pairs.rows), survey.seconds / update.seconds, curve, vars(args))


def _report(rows: np.ndarray, cost: float, curve: Curve, settings: dict[str, Any]) -> None:
    estimate, error, exact = rows.T
    known = (estimate > 0) & (exact > 0)
    correlation = np.corrcoef(np.log(estimate[known]), np.log(exact[known]))[0, 1]
    far = exact > 2 * THRESHOLD
    missed = far & (estimate + 1.64 * error <= THRESHOLD)
    found = {
        "pairs": len(rows),
        "log-correlation": f"{correlation:.4f}",
        f"exact above {2 * THRESHOLD:g}": int(far.sum()),
        f"of these not above {THRESHOLD:g} by estimate + 1.64 standard errors": int(missed.sum()),
        "seconds of measuring / seconds of PPO updates": f"{cost:.4f}",
        "mean return of the last 100 episodes": f"{curve.points[-1][1]:.1f}",
    }
    sections = {"Found": report.facts(found), "Machine": report.facts(report.machine())}
    numbers = {"found": found, "rows": rows.round(8).tolist(), "settings": {**settings, "out": ""}}
    report.publish("sync_estimator", sections, numbers, None)


if __name__ == "__main__":
    tyro.cli(main)
