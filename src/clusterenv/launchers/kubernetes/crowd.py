"""Which host is in which pod. All pods are alike: hosts say where they are when they enrol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterenv.launchers.base import Status
from clusterenv.launchers.kubernetes.pods import Pod


class Crowd:
    """The hosts that were asked for, and the pods known to be theirs. Pure."""

    def __init__(self) -> None:
        self._pod_by_host: dict[str, str | None] = {}
        self._known: set[str] = set()

    @property
    def hosts(self) -> list[str]:
        """The hosts that were asked for and not yet forgotten."""
        return list(self._pod_by_host)

    def expect(self, hosts: Iterable[str]) -> None:
        """Expect these hosts, in pods that are not known yet."""
        self._pod_by_host.update(dict.fromkeys(hosts))

    def forget(self, hosts: Iterable[str]) -> list[str]:
        """Forget these hosts; returns the pods that they were in."""
        pods = [self._pod_by_host.pop(host, None) for host in hosts]
        return [pod for pod in pods if pod is not None]

    def pod_of(self, host: str) -> str | None:
        """The pod that the host is in, if known."""
        return self._pod_by_host.get(host)

    def enrolled(self, host: str, pod: str) -> None:
        """Note the host's own word that it is in this pod."""
        for other, theirs in self._pod_by_host.items():
            # The pod's end was seen before its host was known, and another host was taken for it.
            if theirs == pod and other != host:
                self._pod_by_host[other] = None
        self._known.add(pod)
        if host in self._pod_by_host:
            self._pod_by_host[host] = pod

    def blame(self, pods: Iterable[Pod]) -> None:
        """Find a host for each pod that ended before it was enrolled.

        It would have become one of the missing hosts: the last of them, since places are given in
        order. That host has then ended.
        """
        for pod in self.strangers(pods):
            if pod.ended:
                self._known.add(pod.name)
                if missing := [host for host, theirs in self._pod_by_host.items() if not theirs]:
                    self._pod_by_host[missing[-1]] = pod.name

    def strangers(self, pods: Iterable[Pod]) -> list[Pod]:
        """The pods whose hosts are not known."""
        return [pod for pod in pods if pod.name not in self._known]

    def statuses(self, pods: Sequence[Pod], warnings: Mapping[str, str]) -> dict[str, Status]:
        """The status of each host: its pod's, or that of a pod which may become its own."""
        by_name = {pod.name: pod for pod in pods}
        # Stuck ones first: they are the reason why a host is missing.
        strangers = sorted(self.strangers(pods), key=lambda pod: (pod.ended, not pod.trouble))
        hopes = [_hope(pod, warnings) for pod in strangers] or [_no_pod(warnings)]
        statuses = {}
        for host, name in list(self._pod_by_host.items()):
            if name is None:
                statuses[host] = hopes.pop(0) if len(hopes) > 1 else hopes[0]
            elif name in by_name:
                statuses[host] = by_name[name].status
            else:
                reason = f"pod {name} is gone: it was deleted, evicted, or its node was removed"
                statuses[host] = Status(True, reason)
        return statuses


def _hope(pod: Pod, warnings: Mapping[str, str]) -> Status:
    """The status for a pod without a known host; no host has ended with it."""
    warning = "" if pod.trouble or pod.ended else warnings.get(pod.name, "")
    return Status(False, f"{pod.reason} ({warning})" if warning else pod.reason)


def _no_pod(warnings: Mapping[str, str]) -> Status:
    why = "; ".join(dict.fromkeys(warnings.values()))
    return Status(False, f"there is no pod for it yet{f': {why}' if why else ''}")
