"""Which worker is in which pod. Pods are all alike: only their logs tell, so this opens nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterenv.launchers.base import Status
from clusterenv.launchers.kubernetes_pods import Pod, enrolled_as


class Crowd:
    """The workers that were asked for, and the pods that were recognised."""

    def __init__(self) -> None:
        self._pod_by_worker: dict[str, str | None] = {}
        self._recognised: set[str] = set()

    @property
    def workers(self) -> list[str]:
        """Those that were asked for and not yet forgotten."""
        return list(self._pod_by_worker)

    def expect(self, workers: Iterable[str]) -> None:
        """These are to come, in pods of which nobody knows yet."""
        self._pod_by_worker.update(dict.fromkeys(workers))

    def forget(self, workers: Iterable[str]) -> list[str]:
        """These are not wanted any more; the pods that they were in."""
        pods = [self._pod_by_worker.pop(worker, None) for worker in workers]
        return [pod for pod in pods if pod is not None]

    def pod_of(self, worker: str) -> str | None:
        """The pod that the worker is in, if that is known."""
        return self._pod_by_worker.get(worker)

    def strangers(self, pods: Iterable[Pod]) -> list[Pod]:
        """The pods of which nobody knows who is in them."""
        return [pod for pod in pods if pod.name not in self._recognised]

    def recognise(self, pod: Pod, log: str) -> None:
        """Learn from the beginning of its log who is in the pod.

        One that ended before it was enrolled would have become one of those that are missing; the
        last of them, since places are given in order. Then that one has ended.
        """
        worker = enrolled_as(log)
        if worker is None and pod.ended:
            worker = next(reversed(self._missing()), "")
        if worker is not None:
            self._recognised.add(pod.name)
            if worker in self._pod_by_worker:
                self._pod_by_worker[worker] = pod.name

    def _missing(self) -> list[str]:
        return [worker for worker, pod in self._pod_by_worker.items() if pod is None]

    def statuses(self, pods: Sequence[Pod], warnings: Mapping[str, str]) -> dict[str, Status]:
        """Each worker's: its pod's, or that of a pod which may become its own."""
        by_name = {pod.name: pod for pod in pods}
        # Those that are stuck first: they are the reason why somebody is missing.
        strangers = sorted(self.strangers(pods), key=lambda pod: (pod.ended, not pod.is_stuck))
        hopes = [_hope(pod, warnings) for pod in strangers] or [_no_pod(warnings)]
        statuses = {}
        for worker, name in list(self._pod_by_worker.items()):
            if name is None:
                statuses[worker] = hopes.pop(0) if len(hopes) > 1 else hopes[0]
            elif name in by_name:
                statuses[worker] = by_name[name].status
            else:
                reason = f"pod {name} is gone: it was deleted, evicted, or its node was removed"
                statuses[worker] = Status(True, reason)
        return statuses


def _hope(pod: Pod, warnings: Mapping[str, str]) -> Status:
    """Of a pod without a known worker. Nobody has ended with it."""
    warning = "" if pod.is_stuck or pod.ended else warnings.get(pod.name, "")
    return Status(False, f"{pod.reason} ({warning})" if warning else pod.reason)


def _no_pod(warnings: Mapping[str, str]) -> Status:
    why = "; ".join(dict.fromkeys(warnings.values()))
    return Status(False, f"there is no pod for it yet{f': {why}' if why else ''}")
