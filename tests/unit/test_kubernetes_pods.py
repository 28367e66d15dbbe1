"""What the API server says about a pod becomes a sentence that helps."""

import pytest

from clusterenv.launchers.kubernetes.pods import latest_warnings, places_left, read_pod


def pod(phase="Pending", node=None, deleted=False, **status):
    metadata = {"name": "run-1-0-abcde"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, **status},
    }


def container(**state):
    return {"containerStatuses": [{"name": "host", "state": state}]}


def unscheduled(message):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {"conditions": [{**condition, "message": message}]}


def terminated(code, reason, message=""):
    return container(terminated={"exitCode": code, "reason": reason, "message": message})


WAITING = {
    "unschedulable": (
        pod(**unscheduled("0/3 nodes: 3 too few cpu.")),
        "pod run-1-0-abcde cannot be scheduled: Unschedulable: 0/3 nodes: 3 too few cpu.",
    ),
    "image cannot be pulled": (
        pod(node="n1", **container(waiting={"reason": "ErrImagePull", "message": "no such tag"})),
        "pod run-1-0-abcde on node n1 waits: ErrImagePull: no such tag",
    ),
    "image tried again later": (
        pod(node="n1", **container(waiting={"reason": "ImagePullBackOff", "message": "later"})),
        "pod run-1-0-abcde on node n1 waits: ImagePullBackOff: later",
    ),
    "image name": (
        pod(node="n1", **container(waiting={"reason": "InvalidImageName"})),
        "pod run-1-0-abcde on node n1 waits: InvalidImageName",
    ),
    "init container": (
        pod(
            node="n1",
            initContainerStatuses=[{"state": {"waiting": {"reason": "CreateContainerError"}}}],
        ),
        "pod run-1-0-abcde on node n1 waits: CreateContainerError",
    ),
}


@pytest.mark.parametrize(("said", "reason"), WAITING.values(), ids=WAITING)
def test_why_a_pod_waits(said, reason):
    read = read_pod(said)
    assert read.reason == reason
    assert read.trouble
    assert read.reason.endswith(read.trouble)
    assert "run-1" not in read.trouble
    assert not read.ended


ENDED = {
    "out of memory": (
        pod("Failed", "n1", **terminated(137, "OOMKilled")),
        "pod run-1-0-abcde on node n1 ended: OOMKilled (exit code 137, signal 9)",
    ),
    "exit code and log": (
        pod("Failed", "n1", **terminated(1, "Error", "a\nb\nc\nd\ne\nNo module named clusterenv")),
        "pod run-1-0-abcde on node n1 ended: Error (exit code 1): b\nc\nd\ne\n"
        "No module named clusterenv",
    ),
    "no such command": (
        pod("Failed", "n1", **terminated(128, "StartError", "no such file: pyhton")),
        "pod run-1-0-abcde on node n1 ended: StartError (exit code 128): no such file: pyhton",
    ),
    "evicted": (
        pod("Failed", "n1", reason="Evicted", message="The node was low on memory."),
        "pod run-1-0-abcde on node n1 ended: Evicted: The node was low on memory.",
    ),
    "preempted": (
        pod(
            "Failed",
            "n1",
            **terminated(0, "Completed"),
            conditions=[
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "PreemptionByScheduler",
                    "message": "for a pod of higher priority",
                }
            ],
        ),
        "pod run-1-0-abcde on node n1 ended: Completed (exit code 0) "
        "(PreemptionByScheduler: for a pod of higher priority)",
    ),
    "well": (
        pod("Succeeded", "n1", **terminated(0, "Completed")),
        "pod run-1-0-abcde on node n1 ended: Completed (exit code 0)",
    ),
    "container has, pod does not know yet": (
        pod("Running", "n1", **terminated(72, "Error")),
        "pod run-1-0-abcde on node n1 ended: Error (exit code 72)",
    ),
    "nothing more is known": (pod("Failed"), "pod run-1-0-abcde ended: Failed"),
}


@pytest.mark.parametrize(("said", "reason"), ENDED.values(), ids=ENDED)
def test_how_a_pod_ended(said, reason):
    read = read_pod(said)
    assert read.reason == reason
    assert read.ended
    assert read.status.ended


def test_a_pod_that_runs_is_in_no_trouble():
    read = read_pod(pod("Running", "n1", **container(running={})))
    assert (read.ended, read.trouble) == (False, "")
    assert read.reason == "pod run-1-0-abcde on node n1 runs"


@pytest.mark.parametrize(
    "said",
    [
        pod(),
        pod(node="n1"),
        pod(node="n1", **container(waiting={"reason": "ContainerCreating"})),
        {"metadata": {"name": "run-1-0-abcde"}},
    ],
    ids=["new", "bound", "creating", "without a status"],
)
def test_a_pod_that_starts_is_in_no_trouble(said):
    read = read_pod(said)
    assert (read.ended, read.trouble) == (False, "")
    assert read.reason.endswith("is starting")


def test_a_pod_that_is_being_deleted_may_still_hand_its_slots_back():
    read = read_pod(pod("Running", "n1", deleted=True, **container(running={})))
    assert not read.ended
    assert "is being deleted" in read.reason


def job(completions, **status):
    return {"spec": {"completions": completions}, "status": status}


def test_a_job_starts_no_pod_in_the_place_of_one_that_ended_well():
    assert places_left(job(4)) == 4
    assert places_left(job(4, active=1, failed=7, succeeded=1)) == 3
    assert places_left(job(4, conditions=[{"type": "Complete", "status": "True"}])) == 0
    assert places_left(job(4, conditions=[{"type": "Failed", "status": "True"}])) == 0


def test_the_newest_warning_about_each_object_counts():
    def event(name, second, message, kind="Warning"):
        return {
            "involvedObject": {"name": name},
            "lastTimestamp": f"2026-01-01T00:00:0{second}Z",
            "type": kind,
            "reason": "FailedMount",
            "message": message,
        }

    events = [event("a", 2, "new"), event("a", 1, "old"), event("b", 3, "fine", kind="Normal")]
    assert latest_warnings(events) == {"a": "FailedMount: new"}
