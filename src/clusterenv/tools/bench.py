"""``python -m clusterenv bench``: where a run's time goes, and which layout suits it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium

from clusterenv.env import ClusterEnv
from clusterenv.errors import ClusterEnvError
from clusterenv.policies.numpy import NumpyPolicy
from clusterenv.profile import VARIABLE, Profile
from clusterenv.randomness import SlotRandom
from clusterenv.tools.bench_policy import bench_policy, why_no_policy
from clusterenv.tools.env_choice import ADVICE, UnknownEnvError, backend_of
from clusterenv.tools.launcher_choice import HELP, launcher_from
from clusterenv.tools.profile_table import profile_table, recommend
from clusterenv.tools.tables import as_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments, in the same words as ClusterEnv."""
    parser.add_argument(
        "what", help="a Gymnasium id (or module:id), or a script of yours (….py), run as it is"
    )
    parser.add_argument("arguments", nargs="*", help="of the script (after --)")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-workers", type=int, help="by default one per core")
    parser.add_argument("--launcher", default="local", help=HELP)
    parser.add_argument("--policy-hidden", type=int, default=64, help="units of its two layers")
    parser.add_argument("--num-steps", type=int, default=32, help="of a rollout or fragment")
    parser.add_argument(
        "--learner-ms",
        type=float,
        default=0.0,
        help="what your learner takes for a rollout; it sleeps, as while a GPU works",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="for each layout")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print a table and advice."""
    if arguments.what.endswith(".py"):
        _run_script(arguments)
    try:
        backend_of(arguments.what)
        launcher = launcher_from(arguments.launcher)
        envs = ClusterEnv(
            arguments.what, arguments.num_envs, arguments.num_workers, launcher=launcher
        )
    except UnknownEnvError as error:
        return _refuse(f"{error}: {ADVICE}")
    except (TypeError, ValueError, ImportError, gymnasium.error.Error, ClusterEnvError) as error:
        return _refuse(f"{error}")
    with envs:
        profiles = dict(measure(envs, arguments))
        spaces = envs.single_observation_space, envs.single_action_space
    told = recommend(profiles)
    if "rollout" not in profiles:
        told.append(why_no_policy(*spaces))
    print(as_text(profile_table(arguments.what, profiles)))
    for line in told:
        print(f"-> {line}")
    return 0


def _refuse(reason: str) -> int:
    print(f"clusterenv bench: {reason}", file=sys.stderr)
    return 1


def _run_script(arguments: argparse.Namespace) -> NoReturn:
    """Run the script itself with every run timed; each reports its times at its end."""
    command = [sys.executable, arguments.what, *arguments.arguments]
    os.execve(sys.executable, command, {**os.environ, VARIABLE: "1"})


@dataclass
class _Bench:
    envs: ClusterEnv
    policy: NumpyPolicy | None
    num_steps: int
    learner_s: float
    acting: Callable[[], AbstractContextManager[None]] = nullcontext
    """Counts the head's own forward pass."""

    def learn(self) -> None:
        time.sleep(self.learner_s)

    def step(self) -> Iterator[None]:
        """The head computes actions, as most loops do; random ones if there is no policy."""
        envs = self.envs
        observations, _ = envs.reset(seed=0)
        random = SlotRandom(0, range(envs.num_envs))
        while True:
            for number in range(self.num_steps):
                random.go_to(number)
                observations = envs.step(self._act(observations, random))[0]
                yield
            self.learn()

    def _act(self, observations: Any, random: SlotRandom) -> Any:
        if self.policy is None:
            action_space = self.envs.action_space
            return action_space.sample()
        with self.acting():
            return self.policy.act(observations, None, random).actions

    def rollout(self) -> Iterator[None]:
        """The policy acts on the workers; the learner learns in between."""
        self.envs.reset(seed=0)
        while True:
            self.envs.rollout(self.policy, self.num_steps)
            self.learn()
            yield

    def stream(self) -> Iterator[None]:
        """The policy acts on the workers while the learner learns."""
        self.envs.reset(seed=0)
        self.envs.publish(self.policy)
        num_slots = 0
        for fragment in self.envs.stream(self.num_steps):
            num_slots += len(fragment.slots)
            if num_slots >= self.envs.num_envs:
                num_slots -= self.envs.num_envs
                self.learn()
            yield


def measure(envs: ClusterEnv, arguments: argparse.Namespace) -> Iterator[tuple[str, Profile]]:
    """A profile of each layout."""
    policy = bench_policy(
        envs.single_observation_space, envs.single_action_space, arguments.policy_hidden
    )
    bench = _Bench(envs, policy, arguments.num_steps, arguments.learner_ms / 1000)
    layouts: dict[str, Callable[[], Iterator[None]]] = {"step": bench.step}
    if policy is not None:
        layouts |= {"rollout": bench.rollout, "stream": bench.stream}
    for name, layout in layouts.items():
        _run_for(layout, arguments.seconds / 4)
        with envs.profile() as profiler:
            bench.acting = profiler.inference
            _run_for(layout, arguments.seconds)
        bench.acting = nullcontext
        assert profiler.result is not None
        yield name, profiler.result


def _run_for(layout: Callable[[], Iterator[None]], seconds: float) -> None:
    running, until = layout(), time.perf_counter() + seconds
    for _ in running:
        if time.perf_counter() > until:
            break
    running.close()  # type: ignore[attr-defined]
