"""A head that is a pod itself, with the rights that the documentation gives it."""

import json
import re
from pathlib import Path

import pytest

from tests.integration.polling import eventually, kill

DOCS = Path(__file__).parents[2] / "docs" / "kubernetes.md"
pytestmark = [pytest.mark.usefixtures("kubelet"), pytest.mark.timeout(300)]
SCRIPT = """
import time
from clusterenv import ClusterEnv, KubernetesLauncher

launcher = KubernetesLauncher("rl", hosts=2, cpus_per_host=0.1)
with ClusterEnv("CartPole-v1", 4, launcher=launcher) as envs:
    envs.reset(seed=0)
    envs.step(envs.action_space.sample())
    print("stepped", flush=True)
    time.sleep({seconds})
print("closed", flush=True)
"""


def documented(kind):
    """The YAML block of the documentation that has such an object."""
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return next(block for block in blocks if f"kind: {kind}\n" in block)


def start_head(namespace, seconds):
    namespace.kubectl("apply", "--filename=-", input=documented("Role"))
    assert eventually(lambda: "secrets" in namespace.get("serviceaccounts")[-1], 30.0)
    container = {
        "name": "head",
        "image": "rl",
        "command": ["python", "-c", SCRIPT.format(seconds=seconds)],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "head"},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "serviceAccountName": "clusterenv-head",
        },
    }
    namespace.kubectl("apply", "--filename=-", input=json.dumps(pod))


def printed(namespace, text):
    assert eventually(lambda: text in log_of_head(namespace), 120.0), log_of_head(namespace)


def log_of_head(namespace):
    try:
        return namespace.kubectl("logs", "head")
    except RuntimeError as error:
        return str(error)


def test_the_documented_rights_are_enough(namespace):
    start_head(namespace, 0)
    printed(namespace, "closed")
    assert "Warning" not in log_of_head(namespace)
    namespace.kubectl("delete", "pod", "head")
    assert eventually(namespace.is_empty, 60.0)


def test_nothing_outlives_the_pod_of_the_head(namespace, kubelet):
    start_head(namespace, 600)
    printed(namespace, "stepped")
    kill(kubelet.process_of("head"))
    namespace.kubectl("delete", "pod", "head")
    assert eventually(namespace.is_empty, 60.0)
    assert eventually(lambda: not kubelet.running, 60.0)


def test_the_documented_service_is_valid(namespace):
    namespace.kubectl("apply", "--filename=-", input=documented("Service"))
