"""Workers that a test starts by hand on hosts, each with the key file that the head wrote."""

import os
import subprocess
import sys

from clusterenv.launchers.attach import AttachLauncher


class Joined:
    """A worker started by hand, and what it prints."""

    def __init__(self, host, key_file, folder, *options):
        self.host = host
        self._log = folder / f"{host.name}-{len(list(folder.iterdir()))}.log"
        argv = [sys.executable, "-m", "clusterenv", "worker", "--key-file", str(key_file)]
        with self._log.open("wb") as log:
            self.process = host.popen(
                [*argv, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Nobody answers questions for names there.
                env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"},
            )

    @property
    def log(self):
        return self._log.read_text()

    def wait(self, seconds=30.0):
        """Its exit code."""
        return self.process.wait(seconds)

    @property
    def workers(self):
        """The process that works; the other one only starts it again."""
        parent = self.process.pid
        found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]


class HandStarted(AttachLauncher):
    """Starts workers on these hosts as soon as the key file is there."""

    def __init__(self, key_file, hosts, *options, towards=None):
        super().__init__(key_file, towards or hosts[0].address)
        self._hosts, self._options = hosts, options
        self.joined = []

    def start(self, orders):
        super().start(orders)
        if not self.joined:
            self.join(*self._hosts)

    def join(self, *hosts):
        """Start one more worker on each of these hosts."""
        folder = self.key_file.parent
        self.joined += [Joined(host, self.key_file, folder, *self._options) for host in hosts]
        return self.joined[-1]
