"""Ends the jobs of a head that was killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from clusterenv.launchers.slurm.commands import cancel_script


class Keeper:
    """Ends the jobs of a head that was killed, pending ones too, and removes their logs.

    It is a shell that reads job ids from a pipe until all possible writers are gone: the head, and
    each sbatch under way, which may outlive the head and writes the id of its job itself. ``ear``
    is the end to write to, one line per job.
    """

    def __init__(self, log_dir: Path | None) -> None:
        self._temporary = _temporary_folder() if log_dir is None else None
        self.folder = log_dir if log_dir is not None else self._temporary
        if log_dir is not None:
            log_dir.mkdir(parents=True, exist_ok=True)
        script = (
            # `5;cluster` is job 5.
            'while read -r job; do jobs="$jobs ${job%%;*}"; done; '
            f'[ -z "$jobs" ] || {cancel_script("$jobs")}; [ -z "$1" ] || rm -rf "$1"'
        )
        # The head reads nothing, but a pipe without a reader would block or end its writers.
        self._heard, self.ear = os.pipe()
        self._process = subprocess.Popen(
            ["sh", "-c", script, "sh", str(self._temporary or "")],
            stdin=self._heard,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal is for the head.
            start_new_session=True,
        )

    def close(self) -> None:
        """Dismiss the keeper: the head has ended its jobs itself."""
        self._process.kill()
        self._process.wait()
        os.close(self._heard)
        os.close(self.ear)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _temporary_folder() -> Path | None:
    """A folder in the home directory, which clusters share; None if there is none."""
    with contextlib.suppress(OSError, RuntimeError):
        cache = Path.home() / ".cache" / "clusterenv"
        cache.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="slurm-", dir=cache))
    return None
