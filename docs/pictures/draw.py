"""Draws the pictures of `top` and `bench` in this folder, from real runs: `make pictures`."""

import argparse
import os
import threading
import time
from pathlib import Path

import msgspec
import numpy as np

from clusterenv import AdaptiveSync, ClusterEnv, LocalLauncher
from clusterenv.status.channel import Run, fetch
from clusterenv.tools.bench import add_arguments, measure
from clusterenv.tools.bench_policy import bench_policy
from clusterenv.tools.profile_table import profile_table, recommend
from clusterenv.tools.run_table import run_table
from clusterenv.tools.tables import Table
from clusterenv.tools.terminal import save_picture

HERE = Path(__file__).parent
ENV = "LunarLander-v3"


def nameless(status):
    """The same without the name of the machine that draws."""
    hosts = tuple(
        msgspec.structs.replace(host, machine=f"node{number}")
        for number, host in enumerate(status.hosts, 1)
    )
    return msgspec.structs.replace(status, machine="node1", hosts=hosts)


def draw_top(seconds=6.0):
    sync, launcher = AdaptiveSync(threshold=0.002, max_lag=16), LocalLauncher(hosts=2)
    with ClusterEnv(ENV, 64, 4, sync=sync, launcher=launcher) as envs:
        policy = bench_policy(envs.single_observation_space, envs.single_action_space, 64)
        run, snapshots = Run(envs.run_id, os.getpid()), []

        def look():
            for _ in range(2):
                time.sleep(seconds / 2)
                snapshots.append(fetch(run))

        looking = threading.Thread(target=look)
        looking.start()
        while looking.is_alive():
            envs.rollout(policy, 32)
            # Learning, as far as the sync rule can tell.
            learnt = {"2": policy.weights()["2"] * np.float32(1.02)}
            policy.load({**policy.weights(), **learnt})
    before, now = map(nameless, snapshots)
    save_picture([run_table(before, now)], "python -m clusterenv top", HERE / "top.svg")


def draw_bench():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args([ENV, "--learner-ms", "50"])
    with ClusterEnv(ENV, arguments.num_envs, arguments.num_workers) as envs:
        profiles = dict(measure(envs, arguments))
    table = profile_table(ENV, profiles)
    notes = [f"-> {line}" for line in recommend(profiles)]
    table = Table(table.title, table.headings, table.rows, notes)
    save_picture([table], f"python -m clusterenv bench {ENV}", HERE / "bench.svg", width=130)


if __name__ == "__main__":
    draw_top()
    draw_bench()
