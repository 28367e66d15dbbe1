"""A worker that the kernel kills for lack of memory is reported as such."""

import os
from functools import partial
from pathlib import Path

import pytest

from clusterenv import ClusterEnv, Limits
from clusterenv.errors import WorkerLostError
from tests.environments.counting import Count
from tests.integration.polling import eventually

# The memory controller of cgroups, in the first version or the second.
CONTROLLERS = [
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
]
LIMIT = 100 << 20


class Glutton(Count):
    """Joins a group of processes with little memory, and then wants more."""

    def __init__(self, group):
        super().__init__()
        self._group = group

    def step(self, action):
        (self._group / "cgroup.procs").write_text(str(os.getpid()))
        hoard = bytearray(4 * LIMIT)
        hoard[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(hoard[:: os.sysconf("SC_PAGE_SIZE")])
        return super().step(action)


@pytest.fixture
def group():
    for controller, limit in CONTROLLERS:
        path = controller / f"clusterenv-test-{os.getpid()}"
        try:
            path.mkdir()
            (path / limit).write_text(str(LIMIT))
        except OSError:
            if path.exists():
                path.rmdir()
            continue
        yield path
        assert eventually(lambda: not (path / "cgroup.procs").read_text())
        path.rmdir()
        return
    pytest.skip("limiting the memory of processes needs root and a writable cgroup")


def test_a_worker_that_ran_out_of_memory_is_named(group):
    with ClusterEnv(
        partial(Glutton, group), 2, 1, limits=Limits(max_restarts_per_minute=0)
    ) as envs:
        envs.reset(seed=1)
        with pytest.raises(WorkerLostError, match="killed by SIGKILL: this machine ran out of mem"):
            envs.step(envs.action_space.sample())
