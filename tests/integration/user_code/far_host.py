"""A head in a project of its own, and hosts that cannot see the head's files.

Each host has a mount namespace in which an empty folder covers the head's: for it the user's
files do not exist, as on another machine.
"""

import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import clusterenv
from tests.integration.polling import eventually

_UNSHARE = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
# This very package, and nothing else of whoever runs the tests.
_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(clusterenv.__file__).parents[1])}


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
        self._host_environment = dict(_ENVIRONMENT)
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
        """Let hosts be without an installed package."""
        self.customize_host(
            f"""
            import sys

            class Hidden:
                def find_spec(name, path=None, target=None):
                    if name == {name!r}:
                        raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

            sys.meta_path.insert(0, Hidden)
            """
        )

    def customize_host(self, source):
        """Let hosts and their workers run this first."""
        folder = self.elsewhere / "hook"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(textwrap.dedent(source))
        self._host_environment["PYTHONPATH"] += f"{os.pathsep}{folder}"

    def run(self, script, num_hosts=1, launcher="attach", hide=True):
        """Run the script as the head, with hosts elsewhere; its output, and its errors."""
        made = {
            "attach": f"AttachLauncher({str(self.key_file)!r}, {num_hosts}, towards='127.0.0.1')",
            "local": "LocalLauncher()",
            "hosts": "LocalLauncher(hosts=2)",
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
        hosts = []
        try:
            if launcher == "attach":
                ready = lambda: self.key_file.exists() or head.poll() is not None  # noqa: E731
                assert eventually(ready, 60.0)
                hosts = [self._start_host(hide) for _ in range(num_hosts)]
            return head.communicate(timeout=90.0)
        finally:
            for process in [head, *hosts]:
                process.kill()
                process.wait()

    def _start_host(self, hide):
        command = [sys.executable, "-m", "clusterenv", "host", "--key-file", str(self.key_file)]
        command += ["--workers", "1"]
        return subprocess.Popen(
            _command(self.hidden, command) if hide else command,
            cwd=self.elsewhere,
            env=self._host_environment,
        )
