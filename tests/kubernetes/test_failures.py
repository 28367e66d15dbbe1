"""Hosts that cannot start: the error has the cluster's own words, and nothing is left."""

import base64
import json

import pytest

from clusterenv import ClusterEnv, Limits, StartupError
from tests.environments.counting import Count
from tests.integration.polling import eventually
from tests.kubernetes.kubelet import NO_IMAGE

pytestmark = [pytest.mark.usefixtures("kubelet"), pytest.mark.timeout(300)]
QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: small}
spec: {hard: {pods: "0"}}
"""
NOBODY = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: nobody}
"""


def error_of(namespace, startup_timeout_s=15.0, **options):
    """What a run with such a launcher fails with."""
    with pytest.raises(StartupError) as caught:
        ClusterEnv(
            Count,
            2,
            launcher=namespace.launcher(**options),
            limits=Limits(startup_timeout_s=startup_timeout_s),
        )
    assert eventually(namespace.is_empty, 60.0)
    print(caught.value)
    return str(caught.value)


def test_pods_that_fit_nowhere(namespace):
    assert "cannot be scheduled: Unschedulable: 0/1 nodes are available" in error_of(
        namespace, cpus_per_host=1000
    )


def test_nodes_that_do_not_exist(namespace):
    assert "cannot be scheduled" in error_of(namespace, node_selector={"disk": "gold"})


def test_an_image_that_does_not_exist(namespace):
    assert f"waits: ErrImagePull: {NO_IMAGE}: not found" in error_of(namespace, image=NO_IMAGE)


def test_an_image_without_python(namespace):
    text = error_of(namespace, 120.0, python="pyhton")
    assert "(exit code 127" in text
    assert "pyhton: not found" in text


def test_an_image_without_clusterenv(namespace):
    # The harness lets all Pythons of this machine find the package that is under test.
    without = {"PYTHONPATH": ""}
    text = error_of(namespace, 120.0, python="/usr/bin/python3", environment=without)
    assert "No module named clusterenv" in text


def test_a_quota_that_is_used_up(namespace):
    namespace.kubectl("apply", "--filename=-", input=QUOTA)
    assert eventually(lambda: "hard" in namespace.get("resourcequotas")[0].get("status", {}), 30.0)
    text = error_of(namespace)
    assert "there is no pod for it yet: FailedCreate" in text
    assert "exceeded quota: small" in text


def test_a_priority_class_that_does_not_exist(namespace):
    text = error_of(namespace, priority_class="royal")
    assert "no PriorityClass with name royal" in text


def test_what_the_api_server_refuses(namespace):
    text = error_of(namespace, memory_per_host="much")
    assert "cannot create a Job for hosts" in text
    assert "quantities must match" in text


def test_an_account_that_may_do_nothing(namespace, plane, tmp_path):
    namespace.kubectl("apply", "--filename=-", input=NOBODY)
    assert eventually(lambda: tokens_of(namespace, "nobody"), 30.0)
    plane.write_kubeconfig(tmp_path / "config", tokens_of(namespace, "nobody")[0], namespace.name)
    launcher = namespace.launcher()
    launcher._cluster = namespace.name, None, tmp_path / "config"
    with pytest.raises(StartupError, match=r"cannot create resource .*secrets"):
        ClusterEnv(Count, 2, launcher=launcher)


def tokens_of(namespace, account):
    found = json.loads(namespace.kubectl("get", "secrets", "--output=json"))["items"]
    name = "kubernetes.io/service-account.name"
    theirs = [one for one in found if one["metadata"].get("annotations", {}).get(name) == account]
    return [base64.b64decode(one["data"]["token"]).decode() for one in theirs]
