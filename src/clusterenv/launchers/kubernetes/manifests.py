"""What Kubernetes is asked for, as plain dictionaries and as YAML. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterenv.counts import check_count
from clusterenv.launchers.base import PLACE_VARIABLE

Manifest = dict[str, Any]

RUN_LABEL = "clusterenv/run"
"""The label on everything that belongs to a run; its value is the run's name."""
CONTAINER = "host"
KEY_FOLDER = "/var/run/secrets/clusterenv"
KEY = "key"
NO_KEY = "<the ticket of the run>"
# More failures than this end the Job with all its pods, but the head's own budget should decide.
BACKOFF_LIMIT = 1_000_000
# Hosts end by themselves when the head is gone, and then nobody else removes the Job.
KEEP_FINISHED_S = 60
_CORES = re.compile(r"(\d+\.?\d*)(m?)")
_NOT_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""Words that YAML takes for something other than text."""


@dataclass(frozen=True)
class PodRequest:
    """What a host's pod is like, in the words of ``KubernetesLauncher``."""

    image: str
    cpus_per_host: float | str | None = 1
    memory_per_host: str | None = None
    gpus_per_host: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    volumes: Sequence[Mapping[str, Any]] = ()
    volume_mounts: Sequence[Mapping[str, Any]] = ()
    service_account: str | None = None
    priority_class: str | None = None
    image_pull_secrets: Sequence[str] = ()
    image_pull_policy: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = "python"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    run_as_user: int | None = None
    pod_spec: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("gpus_per_host", self.gpus_per_host, least=0)
        _ = self.workers

    @property
    def workers(self) -> int | None:
        """How many workers fit: one per core that the pod requests; None if it requests none."""
        if self.cpus_per_host is None:
            return None
        match = _CORES.fullmatch(str(self.cpus_per_host))
        cores = float(match[1]) / (1000 if match[2] else 1) if match else 0.0
        if not cores:
            raise ValueError(
                f"cpus_per_host={self.cpus_per_host!r} must be a number of cores, such as 16, 0.5 "
                "or '500m'; None asks for none"
            )
        return max(1, int(cores))

    def spec(self, secret: str) -> Manifest:
        """The pod's specification, with the run's ticket from this Secret."""
        # Mode 0400, because the host refuses a ticket that others can read.
        key = {"name": "clusterenv-key", "secret": {"secretName": secret, "defaultMode": 0o400}}
        spec = {
            "restartPolicy": "Never",
            "containers": [self._container()],
            "volumes": [key, *map(dict, self.volumes)],
            "nodeSelector": dict(self.node_selector),
            "tolerations": [dict(one) for one in self.tolerations],
            "imagePullSecrets": [{"name": name} for name in self.image_pull_secrets],
            "serviceAccountName": self.service_account,
            "priorityClassName": self.priority_class,
            "securityContext": self._security_context(),
            "enableServiceLinks": False,
            # Env code gets no access to the API server unless an account was given for it.
            "automountServiceAccountToken": None if self.service_account else False,
        }
        return _merged(_without_blanks(spec), self.pod_spec)

    def _container(self) -> Manifest:
        # Hosts tell the head which pod they are in, and the launcher learns it from the head.
        place = {"name": PLACE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        variables = {"PYTHONUNBUFFERED": "1", **self.environment}
        key_mount = {"name": "clusterenv-key", "mountPath": KEY_FOLDER, "readOnly": True}
        container = {
            "name": CONTAINER,
            "image": self.image,
            "imagePullPolicy": self.image_pull_policy,
            "command": self.command(),
            "env": [place, *({"name": name, "value": text} for name, text in variables.items())],
            "resources": self._resources(),
            "volumeMounts": [key_mount, *map(dict, self.volume_mounts)],
            # Puts the end of a failed host's log into its pod's status.
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        return _without_blanks(container)

    def command(self) -> list[str]:
        """The command of a pod."""
        key_file = f"{KEY_FOLDER}/{KEY}"
        return [self.python, "-m", "clusterenv", "host", "--key-file", key_file, "--once"]

    def _resources(self) -> Manifest:
        # No limit on cores: idle ones may be used, and throttling makes stragglers.
        given = {
            "cpu": self.cpus_per_host,
            "memory": self.memory_per_host,
            self.gpu_resource: self.gpus_per_host or None,
        }
        requests = {name: str(value) for name, value in given.items() if value is not None}
        limits = {name: value for name, value in requests.items() if name != "cpu"}
        return _without_blanks({"requests": requests, "limits": limits})

    def _security_context(self) -> Manifest:
        user = self.run_as_user
        if user is None:
            return {}
        # The group lets a user other than root read the mounted Secret.
        return {"runAsUser": user, "runAsGroup": user, "fsGroup": user, "runAsNonRoot": user != 0}


def job(
    request: PodRequest, name: str, run: str, num_hosts: int, owners: Sequence[Manifest] = ()
) -> Manifest:
    """The Job that keeps ``num_hosts`` pods of the run."""
    labels = {**request.labels, **run_labels(run)}
    template = {
        "metadata": _without_blanks({"labels": labels, "annotations": dict(request.annotations)}),
        "spec": request.spec(run),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(name, labels, owners),
        "spec": {
            "parallelism": num_hosts,
            "completions": num_hosts,
            "backoffLimit": BACKOFF_LIMIT,
            "ttlSecondsAfterFinished": KEEP_FINISHED_S,
            "template": template,
        },
    }


def secret(request: PodRequest, run: str, ticket: str, owners: Sequence[Manifest] = ()) -> Manifest:
    """The Secret that brings the run's ticket to the pods."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(run, {**request.labels, **run_labels(run)}, owners),
        "type": "Opaque",
        "stringData": {KEY: ticket},
    }


def run_labels(run: str) -> dict[str, str]:
    """The labels that identify everything of a run."""
    return {"app.kubernetes.io/name": "clusterenv", RUN_LABEL: run}


def owner(kind: str, version: str, name: str, uid: str) -> Manifest:
    """An owner reference: an object is deleted when all its owners are gone."""
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid}


def _metadata(name: str, labels: Mapping[str, str], owners: Sequence[Manifest]) -> Manifest:
    return _without_blanks({"name": name, "labels": dict(labels), "ownerReferences": [*owners]})


def _without_blanks(manifest: Mapping[str, Any]) -> Manifest:
    return {name: value for name, value in manifest.items() if value not in (None, {}, [])}


def _merged(base: Any, more: Mapping[str, Any]) -> Manifest:
    """``more`` over ``base``; dictionaries are merged, lists are joined, the rest is replaced."""
    merged = dict(base)
    for name, value in more.items():
        there = merged.get(name)
        if isinstance(there, dict) and isinstance(value, Mapping):
            merged[name] = _merged(there, value)
        elif isinstance(there, list) and isinstance(value, Sequence):
            merged[name] = [*there, *value]
        else:
            merged[name] = value
    return merged


def to_yaml(*manifests: Manifest) -> str:
    """Documents for ``kubectl apply --filename -``."""
    return "---\n".join("\n".join(_lines(one)) + "\n" for one in manifests)


def _lines(value: Any) -> Iterator[str]:
    """Block style; and JSON, which is YAML too, for values without parts."""
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            first, *rest = _lines(part)
            key = name if name.isalpha() and name.lower() not in _NOT_TEXT else json.dumps(name)
            if isinstance(part, Mapping | list | tuple) and part:
                indent = "  " if isinstance(part, Mapping) else ""
                yield f"{key}:"
                yield from (f"{indent}{line}" for line in [first, *rest])
            else:
                yield f"{key}: {first}"
    elif isinstance(value, list | tuple) and value:
        for part in value:
            first, *rest = _lines(part)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield json.dumps(value, ensure_ascii=False)
