"""A head in a process of its own, for tests that kill it, fork it or let it fail."""

import contextlib
import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

from tests.integration.polling import MARK, eventually, marked_processes

ROOT = Path(__file__).parents[2]
PREAMBLE = """
import os, signal, sys, time, warnings
from functools import partial
import numpy as np
from gymnasium.vector import SyncVectorEnv
from clusterenv import ClusterEnv, Limits
from tests.equality import assert_same
from tests.environments import troubles
from tests.environments.walks import Heavy, Troubled, Walk
from tests.environments.troubles import Gate
SIGN = sys.argv[1]
# Who runs the tests in the background may have switched Ctrl-C off for all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

def say(*words):
    print(*words, flush=True)

def check(envs, oracle, steps):
    for _ in range(steps):
        actions = oracle.action_space.sample()
        assert_same(envs.step(actions), oracle.step(actions))
"""


class HeadScript:
    """Runs a script as a head, with a temporary directory of its own.

    In the script `SIGN` is the path of a file that its envs may make, and `self.sign` here.
    """

    def __init__(self, folder, source, prefix=()):
        self._folder = Path(folder)
        self._mark = uuid.uuid4().hex
        self.sign = self._folder / "sign"
        self.temporary = self._folder / "tmp"
        self.temporary.mkdir()
        script = self._folder / "head.py"
        script.write_text(PREAMBLE + textwrap.dedent(source))
        with self._file("out").open("wb") as out, self._file("err").open("wb") as err:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, str(script), str(self.sign)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
                    "TMPDIR": str(self.temporary),
                    MARK: self._mark,
                },
            )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for pid in [*self.others(), self.process.pid]:
            if self.process.returncode is None or pid != self.process.pid:
                _kill_quietly(pid)
        self.process.wait()

    def _file(self, name):
        return self._folder / f"{name}.txt"

    @property
    def output(self):
        return self._file("out").read_text()

    @property
    def errors(self):
        return self._file("err").read_text()

    def wait_for(self, text):
        """Wait until the script has printed `text`."""
        ended = lambda: self.process.poll() is not None  # noqa: E731
        assert eventually(lambda: text in self.output or ended(), 60.0), self.report()
        assert text in self.output, self.report()

    def wait_for_sign(self):
        """Wait until an env has made the file `SIGN`."""
        assert eventually(self.sign.exists, 60.0), self.report()

    def wait(self):
        """The exit code."""
        assert eventually(lambda: self.process.poll() is not None, 60.0), self.report()
        return self.process.returncode

    def report(self):
        return f"the script printed {self.output!r} and {self.errors}"

    def others(self):
        """Every running process that the script or its workers started."""
        return [pid for pid in marked_processes(self._mark) if pid != self.process.pid]

    def files(self):
        """What lies in the script's temporary directory, and what it left in /dev/shm."""
        left = [path.name for path in self.temporary.iterdir()]
        return left + [name for name in os.listdir("/dev/shm") if "clusterenv" in name]


def _kill_quietly(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)
