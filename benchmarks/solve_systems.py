"""The ways to train that ``time_to_solve.py`` compares, and what is kept of a run."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOLVED, SPENT, GIVEN_UP = "solved", "budget spent", "given up"


@dataclass(frozen=True)
class System:
    """A way to train: a script of ``solvers/``, and the Python that runs it."""

    label: str
    script: str
    options: tuple[str, ...] = ()
    venv: str = ""
    colour: str = "grey"

    @property
    def python(self) -> Path:
        """Its interpreter: this one, or that of a peer."""
        return ROOT / self.venv / "bin" / "python" if self.venv else Path(sys.executable)


SYSTEMS = {
    "clusterenv": System("ClusterEnv, `examples/ppo.py`", "with_clusterenv.py", colour="C0"),
    "ahead": System(
        "ClusterEnv, `examples/ppo.py --ahead`", "with_clusterenv.py", ("ahead",), colour="C9"
    ),
    "sb3-clusterenv": System(
        "Stable-Baselines3 on our adapter", "with_sb3.py", ("clusterenv",), colour="C4"
    ),
    "sb3": System("Stable-Baselines3, SubprocVecEnv", "with_sb3.py", colour="C1"),
    "async": System("CleanRL's way, AsyncVectorEnv", "with_async_vector_env.py", colour="C2"),
    "rllib": System("RLlib", "with_rllib.py", venv=".venv-rllib", colour="C3"),
}


@dataclass
class Run:
    """One system, one env, one seed; the last point is where it was solved or given up."""

    env: str
    system: str
    seed: int
    outcome: str = "no word"
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    """Seconds of training, env steps, and the mean return of the last 100 episodes."""
    wall_s: float = 0.0
    """From its start to its end, with imports."""
    limit_s: float = 0.0
    """After so many seconds of training it was to be given up."""

    @property
    def key(self) -> tuple[str, str, int]:
        """There is one of each."""
        return self.env, self.system, self.seed

    @property
    def seconds(self) -> float:
        """Until solved, or until it ended."""
        return self.curve[-1][0] if self.curve else float("nan")

    @property
    def steps(self) -> int:
        """Env steps until then."""
        return self.curve[-1][1] if self.curve else 0

    @property
    def is_solved(self) -> bool:
        """Whether the goal was reached."""
        return self.outcome == SOLVED

    @property
    def is_valid(self) -> bool:
        """Whether it says something of the system: it was not broken off, and did not fail."""
        return self.outcome in (SOLVED, SPENT, GIVEN_UP)

    def is_enough(self, limit_s: float) -> bool:
        """Whether it need not be run again with this limit."""
        return self.is_valid and (self.outcome != GIVEN_UP or self.limit_s >= limit_s)
