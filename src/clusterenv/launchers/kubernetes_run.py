"""What one run has in a Kubernetes cluster: a Secret, a Job or a few, and their pods."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from clusterenv.launchers import kubernetes_manifests as manifests
from clusterenv.launchers.base import Status
from clusterenv.launchers.kubernetes_api import KubernetesApi, KubernetesError
from clusterenv.launchers.kubernetes_crowd import Crowd
from clusterenv.launchers.kubernetes_manifests import CONTAINER, Manifest, PodRequest
from clusterenv.launchers.kubernetes_pods import Pod, latest_warnings, places_left, read_pod

_log = logging.getLogger("clusterenv")
# A worker is enrolled before anything else can print.
_HEAD_OF_LOG_BYTES = 8192
_LOG_TAIL_LINES = 100
_LOGS_AT_ONCE = 8
_KILL_AFTER_S = 1
_POLL_S = 0.5
_PATIENCE_S = 10.0


class Run:
    """Asked by the user's thread and by the one that watches."""

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
    def workers(self) -> list[str]:
        """Those that were asked for and not yet stopped."""
        return self._crowd.workers

    def open(self, ticket: bytes) -> None:
        """Create the Secret."""
        try:
            head = self._api.head_pod()
            self._head = [head] if head else []
        except KubernetesError as error:
            _log.warning("if the head is deleted, its workers stay for lease_s: %s", error)
        self._api.create_secret(
            manifests.secret(self._request, self.name, ticket.decode(), self._head)
        )

    def ask_for(self, workers: Iterable[str]) -> None:
        """Have a pod for each of these; a Job starts another one where one has failed."""
        with self._lock:
            self._crowd.expect(workers)
            self._top_up(self._api.jobs(self._selector) if self._jobs else [])

    def _top_up(self, jobs: Sequence[Manifest]) -> None:
        """A Job starts nothing where a worker ended well, because the head was gone for a while,
        or because it had to leave. That takes another Job."""
        missing = len(self._crowd.workers) - sum(map(places_left, jobs))
        if missing <= 0:
            return
        name = f"{self.name}-{len(self._jobs)}"
        wanted = manifests.job(self._request, name, self.name, missing, self._head)
        uid = self._api.create_job(wanted)["metadata"]["uid"]
        self._jobs.append(manifests.owner("Job", "batch/v1", name, uid))
        # When its Jobs are removed, be it by the cluster, the Secret goes as well.
        self._api.own_secret(self.name, [*self._head, *self._jobs])

    def status(self) -> dict[str, Status]:
        """Each worker that was asked for and not yet stopped."""
        # While the API server does not answer, what it said last is all that is known.
        with contextlib.suppress(KubernetesError):
            self._look()
            with self._lock:
                if self.workers:
                    self._top_up(self._api.jobs(self._selector))
        self._tell_who_is_stuck()
        return {worker: self._statuses.get(worker, Status(False)) for worker in self.workers}

    def _look(self) -> None:
        pods = [read_pod(pod) for pod in self._api.pods(self._selector)]
        self._recognise(pods)
        with self._lock:
            self._pods, names = pods, {pod.name for pod in pods}
            ours = {*names, *(job["name"] for job in self._jobs)}
            about = {name: why for name, why in self._warnings().items() if name in ours}
            self._statuses = self._crowd.statuses(pods, about)

    def _recognise(self, pods: Sequence[Pod]) -> None:
        unknown = [pod for pod in self._crowd.strangers(pods) if pod.has_log]
        if not unknown:
            return
        with ThreadPoolExecutor(min(_LOGS_AT_ONCE, len(unknown))) as pool:
            logs = list(pool.map(self._head_of_log, unknown))
        # The living first: then it is clear who is missing.
        for pod, log in sorted(zip(unknown, logs, strict=True), key=lambda pair: pair[0].ended):
            if log is not None:
                with self._lock:
                    self._crowd.recognise(pod, log)

    def _head_of_log(self, pod: Pod) -> str | None:
        try:
            return self._api.log(pod.name, CONTAINER, limit_bytes=_HEAD_OF_LOG_BYTES)
        except KubernetesError:
            return None

    def _warnings(self) -> dict[str, str]:
        """What the cluster's events say, asked for only while somebody is missing."""
        if all(self._crowd.pod_of(worker) for worker in self.workers):
            return {}
        try:
            return latest_warnings(self._api.warnings())
        except KubernetesError:
            return {}

    def _tell_who_is_stuck(self) -> None:
        if time.monotonic() - self._began < _PATIENCE_S:
            return
        stuck = [pod.reason for pod in self._pods if pod.is_stuck]
        # Without the pod's name, the reason is the same for all.
        whys = {reason.partition(": ")[2] for reason in stuck} - self._told
        if whys:
            self._told |= whys
            _log.warning("%d pod(s) wait: %s", len(stuck), stuck[0])

    def log(self, worker: str) -> str:
        """The end of what the worker printed."""
        if self._crowd.pod_of(worker) is None:
            with contextlib.suppress(KubernetesError):
                self._look()
        pod = self._crowd.pod_of(worker)
        if pod is None:
            return ""
        try:
            return self._api.log(pod, CONTAINER, tail_lines=_LOG_TAIL_LINES)
        except KubernetesError:
            return next((one.message for one in self._pods if one.name == pod), "")

    def stop(self, workers: Sequence[str], grace_s: float) -> None:
        """End these workers and forget them; a Job starts others in their places."""
        with contextlib.suppress(KubernetesError):
            if any(self._crowd.pod_of(worker) is None for worker in workers):
                self._look()
        with self._lock:
            pods = self._crowd.forget(workers)
        if not pods:
            return
        with contextlib.suppress(KubernetesError):
            for pod in self._wait_for_ends(set(pods), time.monotonic() + grace_s):
                self._api.delete_pod(pod, _KILL_AFTER_S)

    def _wait_for_ends(self, names: set[str], deadline: float) -> list[str]:
        """Wait until these pods have ended; those that have not by then."""
        while True:
            pods = [read_pod(pod) for pod in self._api.pods(self._selector)]
            left = [pod.name for pod in pods if pod.name in names and not pod.ended]
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(_POLL_S)

    def remove(self) -> None:
        """Delete everything that is there of the run."""
        with self._lock:
            for job in self._jobs:
                self._api.delete_job(job["name"])
            self._api.delete_secret(self.name)
