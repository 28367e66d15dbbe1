"""What one run has in a Kubernetes cluster: a Secret, one or more Jobs, and their pods."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Sequence

from clusterenv.launchers.base import Status
from clusterenv.launchers.kubernetes import manifests
from clusterenv.launchers.kubernetes.api import KubernetesApi, KubernetesError
from clusterenv.launchers.kubernetes.crowd import Crowd
from clusterenv.launchers.kubernetes.manifests import CONTAINER, Manifest, PodRequest
from clusterenv.launchers.kubernetes.pods import Pod, latest_warnings, places_left, read_pod

_log = logging.getLogger("clusterenv")
_LOG_TAIL_LINES = 100
_KILL_AFTER_S = 1
_POLL_S = 0.5
_PATIENCE_S = 10.0


class KubernetesRun:
    """Used by the user's thread and by the watcher's."""

    def __init__(self, api: KubernetesApi, request: PodRequest, name: str) -> None:
        self._api, self._request, self.name = api, request, name
        self._selector = f"{manifests.RUN_LABEL}={name}"
        self._crowd = Crowd()
        self._pods: list[Pod] = []
        self._statuses: dict[str, Status] = {}
        self._head: list[Manifest] = []
        self._jobs: list[Manifest] = []
        self._lock = threading.RLock()
        self._told: set[str] = set()
        self._began = time.monotonic()

    @property
    def hosts(self) -> list[str]:
        """The hosts that were asked for and not yet stopped."""
        return self._crowd.hosts

    def open(self, ticket: bytes) -> None:
        """Create the Secret."""
        try:
            head = self._api.head_pod()
            self._head = [head] if head else []
        except KubernetesError as error:
            _log.warning("if the head is deleted, its hosts stay for lease_s: %s", error)
        self._api.create_secret(
            manifests.secret(self._request, self.name, ticket.decode(), self._head)
        )

    def ask_for(self, hosts: Iterable[str]) -> None:
        """Request a pod for each of these; a Job itself starts another when one fails."""
        with self._lock:
            self._crowd.expect(hosts)
            self._top_up(self._api.jobs(self._selector) if self._jobs else [])

    def _top_up(self, jobs: Sequence[Manifest]) -> None:
        """Create another Job if pods are missing: a Job starts none in place of a host that ended
        well, because the head was gone for a while or because it had to leave."""
        missing = len(self._crowd.hosts) - sum(map(places_left, jobs))
        if missing <= 0:
            return
        name = f"{self.name}-{len(self._jobs)}"
        wanted = manifests.job(self._request, name, self.name, missing, self._head)
        uid = self._api.create_job(wanted)["metadata"]["uid"]
        self._jobs.append(manifests.owner("Job", "batch/v1", name, uid))
        # When its Jobs are removed, even by the cluster, the Secret goes too.
        self._api.own_secret(self.name, [*self._head, *self._jobs])

    def status(self) -> dict[str, Status]:
        """The status of each host that was asked for and not yet stopped."""
        # While the API server does not answer, its last answer is all that is known.
        with contextlib.suppress(KubernetesError):
            self._look()
            with self._lock:
                if self.hosts:
                    self._top_up(self._api.jobs(self._selector))
        self._tell_who_is_stuck()
        return {host: self._statuses.get(host, Status(False)) for host in self.hosts}

    def _look(self) -> None:
        pods = [read_pod(pod) for pod in self._api.pods(self._selector)]
        with self._lock:
            self._crowd.blame(pods)
            self._pods, names = pods, {pod.name for pod in pods}
            ours = {*names, *(job["name"] for job in self._jobs)}
            about = {name: why for name, why in self._warnings().items() if name in ours}
            self._statuses = self._crowd.statuses(pods, about)

    def enrolled(self, host: str, pod: str) -> None:
        """Note the host's own word that it is in this pod."""
        with self._lock:
            self._crowd.enrolled(host, pod)

    def _warnings(self) -> dict[str, str]:
        """Warnings among the cluster's events, asked for only while a host is missing."""
        if all(self._crowd.pod_of(host) for host in self.hosts):
            return {}
        try:
            return latest_warnings(self._api.warnings())
        except KubernetesError:
            return {}

    def _tell_who_is_stuck(self) -> None:
        if time.monotonic() - self._began < _PATIENCE_S:
            return
        stuck = [pod for pod in self._pods if pod.trouble]
        troubles = {pod.trouble for pod in stuck} - self._told
        if troubles:
            self._told |= troubles
            _log.warning("%d pod(s) wait: %s", len(stuck), stuck[0].reason)

    def log(self, host: str) -> str:
        """The end of what the host printed."""
        pod = self._crowd.pod_of(host)
        if pod is None:
            return ""
        try:
            return self._api.log(pod, CONTAINER, _LOG_TAIL_LINES)
        except KubernetesError:
            return next((one.message for one in self._pods if one.name == pod), "")

    def stop(self, hosts: Sequence[str], grace_s: float) -> None:
        """End these hosts and forget them; a Job starts others in their places."""
        with self._lock:
            pods = self._crowd.forget(hosts)
        if not pods:
            return
        with contextlib.suppress(KubernetesError):
            for pod in self._wait_for_ends(set(pods), time.monotonic() + grace_s):
                self._api.delete_pod(pod, _KILL_AFTER_S)

    def _wait_for_ends(self, names: set[str], deadline: float) -> list[str]:
        """Wait until these pods have ended; returns those that have not by ``deadline``."""
        while True:
            pods = [read_pod(pod) for pod in self._api.pods(self._selector)]
            left = [pod.name for pod in pods if pod.name in names and not pod.ended]
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(_POLL_S)

    def remove(self) -> None:
        """Delete everything that the run created."""
        with self._lock:
            for job in self._jobs:
                self._api.delete_job(job["name"])
            self._api.delete_secret(self.name)
