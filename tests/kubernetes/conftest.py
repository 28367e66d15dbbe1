"""A control plane, a stand-in node, and a namespace for each test."""

import json
import uuid

import pytest

from clusterenv import KubernetesLauncher
from tests.engines.harness import why_not_here
from tests.integration.polling import eventually
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.kubelet import Kubelet


@pytest.fixture(scope="session")
def plane():
    if why_not_here():
        pytest.skip(why_not_here())
    with ControlPlane() as plane:
        yield plane


@pytest.fixture(scope="session")
def kubelet(plane):
    with Kubelet(plane) as kubelet:
        yield kubelet


class Namespace:
    """One of the test's own."""

    def __init__(self, plane):
        self.plane, self.name = plane, f"test-{uuid.uuid4().hex[:8]}"
        plane.kubectl("create", "namespace", self.name)
        # Pods are refused until it is there.
        assert eventually(lambda: self.get("serviceaccounts"), 60.0)

    def kubectl(self, *arguments, **options):
        return self.plane.kubectl(*arguments, namespace=self.name, **options)

    def get(self, kind, *options):
        """All objects of a kind, but for what Kubernetes itself keeps in each namespace."""
        found = json.loads(self.kubectl("get", kind, "--output=json", *options))["items"]
        if kind == "secrets":
            return [one for one in found if one["type"] == "Opaque"]
        return found

    def is_empty(self):
        return not any(self.get(kind) for kind in ("jobs", "pods", "secrets"))

    def launcher(self, image="clusterenv-host", **options):
        options = {"hosts": 2, "cpus_per_host": 0.1, "namespace": self.name, **options}
        return KubernetesLauncher(image, kubeconfig=self.plane.kubeconfig, **options)


@pytest.fixture
def namespace(plane):
    namespace = Namespace(plane)
    yield namespace
    plane.kubectl("delete", "namespace", namespace.name, "--wait=false")
