"""Where workers share their cores with the head, the kernel prefers the head."""

import ctypes
import os
import platform
import struct
import subprocess
import sys

import pytest

from clusterenv import ClusterEnv
from tests.integration.envs import Walk

_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}.get(platform.machine())

pytestmark = pytest.mark.skipif(
    not hasattr(os, "SCHED_BATCH"), reason="this system has no such policies"
)


def turn_ns():
    """The length of this process's turns; 0 where the kernel knows of none."""
    if _SCHED_GETATTR is None:
        return 0
    attributes = ctypes.create_string_buffer(48)
    ctypes.CDLL(None).syscall(_SCHED_GETATTR, 0, attributes, 48, 0)
    return struct.unpack("=IIQiIQQQ", attributes.raw)[5]


class Scheduled(Walk):
    """A walk that knows what the kernel makes of its process."""

    def policy(self):
        return os.sched_getscheduler(0)

    def turn_ns(self):
        return turn_ns()


def test_workers_let_the_head_go_first():
    with ClusterEnv(Scheduled, 2, 2) as envs:
        assert envs.call("policy") == (os.SCHED_BATCH,) * 2
        # 0: before Linux 6.12.
        assert all(turn > 2 * turn_ns() or turn == 0 for turn in envs.call("turn_ns"))
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_worker_stays_as_nice_as_it_is():
    code = (
        "import os; from clusterenv.worker.turns import let_others_go_first; "
        "os.nice(3); let_others_go_first(); print(os.nice(0))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.stdout == f"{os.nice(0) + 3}\n", said.stderr
