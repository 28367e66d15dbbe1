"""Draws the pictures of `top`, `view` and `bench` in this folder, from real runs: `make pictures`.

That of `view` takes Chromium and some minutes: the run learns to land.
"""

import argparse
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import numpy as np

from clusterenv import AdaptiveSync, ClusterEnv, LocalLauncher
from clusterenv.status.channel import Run, fetch, runs
from clusterenv.tools.bench import add_arguments, measure
from clusterenv.tools.bench_policy import bench_policy
from clusterenv.tools.profile_table import profile_table, recommend
from clusterenv.tools.run_table import run_table
from clusterenv.tools.tables import Table
from clusterenv.tools.terminal import save_picture

HERE = Path(__file__).parent
ENV = "LunarLander-v3"
# The page without the name of the machine that draws.
NAMELESS = r"""name => {
    const rename = () => {
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const node = walker.currentNode;
            const text = node.data.replace(new RegExp(`\\b${name}\\b`, "g"), "node1");
            if (text !== node.data) node.data = text;
        }
    };
    new MutationObserver(rename).observe(document.body, { childList: true, subtree: true });
    rename();
}"""


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


def draw_view(seconds=180.0):
    """The page of `make demo` after a while, in which a worker was lost."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        demo = [sys.executable, str(HERE.parents[1] / "examples" / "demo.py"), "--out", folder]
        with subprocess.Popen(demo, stdout=subprocess.DEVNULL) as head:
            run = wait_for_run(head.pid)
            command = [sys.executable, "-m", "clusterenv", "view", run.id]
            with (
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as view,
                sync_playwright() as playwright,
            ):
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                page = browser.new_page(viewport={"width": 1200, "height": 800})
                page.goto(view.stdout.readline().split()[-1])
                page.wait_for_timeout(600 * seconds)
                os.kill(fetch(run).hosts[0].workers[0].pid, signal.SIGKILL)
                page.wait_for_timeout(400 * seconds)
                page.evaluate(NAMELESS, fetch(run).machine)
                data = page.screenshot(full_page=True)
                browser.close()
                view.send_signal(signal.SIGINT)
            head.kill()
    # A palette is enough, and half the bytes.
    picture = Image.open(io.BytesIO(data)).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
    picture.save(HERE / "view.png", optimize=True)


def wait_for_run(pid):
    while not (found := [run for run in runs() if run.pid == pid]):
        time.sleep(0.1)
    return found[0]


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
    for one in sys.argv[1:] or ("top", "view", "bench"):
        globals()[f"draw_{one}"]()
