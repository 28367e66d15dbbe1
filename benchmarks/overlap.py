"""What it brings to collect the next rollout while the learner learns: ``ahead=1`` against 0.

    python benchmarks/overlap.py --workers 1 --seconds 5 --rounds 5

In turns, with a learner that costs nothing, and with one that keeps a core of the head busy for as
long as a rollout takes. Prints steps per second and their ratio, the median over rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

import numpy as np
from paired import ratio_of

from clusterenv import ClusterEnv, NumpyPolicy
from clusterenv.distributions import Categorical

ENVS = {"CartPole-v1": (4, 2), "LunarLander-v3": (8, 4)}
"""By id: the length of an observation, and how many actions there are."""


def logits(weights: dict[str, np.ndarray], observations: np.ndarray) -> Categorical:
    return Categorical(observations @ weights["w"])


def learner_of(seconds: float) -> Callable[[], None]:
    """Computes for so long: it does not sleep, as no learner does."""

    def learn() -> None:
        deadline = perf_counter() + seconds
        while perf_counter() < deadline:
            pass

    return learn


class Run:
    """One vector env, measured again and again."""

    def __init__(self, envs: ClusterEnv, env_id: str, num_steps: int) -> None:
        self._envs, self._num_steps = envs, num_steps
        self._policy = NumpyPolicy(logits, {"w": np.zeros(ENVS[env_id], np.float32)})
        envs.reset(seed=1)

    def _rollout(self, ahead: int) -> int:
        # Another version each time, as a learner would publish.
        self._policy.weights()["w"][0, 0] += 1e-6
        return self._envs.rollout(self._policy, self._num_steps, ahead=ahead).rewards.size

    def seconds_of_a_rollout(self) -> float:
        """With ``ahead=0``, when everything is warm."""
        self._rollout(0)
        times = []
        for _ in range(5):
            began = perf_counter()
            self._rollout(0)
            times.append(perf_counter() - began)
        return float(np.median(times))

    def steps_per_s(self, ahead: int, learn: Callable[[], None], seconds: float) -> float:
        """What comes back while the learner learns after each rollout."""
        self._rollout(ahead)
        learn()
        began, steps = perf_counter(), 0
        while (now := perf_counter()) < began + seconds:
            steps += self._rollout(ahead)
            learn()
        rate = steps / (now - began)
        if ahead:
            # What is under way belongs to nobody's time.
            self._rollout(0)
        return rate


def compare(args: argparse.Namespace, env_id: str) -> None:
    num_envs = args.workers * args.envs_per_worker
    with ClusterEnv(env_id, num_envs, args.workers) as envs:
        run = Run(envs, env_id, args.num_steps)
        as_long = run.seconds_of_a_rollout()
        for name, seconds in (("costs nothing", 0.0), ("as long as a rollout", as_long)):
            learn = learner_of(seconds)
            rates = [
                [run.steps_per_s(ahead, learn, args.seconds) for ahead in (0, 1)]
                for _ in range(args.rounds)
            ]
            before, after = zip(*rates, strict=True)
            ratio = ratio_of(before, after)
            print(
                f"{env_id:15} learner {name:21} ahead=0 {np.median(before):10,.0f}/s  "
                f"ahead=1 {np.median(after):10,.0f}/s  "
                f"ratio {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--envs-per-worker", type=int, default=16)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    args = parser.parse_args()
    for env_id in args.envs:
        compare(args, env_id)


if __name__ == "__main__":
    main()
