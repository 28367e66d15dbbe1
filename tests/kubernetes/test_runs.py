"""Runs on a real control plane, with pods that a stand-in kubelet runs as processes."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterenv import ClusterEnv, Limits
from tests.engines import parity
from tests.engines.checked_runs import Replay
from tests.environments.walks import Placed
from tests.integration.polling import eventually

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.usefixtures("kubelet"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("case", parity.CASES)
def test_the_parity_contract_holds(case, namespace):
    parity.assert_parity(namespace.launcher, case)
    assert eventually(namespace.is_empty, 60.0)


def test_ppo_trains_through_pods(namespace, plane, tmp_path, capsys):
    plane.write_kubeconfig(tmp_path / "kubeconfig", plane.token, namespace.name)
    arguments = ["--env-id", "CartPole-v1", "--num-envs", "16"]
    learning = ["--total-steps", "150_000", "--target-return", "200", "--reward-scale", "1"]
    rates = ["--gamma", "0.99", "--learning-rate", "1e-3", "--num-minibatches", "8"]
    out = subprocess.run(
        [
            *(sys.executable, "-W", "default", ROOT / "examples" / "ppo.py"),
            *("--launcher", "kubernetes", *arguments, *learning, *rates),
            *("--out", str(tmp_path / "runs")),
        ],
        env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "IMAGE": "rl", "NODES": "2"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert out.returncode == 0, out.stderr
    with capsys.disabled():
        print("", *out.stdout.splitlines()[-4:], sep="\n    ")
    assert float(re.search(r"mean return ([\d.]+) over", out.stdout).group(1)) > 150
    assert eventually(namespace.is_empty, 60.0)


def test_while_it_runs_there_is_a_job_a_secret_and_a_pod_per_host(namespace, kubelet):
    launcher = namespace.launcher(name="walks")
    with ClusterEnv(Placed, 4, launcher=launcher) as envs:
        (job,), (secret,) = namespace.get("jobs"), namespace.get("secrets")
        pods = namespace.get("pods")
        assert {pod["metadata"]["name"] for pod in pods} == set(envs.call("host"))
        assert job["spec"]["parallelism"] == 2
        assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
        ticket = json.loads(base64.b64decode(secret["data"]["key"]))
        seen = str(pods) + str(job) + str(namespace.get("events"))
        seen += "".join(kubelet.log_of(pod).read_text() for pod in set(envs.call("host")))
        seen += subprocess.check_output(["ps", "-eww", "-o", "args"], text=True)
        assert "clusterenv host" in seen
        assert ticket["secret_key"] not in seen
        # Each host has told which pod it is in: `pod NAME on node …`.
        pod_by_host = {host: how.reason.split()[1] for host, how in launcher.status().items()}
        first, *_, last = envs.call("host")
        assert pod_by_host == {"host-0.0": first, "host-1.0": last}
    assert eventually(namespace.is_empty, 60.0)


def test_kubectl_takes_what_the_launcher_shows(namespace):
    text = namespace.launcher(cpus_per_host=1000, name="shown").manifests()
    namespace.kubectl("apply", "--filename=-", input=text)
    assert eventually(lambda: len(namespace.get("pods")) == 2)
    namespace.kubectl("delete", "--filename=-", input=text)
    assert eventually(namespace.is_empty, 60.0)


def test_a_run_of_hosts_that_come_late_begins_with_those_that_are_there(namespace):
    launcher = namespace.launcher(cpus_per_host=5)
    limits = Limits(startup_timeout_s=60)
    with ClusterEnv(Placed, 4, launcher=launcher, min_hosts=1, limits=limits) as envs:
        replay = Replay(envs)
        replay.rollout()
        assert len(set(envs.call("host"))) == 1
