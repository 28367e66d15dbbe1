"""Hosts that a test starts by hand on machines, each with the key file that the head wrote."""

import os
import subprocess
import sys

from clusterenv.launchers.attach import AttachLauncher


class Joined:
    """A host started by hand, and what it prints."""

    def __init__(self, machine, key_file, folder, *options):
        self._log = folder / f"{machine.name}-{len(list(folder.iterdir()))}.log"
        argv = [sys.executable, "-m", "clusterenv", "host", "--key-file", str(key_file)]
        with self._log.open("wb") as log:
            self.process = machine.popen(
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
    def host(self):
        """The process that is the host; the other one only starts it again."""
        parent = self.process.pid
        found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True)
        (pid,) = found.stdout.split()
        return int(pid)


class HandStarted(AttachLauncher):
    """Starts a host on each of these machines as soon as the key file is there."""

    def __init__(self, key_file, machines, *options, hosts=None, towards=None):
        super().__init__(key_file, hosts or len(machines), towards or machines[0].address)
        self._machines, self._options = machines, options
        self.joined = []
        self.enrolments = []
        """(host, whether it was known) of each that was given a name."""

    def enrolled(self, host, place):
        self.enrolments.append((host, host in self._expected))

    def start(self, orders):
        super().start(orders)
        if not self.joined:
            self.join(*self._machines)

    def join(self, *machines):
        """Start one more host on each of these machines."""
        folder = self.key_file.parent
        self.joined += [Joined(one, self.key_file, folder, *self._options) for one in machines]
        return self.joined[-1]
