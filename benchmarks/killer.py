"""A thread that ends worker and host processes at any moment, in several ways."""

import os
import queue
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from leftovers import descendants

# SIGTERM asks to leave; who is stopped is found out by a time-out.
_SIGNALS = {signal.SIGKILL: 0.88, signal.SIGSEGV: 0.07, signal.SIGTERM: 0.04, signal.SIGSTOP: 0.01}
_MEAN_GAPS_S = (0.001, 0.01, 0.05, 0.2)
_AT_ONCE = (1, 2, 4, 10, 30)
_HOST_SHARE = 0.05
_PATIENCE_S = 5.0


class Killer(threading.Thread):
    """Ends processes that this one has started, a few at a time, when it is allowed to."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self._random, self._delays = random.Random(seed), queue.Queue[float | None]()
        self._is_allowed = False
        self.at_work: set[int] = set()
        """Workers whose rows were seen lately."""
        self.kills: Counter[str] = Counter()
        """By what was ended, and how."""

    @property
    def is_busy(self) -> bool:
        """Whether there are kills to come."""
        return self._delays.unfinished_tasks > 0

    @property
    def total(self) -> int:
        """How many processes were ended."""
        return self.kills["worker"] + self.kills["host"]

    def allow(self, most: int) -> None:
        """A few more, one after the other."""
        self._is_allowed = True
        mean_s = self._random.choice(_MEAN_GAPS_S)
        for _ in range(min(most, self._random.choice(_AT_ONCE))):
            self._delays.put(self._random.expovariate(1 / mean_s))

    def calm_down(self) -> None:
        """No more for now; waits until that is so."""
        self._is_allowed = False
        self._delays.join()

    def run(self) -> None:
        """Kill as allowed, until :meth:`stop`."""
        while (delay_s := self._delays.get()) is not None:
            threading.Event().wait(delay_s if self._is_allowed else 0.0)
            # Those who were killed last may not have been replaced yet.
            deadline = time.monotonic() + _PATIENCE_S
            while self._is_allowed and not self._kill_one() and time.monotonic() < deadline:
                threading.Event().wait(0.01)
            self._delays.task_done()

    def stop(self) -> None:
        """No more; waits for what is under way."""
        self._delays.put(None)
        self.join()

    def _kill_one(self) -> bool:
        workers, hosts = self._victims()
        is_host = bool(hosts) and self._random.random() < _HOST_SHARE
        if not (hosts if is_host else workers):
            return False
        pid = self._random.choice(hosts if is_host else workers)
        how = self._random.choices(list(_SIGNALS), list(_SIGNALS.values()))[0]
        if how is signal.SIGSTOP and pid not in self.at_work:
            how = signal.SIGKILL  # else it would be waited for until restart_timeout_s
        with suppress(ProcessLookupError):
            os.kill(pid, how)
            self.kills.update(["host" if is_host else "worker", how.name])
            self.kills["at work"] += pid in self.at_work
            return True
        return False

    def _victims(self) -> tuple[list[int], list[int]]:
        workers, hosts = [], []
        for pid in sorted(descendants(os.getpid())):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"clusterenv.worker.main" in command:
                    workers.append(pid)
                elif command[1:4] == [b"-m", b"clusterenv", b"host"]:
                    hosts.append(pid)
        return workers, hosts
