"""A head in a project of its own, and workers that cannot see the head's files.

Each worker has a mount namespace in which an empty folder covers the head's: for it the user's
files do not exist, as on another machine.
"""

import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.integration.polling import eventually

_UNSHARE = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _command(hidden, command):
    hide = f"mount -t tmpfs none {shlex.quote(str(hidden))}"
    return [*_UNSHARE, "sh", "-c", f"{hide} && exec {shlex.join(command)}"]


class Project:
    """Files of a user, a script among them that makes a ClusterEnv with `launcher`."""

    def __init__(self, folder):
        self.hidden = Path(folder) / "head"
        self.folder = self.hidden / "project"
        self.key_file = Path(folder) / "key"
        self.elsewhere = Path(folder) / "elsewhere"
        self._worker_environment = dict(_ENVIRONMENT)
        self.folder.mkdir(parents=True)
        self.elsewhere.mkdir()
        test = subprocess.run(_command(self.hidden, ["true"]), check=False, capture_output=True)
        if test.returncode != 0:
            pytest.skip(f"needs a mount namespace: {test.stderr.decode()}")

    def write(self, **files):
        """`pkg___module="…"` becomes `pkg/module.py`."""
        for name, source in files.items():
            path = self.folder / f"{name.replace('___', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(source))

    def hide_package(self, name):
        """Let workers be without an installed package."""
        self.customize_worker(
            f"""
            import sys

            class Hidden:
                def find_spec(name, path=None, target=None):
                    if name == {name!r}:
                        raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

            sys.meta_path.insert(0, Hidden)
            """
        )

    def customize_worker(self, source):
        """Let workers run this first."""
        folder = self.elsewhere / "hook"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(textwrap.dedent(source))
        self._worker_environment["PYTHONPATH"] = str(folder)

    def run(self, script, num_workers=1, launcher="attach", hide=True):
        """Run the script as the head, with workers elsewhere; its output, and its errors."""
        made = {
            "attach": f"AttachLauncher({str(self.key_file)!r}, towards='127.0.0.1')",
            "local": "LocalLauncher()",
        }[launcher]
        preamble = f"""\
            from clusterenv import ClusterEnv
            from clusterenv.launchers.attach import AttachLauncher
            from clusterenv.launchers.local import LocalLauncher
            launcher = {made}
        """
        path = self.folder / "train.py"
        path.write_text(textwrap.dedent(preamble) + textwrap.dedent(script))
        head = subprocess.Popen(
            [sys.executable, str(path)],
            cwd=self.folder,
            env=_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        workers = []
        try:
            if launcher == "attach":
                ready = lambda: self.key_file.exists() or head.poll() is not None  # noqa: E731
                assert eventually(ready, 60.0)
                workers = [self._start_worker(hide) for _ in range(num_workers)]
            return head.communicate(timeout=90.0)
        finally:
            for process in [head, *workers]:
                process.kill()
                process.wait()

    def _start_worker(self, hide):
        command = [sys.executable, "-m", "clusterenv", "worker", "--key-file", str(self.key_file)]
        return subprocess.Popen(
            _command(self.hidden, command) if hide else command,
            cwd=self.elsewhere,
            env=self._worker_environment,
        )
