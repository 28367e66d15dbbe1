"""Other libraries, each with a virtual environment and a script of its own in ``peers/``."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fresh_process import THREAD_LIMITS, MeasurementError
from rollout_tasks import RolloutTask

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

    def measure(self, task: RolloutTask, timeout_s: float) -> dict[str, Any]:
        """What its script prints: the rate and the versions."""
        command = [self.python, SCRIPTS / self.script, task.to_json(), *self.arguments]
        process = subprocess.Popen(
            command,
            env={**os.environ, **dict.fromkeys(THREAD_LIMITS, "1")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # So that it can be ended with all its children.
        )
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"no result within {timeout_s:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            raise MeasurementError(f"{self.script} failed:\n{err[-2000:]}")
        result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return result


PEERS = {
    "rllib": Peer(".venv-rllib", "rllib_rollout.py"),
    "torchrl": Peer(".venv-torchrl", "torchrl_rollout.py", ("serial",)),
    "torchrl-vector": Peer(".venv-torchrl", "torchrl_rollout.py", ("vector",)),
}
