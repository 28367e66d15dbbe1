"""Opening and closing again and again: nothing grows."""

import gc
import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from tests.environments.vectors import actions_for, cluster, walks

NUM_ENVS = 4
CYCLES = {"shared_memory": 20, "tcp": 8}
WARM_UP = 3
MAX_GROWTH_BYTES = 16 << 20


def cycle(transport):
    envs = cluster(walks(NUM_ENVS), transport)
    envs.reset(seed=0)
    for number in range(3):
        envs.step(actions_for(NUM_ENVS, number))
    envs.close()


def children():
    """The child processes of this one, zombies too."""
    tasks = Path("/proc/self/task").iterdir()
    return sorted(pid for task in tasks for pid in (task / "children").read_text().split())


def usage():
    """What must not grow: by name, so that a failure says what did."""
    gc.collect()
    return {
        "children": children(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "shm": [name for name in os.listdir("/dev/shm") if "clusterenv" in name],
        "tasks": len(os.listdir("/proc/self/task")),
    }


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("transport", CYCLES)
def test_nothing_grows_over_cycles_of_open_and_close(transport, own_tmp):
    for _ in range(WARM_UP):
        cycle(transport)
    before, resident = usage(), resident_bytes()
    for _ in range(CYCLES[transport]):
        cycle(transport)
    assert usage() == before
    assert list(own_tmp.iterdir()) == []
    assert resident_bytes() - resident < MAX_GROWTH_BYTES


def test_stepping_does_not_use_up_memory():
    num_envs, steps = 64, 1500
    with cluster(walks(num_envs), num_workers=1) as envs:
        envs.reset(seed=0)
        actions = actions_for(num_envs)
        for _ in range(50):
            envs.step(actions)
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(steps):
                envs.step(actions)
            gc.collect()
            grown_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # One pointer per slot and step would be 768 kB.
    assert grown_bytes < 200_000
