"""The few requests to an API server. The only file that imports kubernetes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

try:
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError
except ImportError as error:
    raise ImportError(
        "KubernetesLauncher needs Kubernetes' client: pip install 'clusterenv[kubernetes]'"
    ) from error

from clusterenv.launchers.kubernetes.manifests import Manifest, owner

_TIMEOUT_S = 15
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NOT_FOUND = 404


class KubernetesError(Exception):
    """The API server refused something or does not answer; the message has its own words."""


class KubernetesApi:
    """One namespace, as the head's account sees it.

    It uses raw JSON and not the client's models, which reject answers of other server versions.
    """

    def __init__(
        self, namespace: str | None, context: str | None, kubeconfig: str | Path | None
    ) -> None:
        self.is_inside = kubeconfig is None and context is None and (_ACCOUNT / "token").exists()
        configuration = client.Configuration()
        try:
            if self.is_inside:
                config.load_incluster_config(client_configuration=configuration)
                own = (_ACCOUNT / "namespace").read_text().strip()
            else:
                file = None if kubeconfig is None else str(kubeconfig)
                config.load_kube_config(file, context, configuration, persist_config=False)
                own = _namespace_of(file, context)
        except config.ConfigException as error:
            raise ValueError(
                f"no Kubernetes cluster is configured here: {error}; give kubeconfig= or context=, "
                "or run the head in the cluster with a service account"
            ) from error
        self.namespace = namespace or own
        self.host = urlsplit(configuration.host).hostname or "localhost"
        api = client.ApiClient(configuration)
        self._core, self._batch = client.CoreV1Api(api), client.BatchV1Api(api)

    def head_pod(self) -> Manifest | None:
        """An owner reference to the pod that this process runs in, if it runs in one."""
        if not self.is_inside:
            return None
        name = os.environ.get("POD_NAME") or os.environ.get("HOSTNAME", "")
        pod = self._ask(self._core.read_namespaced_pod, name)
        return owner("Pod", "v1", name, pod["metadata"]["uid"])

    def create_secret(self, manifest: Manifest) -> None:
        """Create it."""
        self._ask(self._core.create_namespaced_secret, body=manifest)

    def own_secret(self, name: str, owners: list[Manifest]) -> None:
        """Let the Secret be deleted when all these owners are gone."""
        change = {"metadata": {"ownerReferences": owners}}
        self._ask(self._core.patch_namespaced_secret, name, body=change)

    def create_job(self, manifest: Manifest) -> Manifest:
        """Create it; returns it as created."""
        return self._ask(self._batch.create_namespaced_job, body=manifest)

    def jobs(self, selector: str) -> list[Manifest]:
        """The Jobs with these labels."""
        return self._items(self._batch.list_namespaced_job, label_selector=selector)

    def pods(self, selector: str) -> list[Manifest]:
        """The pods with these labels."""
        return self._items(self._core.list_namespaced_pod, label_selector=selector)

    def warnings(self) -> list[Manifest]:
        """The namespace's events of type Warning."""
        return self._items(self._core.list_namespaced_event, field_selector="type=Warning")

    def log(self, pod: str, container: str, tail_lines: int) -> str:
        """The last lines of a pod's log."""
        read = self._core.read_namespaced_pod_log
        text = self._text(read, pod, container=container, tail_lines=tail_lines)
        return text.decode(errors="replace")

    def delete_pod(self, name: str, grace_s: int) -> None:
        """Delete it, if it is there; its processes get SIGTERM and, ``grace_s`` later, SIGKILL."""
        self._delete(self._core.delete_namespaced_pod, name, grace_period_seconds=grace_s)

    def delete_job(self, name: str) -> None:
        """Delete it and then its pods, if it is there."""
        self._delete(self._batch.delete_namespaced_job, name, propagation_policy="Background")

    def delete_secret(self, name: str) -> None:
        """Delete it, if it is there."""
        self._delete(self._core.delete_namespaced_secret, name)

    def _delete(self, call: Any, name: str, **options: Any) -> None:
        try:
            self._ask(call, name, **options)
        except KubernetesError as error:
            cause = error.__cause__
            if not (isinstance(cause, ApiException) and cause.status == _NOT_FOUND):
                raise

    def _items(self, call: Any, **options: Any) -> list[Manifest]:
        items: list[Manifest] = self._ask(call, **options)["items"]
        return items

    def _ask(self, call: Any, *arguments: Any, **options: Any) -> Manifest:
        text = self._text(call, *arguments, **options)
        try:
            answer: Manifest = json.loads(text)
        except ValueError as error:
            raise KubernetesError(f"{self.host} does not answer as an API server does") from error
        return answer

    def _text(self, call: Any, *arguments: Any, **options: Any) -> bytes:
        options.update(
            namespace=self.namespace, _preload_content=False, _request_timeout=_TIMEOUT_S
        )
        try:
            data: bytes = call(*arguments, **options).data
        except ApiException as error:
            raise KubernetesError(_what_it_said(error)) from error
        except (HTTPError, OSError) as error:
            raise KubernetesError(f"the API server at {self.host} does not answer: {error}") from (
                error
            )
        return data


def _what_it_said(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"


def _namespace_of(file: str | None, context: str | None) -> str:
    contexts, active = config.list_kube_config_contexts(file)
    chosen = next((one for one in contexts if one["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")
