"""Sums up what Kubernetes says about pods in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterenv.launchers.base import Status

_ENDED = {"Succeeded", "Failed"}
_STARTING = {"", "ContainerCreating", "PodInitializing"}
_LAST_LINES = 5


@dataclass(frozen=True)
class Pod:
    """A pod of the run, as its engine sees it."""

    name: str
    ended: bool
    reason: str
    """How it is, why it waits or how it ended."""
    trouble: str = ""
    """What it waits for, if that may never come; without the pod's name."""
    message: str = ""
    """The end of the log of a container that failed."""

    @property
    def status(self) -> Status:
        """The status for the host in this pod."""
        return Status(self.ended, self.reason)


def read_pod(pod: Mapping[str, Any]) -> Pod:
    """Read one item of the API server's list of pods."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    where = f"pod {name}"
    if node := pod.get("spec", {}).get("nodeName"):
        where += f" on node {node}"
    states = [
        container.get("state", {})
        for kind in ("initContainerStatuses", "containerStatuses")
        for container in status.get(kind) or ()
    ]
    if end := _end(status, states):
        how, message = end
        return Pod(name, True, f"{where} ended: {how}", message=message)
    if pod["metadata"].get("deletionTimestamp"):
        # Not ended yet: the host may be handing its slots back.
        return Pod(name, False, f"{where} is being deleted{_disruption(status)}")
    if trouble := _trouble(status, states):
        return Pod(name, False, f"{where} {trouble}", trouble)
    if status.get("phase") == "Running" and any("running" in state for state in states):
        return Pod(name, False, f"{where} runs")
    return Pod(name, False, f"{where} is starting")


def _end(status: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """How it ended, and the end of its log; None while it runs."""
    ends = [state["terminated"] for state in states if "terminated" in state]
    failures = [end for end in ends if end.get("exitCode")]
    phase = status.get("phase", "")
    # Restarts are off, so a failed container has ended the pod, even if that is not known yet.
    if phase not in _ENDED and not failures:
        return None
    if why := status.get("reason"):
        return _sentence(why, status.get("message")) + _disruption(status), ""
    if failures or ends:
        return _container_end((failures or ends)[-1], _disruption(status))
    return phase + _disruption(status), ""


def _container_end(end: Mapping[str, Any], disruption: str) -> tuple[str, str]:
    code, message = end.get("exitCode", 0), str(end.get("message") or "").strip()
    how = f"{end.get('reason') or 'Error'} (exit code {code}){disruption}"
    if code > 128:
        how = how.replace(")", f", signal {code - 128})", 1)
    tail = "\n".join(message.splitlines()[-_LAST_LINES:])
    return f"{how}: {tail}" if tail else how, message


def _trouble(status: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            why = _sentence(condition.get("reason"), condition.get("message"))
            return f"cannot be scheduled: {why}"
    for state in states:
        waiting = state.get("waiting") or {}
        if waiting.get("reason", "") not in _STARTING:
            return f"waits: {_sentence(waiting['reason'], waiting.get('message'))}"
    return ""


def _disruption(status: Mapping[str, Any]) -> str:
    """Why the cluster took the pod away, if it says so."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f" ({_sentence(condition.get('reason'), condition.get('message'))})"
    return ""


def _sentence(reason: str | None, message: str | None) -> str:
    return ": ".join(part.strip() for part in (reason, message) if part)


def places_left(job: Mapping[str, Any]) -> int:
    """How many pods a Job will keep or still start."""
    status = job.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") in {"Failed", "Complete"} and condition.get("status") == "True":
            return 0
    return max(0, int(job["spec"]["completions"]) - int(status.get("succeeded") or 0))


def latest_warnings(events: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The newest warning about each object, by name."""
    return {
        event["involvedObject"]["name"]: _sentence(event.get("reason"), event.get("message"))
        for event in sorted(events, key=lambda event: str(event.get("lastTimestamp") or ""))
        if event.get("type") == "Warning"
    }
