"""Bounded waits: for a condition, for a call, for processes to appear or to go."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

DEADLINE_S = 20.0


def eventually(condition, deadline_s=DEADLINE_S):
    """Whether `condition()` became true before the deadline."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def within(seconds, call):
    """What `call()` returns or raises; the test fails if it takes longer than `seconds`."""
    outcome = {}

    def run():
        try:
            outcome["value"] = call()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        pytest.fail(f"no answer within {seconds} s")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def is_alive(pid):
    """Whether the process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def kill(pid):
    """End a process with -9 and wait until it has ended."""
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not is_alive(pid))


MARK = "CLUSTERENV_TEST_MARK"


def marked_processes(mark):
    """The running processes that were started with `MARK=mark`, and all that they started."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _has(pid, wanted)]


def _has(pid, wanted):
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return wanted in environment.split(b"\0") and is_alive(pid)
