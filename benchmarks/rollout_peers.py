"""Other libraries, each with a virtual environment and a script of its own in ``peers/``."""

from dataclasses import dataclass
from pathlib import Path

from rollout_tasks import RolloutTask
from sessions import CommandSession

SCRIPTS = Path(__file__).parent / "peers"
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Peer:
    """How a peer is run."""

    venv: str
    script: str
    arguments: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return ROOT / self.venv / "bin" / "python"

    def reason_not_to_run(self) -> str:
        """Why it cannot be measured here, or nothing."""
        return "" if self.python.exists() else f"not run: no {self.venv}, see peers/install.sh"

    def start(self, task: RolloutTask) -> CommandSession:
        """Its script, which measures the rate and tells the versions."""
        return CommandSession([self.python, SCRIPTS / self.script, task.to_json(), *self.arguments])


PEERS = {
    "rllib": Peer(".venv-rllib", "rllib_rollout.py"),
    "torchrl": Peer(".venv-torchrl", "torchrl_rollout.py", ("serial",)),
    "torchrl-vector": Peer(".venv-torchrl", "torchrl_rollout.py", ("vector",)),
}
