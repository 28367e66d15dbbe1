"""Hosts in the pods of a Kubernetes Job."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterenv.counts import check_count
from clusterenv.errors import StartupError
from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.kubernetes import manifests as written
from clusterenv.launchers.kubernetes.api import KubernetesApi, KubernetesError
from clusterenv.launchers.kubernetes.manifests import PodRequest
from clusterenv.launchers.kubernetes.run import KubernetesRun
from clusterenv.launchers.parameters import (
    check_environment,
    names_valid_parameters,
)

_log = logging.getLogger("clusterenv")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


class KubernetesLauncher:
    """Runs each host in a pod; one Job keeps as many pods as the run has hosts.

    The head may be in the cluster, in a pod whose service account may create Jobs and Secrets, or
    outside, on a machine that pods can connect to: ``docs/kubernetes.md`` has both. If the head is
    a pod, everything is removed with it. Otherwise :meth:`stop` does that; the hosts of a head that
    was killed end after ``lease_s``, and the cluster removes their Job a minute later.

    Args:
        image: The container image, with clusterenv and what the envs need.
        hosts: How many hosts, each in a pod of its own.
        cpus_per_host: Cores that each requests, and as many workers, such as 16, 0.5 or ``"500m"``;
            None requests none, and runs a worker per core of the node.
        memory_per_host: Memory that each requests and may not exceed, such as ``"32Gi"``.
        gpus_per_host: GPUs that each gets.
        namespace: Where the pods run; by default the head's own, or the context's.
        gpu_resource: What the cluster calls a GPU.
        node_selector: Labels that the nodes must have.
        tolerations: Taints to tolerate. This and the next two are in Kubernetes' own words.
        volumes: Volumes of the pod.
        volume_mounts: Where the container sees them.
        service_account: The account that pods run under.
        priority_class: The priority class of the pods.
        image_pull_secrets: Names of Secrets that give access to the image's registry.
        image_pull_policy: ``"Always"``, ``"IfNotPresent"`` or ``"Never"``.
        environment: More environment variables for the workers.
        python: The interpreter in the image.
        labels: More labels on everything.
        annotations: Annotations on the pods.
        run_as_user: The user id that hosts run under; by default the image's, which must then be
            root.
        pod_spec: Anything else of a pod's specification, such as ``{"affinity": {…}}``.
        name: What the names of a run's Job, pods and Secret begin with.
        context: The context of the kubeconfig file; by default the current one.
        kubeconfig: That file; by default ``$KUBECONFIG`` or ``~/.kube/config``.
    """

    trusted = False
    enrols = True
    watch_every_s = 2.0

    @names_valid_parameters
    def __init__(
        self,
        image: str,
        *,
        hosts: int = 1,
        cpus_per_host: float | str | None = 1,
        memory_per_host: str | None = None,
        gpus_per_host: int = 0,
        namespace: str | None = None,
        gpu_resource: str = "nvidia.com/gpu",
        node_selector: Mapping[str, str] | None = None,
        tolerations: Sequence[Mapping[str, Any]] = (),
        volumes: Sequence[Mapping[str, Any]] = (),
        volume_mounts: Sequence[Mapping[str, Any]] = (),
        service_account: str | None = None,
        priority_class: str | None = None,
        image_pull_secrets: Sequence[str] = (),
        image_pull_policy: str | None = None,
        environment: Mapping[str, str] | None = None,
        python: str = "python",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        run_as_user: int | None = None,
        pod_spec: Mapping[str, Any] | None = None,
        name: str = "clusterenv",
        context: str | None = None,
        kubeconfig: str | Path | None = None,
    ) -> None:
        if not image:
            raise ValueError(f"image={image!r}: give a container image that has clusterenv")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"name={name!r} must be at most 40 lower-case letters, digits and '-', and begin "
                "with a letter"
            )
        self.request = PodRequest(
            image=image,
            cpus_per_host=cpus_per_host,
            memory_per_host=memory_per_host,
            gpus_per_host=gpus_per_host,
            gpu_resource=gpu_resource,
            node_selector=node_selector or {},
            tolerations=tolerations,
            volumes=volumes,
            volume_mounts=volume_mounts,
            service_account=service_account,
            priority_class=priority_class,
            image_pull_secrets=image_pull_secrets,
            image_pull_policy=image_pull_policy,
            environment=check_environment(environment),
            python=python,
            labels=labels or {},
            annotations=annotations or {},
            run_as_user=run_as_user,
            pod_spec=pod_spec or {},
        )
        self.num_hosts = check_count("hosts", hosts, advice="each is a pod")
        self.workers_per_host = self.request.workers
        self.name = name
        self._cluster = namespace, context, kubeconfig
        self._api_when_needed: KubernetesApi | None = None
        self._run: KubernetesRun | None = None

    @property
    def _api(self) -> KubernetesApi:
        if self._api_when_needed is None:
            self._api_when_needed = KubernetesApi(*self._cluster)
        return self._api_when_needed

    @property
    def towards(self) -> str:
        """The API server: the route there also leads to the pods."""
        return self._api.host

    def manifests(self) -> str:
        """What a run creates, as YAML for ``kubectl apply``, except for its ticket and its names.

        To start hosts with it yourself, use :class:`clusterenv.AttachLauncher`, and put its key
        file into the Secret.
        """
        secret = written.secret(self.request, self.name, written.NO_KEY)
        job = written.job(self.request, self.name, self.name, self.num_hosts)
        return written.to_yaml(secret, job)

    def start(self, orders: Sequence[Order]) -> None:
        """Request a pod for each of these hosts; do not wait for them."""
        hosts = [order.host for order in orders]
        if self._run is not None:
            try:
                self._run.ask_for(hosts)
            except KubernetesError as error:
                # The watcher tries again.
                _log.warning("cannot ask for %s: %s", ", ".join(hosts), error)
            return
        run = KubernetesRun(self._api, self.request, f"{self.name}-{secrets.token_hex(4)}")
        try:
            run.open(orders[0].invitation)
            run.ask_for(hosts)
        except KubernetesError as error:
            with contextlib.suppress(KubernetesError):
                run.remove()
            raise StartupError(f"cannot create a Job for hosts: {error}") from error
        self._run = run

    def status(self) -> dict[str, Status]:
        """The status of each host that was started and not yet stopped."""
        run = self._run
        return run.status() if run is not None else {}

    def logs(self, host: str) -> str:
        """The end of what the host printed, if its pod is known."""
        return self._run.log(host) if self._run is not None else ""

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End these hosts and forget them; first give them ``grace_s`` to end by themselves.

        When none is left, the Job and the Secret are deleted.
        """
        run = self._run
        if run is None:
            return
        run.stop(hosts, grace_s)
        if not run.hosts:
            self._run = None
            self._remove(run)

    def enrolled(self, host: str, place: str) -> None:
        """The host with this name runs in the pod ``place``."""
        if self._run is not None and place:
            self._run.enrolled(host, place)

    def _remove(self, run: KubernetesRun) -> None:
        try:
            run.remove()
        except KubernetesError as error:
            where = f"--namespace {self._api.namespace} --selector {written.RUN_LABEL}={run.name}"
            _log.warning("could not remove it all (%s): kubectl delete job,secret %s", error, where)
