"""What a solver is asked for, and how it tells how far it has come.

A solver is a script: ``python SCRIPT '{"env": …, "seed": …}'``. It prints a line of JSON now and
then, ``{"seconds": …, "steps": …, "mean": …}``, and ends once the mean return of the last 100
episodes has reached the goal. Its clock starts before its envs are made and after its imports.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

EPISODES = 100
TARGETS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
SAY_EVERY_S = 1.0


@dataclass(frozen=True)
class Goal:
    """An env, the mean return at which it counts as solved, and the seed of the run."""

    env: str
    seed: int
    options: tuple[str, ...] = ()
    """Words that choose between variants of one solver."""

    @property
    def target(self) -> float:
        """The mean return of 100 episodes that solves the env."""
        return TARGETS[self.env]

    @classmethod
    def from_arguments(cls) -> "Goal":
        """What the command line asks for."""
        fields = json.loads(sys.argv[1])
        return cls(fields["env"], fields["seed"], tuple(fields.get("options", ())))

    def to_json(self) -> str:
        """What :meth:`from_arguments` reads."""
        return json.dumps({"env": self.env, "seed": self.seed, "options": self.options})


class Way:
    """How far a run has come; make it when training starts."""

    def __init__(self, goal: Goal) -> None:
        self._target = goal.target
        self._started = self._said = time.monotonic()
        self._recent: deque[float] = deque(maxlen=EPISODES)
        self.steps = 0
        self.is_solved = False

    def has_done(self, steps: int, returns: Iterable[float]) -> bool:
        """Whether the goal is reached, after so many more steps and these ended episodes."""
        self.steps += steps
        for one in returns:
            self._recent.append(float(one))
            if len(self._recent) == EPISODES and self._mean() >= self._target:
                self.is_solved = True
        if self.is_solved or time.monotonic() - self._said > SAY_EVERY_S:
            self._say()
        return self.is_solved

    def _mean(self) -> float:
        return sum(self._recent) / len(self._recent) if self._recent else float("nan")

    def _say(self) -> None:
        self._said = time.monotonic()
        seconds = self._said - self._started
        line = {"seconds": seconds, "steps": self.steps, "mean": self._mean()}
        print(json.dumps({**line, "solved": self.is_solved}), flush=True)
