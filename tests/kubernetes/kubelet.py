"""A stand-in kubelet: runs a process in namespaces of its own for each pod that is bound to it.

Images do not exist: what a pod runs is this machine's, with the project's ``python``. Mounts,
process ids, host names, logs, signals and exit codes are as in a container.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from tests.kubernetes.kubelet_logs import LogServer
from tests.kubernetes.kubelet_volumes import mounts_of, write_volumes

NO_IMAGE = "registry.example/no-such-image"
POLL_S = 0.1
SECRETS = Path("/var/run/secrets")


class Kubelet:
    """A node with ``cpus`` cores."""

    def __init__(self, plane, name="node-1", cpus=8):
        self.plane, self.name, self._cpus = plane, name, cpus
        self._processes = {}
        self._stop = threading.Event()
        self.oom = set()
        """The pods whose end is to look as if they had used up their memory."""

    def __enter__(self):
        self._core = client.CoreV1Api(config.new_client_from_config(str(self.plane.kubeconfig)))
        self._folder = self.plane.folder / self.name
        self._folder.mkdir()
        self._logs = LogServer(self.plane.folder, self.log_of)
        self._register()
        self._thread = threading.Thread(target=self._work, name="stand-in kubelet")
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join()
        for process in self._processes.values():
            process.kill()
        self._logs.close()
        self._core.delete_node(self.name)
        with contextlib.suppress(OSError):
            SECRETS.rmdir()

    def log_of(self, pod):
        """The file that holds a pod's output."""
        return self._folder / f"{pod}.log"

    def process_of(self, pod):
        """The first process of a pod, as this machine sees it."""
        return self._processes[pod].first

    def child_of(self, pod):
        """A process that the first process of a pod has started."""
        pid = self.process_of(pod)
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    @property
    def running(self):
        """The names of the pods whose processes are there."""
        return [name for name, one in self._processes.items() if one.exit_code() is None]

    def _register(self):
        capacity = {"cpu": str(self._cpus), "memory": "64Gi", "pods": "64"}
        ready = {"type": "Ready", "status": "True", "reason": "StandIn"}
        status = {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.port}},
        }
        self._core.create_node({"metadata": {"name": self.name}, "status": status})

    def _work(self):
        while not self._stop.wait(POLL_S):
            selector = f"spec.nodeName={self.name}"
            pods = self._core.list_pod_for_all_namespaces(field_selector=selector).items
            for pod in pods:
                with contextlib.suppress(ApiException):
                    self._care_for(pod)
            for name in self._processes.keys() - {pod.metadata.name for pod in pods}:
                self._processes.pop(name).kill()

    def _care_for(self, pod):
        name, process = pod.metadata.name, self._processes.get(pod.metadata.name)
        if pod.metadata.deletion_timestamp is not None:
            if process is None or process.end(pod.metadata.deletion_grace_period_seconds):
                self._report_end(pod, process)
                self._core.delete_namespaced_pod(
                    name, pod.metadata.namespace, grace_period_seconds=0
                )
        elif pod.status.phase in {"Succeeded", "Failed"}:
            return
        elif process is None:
            self._start(pod)
        elif process.exit_code() is not None:
            self._report_end(pod, process)

    def _start(self, pod):
        (container,) = pod.spec.containers
        if container.image == NO_IMAGE:
            why = {"reason": "ErrImagePull", "message": f"{NO_IMAGE}: not found"}
            self._report(pod, "Pending", waiting=why)
            return
        folder = self._folder / pod.metadata.name
        try:
            write_volumes(self._core, pod, folder)
        except ApiException as error:
            self._report(pod, "Pending", waiting={"reason": "ContainerCreating"})
            print(f"no volumes for {pod.metadata.name} yet: {error.reason}", file=sys.stderr)
            return
        environment = {
            **self.plane._claim.env,
            "PATH": f"{Path(sys.executable).parent}:{os.defpath}:/usr/sbin:/sbin",
            "HOME": "/root",
            "HOSTNAME": pod.metadata.name,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.plane.port),
            **{variable.name: value_of(variable, pod) for variable in container.env or ()},
        }
        self._processes[pod.metadata.name] = Process(
            pod.metadata.name,
            [*container.command, *(container.args or ())],
            mounts_of(container, folder),
            pod.spec.security_context.run_as_user,
            environment,
            self.log_of(pod.metadata.name),
        )
        self._report(pod, "Running", running={"startedAt": now()})

    def _report_end(self, pod, process):
        code = process.exit_code() if process is not None else 0
        end = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}
        if pod.metadata.name in self.oom:
            end["reason"] = "OOMKilled"
        elif code:
            end["message"] = self.log_of(pod.metadata.name).read_text(errors="replace")[-2000:]
        self._report(pod, "Failed" if code else "Succeeded", terminated=end)

    def _report(self, pod, phase, **state):
        (container,) = pod.spec.containers
        status = {
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        body = {"status": {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": [status]}}
        self._core.patch_namespaced_pod_status(pod.metadata.name, pod.metadata.namespace, body)


def value_of(variable, pod):
    """The text of a variable; of the downward API, the one field that is asked for here."""
    if variable.value_from is None:
        return variable.value
    assert variable.value_from.field_ref.field_path == "metadata.name"
    return pod.metadata.name


class Process:
    """The process of a pod's container: the first one in its own namespaces."""

    def __init__(self, name, command, mounts, user, environment, log):
        steps = [f"hostname {shlex.quote(name)}", f"mount -t tmpfs none {SECRETS}"]
        for source, target in mounts:
            steps.append(f"mkdir -p {target} && mount --bind {source} {target}")
        # It may see all files, since the project's python may be where only root can go.
        see = "--inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
        as_user = f"setpriv --reuid={user} --regid={user} --clear-groups {see}" if user else ""
        script = " && ".join([*steps, f'exec {as_user} "$@"'])
        isolated = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
        SECRETS.mkdir(exist_ok=True)
        with log.open("ab") as file:
            self._unshare = subprocess.Popen(
                [*isolated, "--mount-proc", "sh", "-c", script, "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._told_at = None

    @property
    def first(self):
        """Its id on this machine, or None."""
        pid = self._unshare.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def exit_code(self):
        """None while it runs; 128 + the signal if one ended it."""
        code = self._unshare.poll()
        return 128 - code if code is not None and code < 0 else code

    def end(self, grace_s):
        """SIGTERM, then SIGKILL; whether it has ended."""
        if self.exit_code() is not None:
            return True
        if self._told_at is None:
            self._told_at = time.monotonic()
            self._signal(signal.SIGTERM)
        elif time.monotonic() - self._told_at > (grace_s or 0):
            self._signal(signal.SIGKILL)
        return False

    def kill(self):
        """End it now."""
        self._signal(signal.SIGKILL)
        self._unshare.wait()

    def _signal(self, number):
        if (pid := self.first) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def now():
    """As Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
