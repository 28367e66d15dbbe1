"""The launcher's decisions, on a cluster of dictionaries."""

import logging

import pytest

from clusterenv import StartupError
from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.kubernetes import KubernetesLauncher, run
from clusterenv.launchers.kubernetes.api import KubernetesError

TICKET = b"the ticket"


class Cluster:
    """As KubernetesApi, but for what only a server can know."""

    host, namespace = "192.0.2.7", "rl"

    def __init__(self):
        self.secrets, self.owners, self.job_by_name = {}, {}, {}
        self.pod_by_name, self.log_by_pod, self.events = {}, {}, []
        self.deleted_pods, self.refuses = [], ""

    def _check(self, what):
        if self.refuses and self.refuses in what:
            raise KubernetesError(f"{what} is forbidden")

    def head_pod(self):
        self._check("head_pod")
        return

    def create_secret(self, manifest):
        self._check("create_secret")
        self.secrets[manifest["metadata"]["name"]] = manifest["stringData"]["key"]

    def own_secret(self, name, owners):
        self.owners[name] = owners

    def create_job(self, manifest):
        self._check("create_job")
        name = manifest["metadata"]["name"]
        self.job_by_name[name] = {**manifest, "status": {}}
        return {"metadata": {"name": name, "uid": f"uid of {name}"}}

    def jobs(self, selector):
        self._check("jobs")
        return list(self.job_by_name.values())

    def pods(self, selector):
        self._check("pods")
        return list(self.pod_by_name.values())

    def warnings(self):
        self._check("events")
        return self.events

    def log(self, pod, container, tail_lines):
        self._check("log")
        return self.log_by_pod.get(pod, "")

    def delete_pod(self, name, grace_s):
        self.deleted_pods.append(name)

    def delete_job(self, name):
        self._check("delete_job")
        self.job_by_name.pop(name, None)

    def delete_secret(self, name):
        self.secrets.pop(name, None)

    # What the cluster does by itself.

    def run_pod(self, name):
        self._set_pod(name, "Running", {"running": {}})
        self.log_by_pod[name] = f"hello from an env in {name}\n"

    def end_pod(self, name, code, message=""):
        phase = "Failed" if code else "Succeeded"
        end = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        self._set_pod(name, phase, {"terminated": end})

    def pull_fails(self, name):
        self._set_pod(name, "Pending", {"waiting": {"reason": "ErrImagePull", "message": "no"}})

    def _set_pod(self, name, phase, state):
        status = {"phase": phase, "containerStatuses": [{"state": state}]}
        self.pod_by_name[name] = {"metadata": {"name": name}, "spec": {}, "status": status}

    @property
    def num_places(self):
        return [job["spec"]["completions"] for job in self.job_by_name.values()]


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def launcher(cluster):
    launcher = KubernetesLauncher("rl", name="run")
    launcher._api_when_needed = cluster
    return launcher


@pytest.fixture
def run_pod(cluster, launcher):
    """Run a pod, whose host tells the head where it is."""

    def run_pod(name, host=None):
        cluster.run_pod(name)
        if host is not None:
            launcher.enrolled(host, name)

    return run_pod


def orders(*hosts):
    return [Order(host, TICKET) for host in hosts]


def test_a_run_is_one_secret_and_one_job(cluster, launcher):
    launcher.start(orders("a", "b", "c"))
    assert cluster.num_places == [3]
    ((secret, ticket),) = cluster.secrets.items()
    assert ticket == TICKET.decode()
    assert [owner["kind"] for owner in cluster.owners[secret]] == ["Job"]
    assert launcher.towards == cluster.host


def test_all_is_removed_with_the_last_host_and_can_be_removed_twice(cluster, launcher):
    launcher.start(orders("a", "b"))
    launcher.stop(["a"])
    assert cluster.secrets
    assert cluster.job_by_name
    launcher.stop(["b"])
    launcher.stop(["b"])
    assert not cluster.secrets
    assert not cluster.job_by_name
    assert launcher.status() == {}


def test_what_was_created_is_removed_when_the_job_is_refused(cluster, launcher):
    cluster.refuses = "create_job"
    with pytest.raises(StartupError, match="cannot create a Job for hosts: create_job is forb"):
        launcher.start(orders("a"))
    assert not cluster.secrets


def test_what_could_not_be_removed_is_told(cluster, launcher, caplog):
    launcher.start(orders("a"))
    cluster.refuses = "delete_job"
    with caplog.at_level(logging.WARNING, "clusterenv"):
        launcher.stop(["a"])
    assert "kubectl delete job,secret --namespace rl --selector clusterenv/run=run-" in caplog.text


def test_a_host_says_which_pod_it_is_in(cluster, launcher, run_pod):
    launcher.start(orders("a", "b"))
    run_pod("pod-1", "b")
    run_pod("pod-2", "a")
    assert launcher.status()["a"] == Status(False, "pod pod-2 runs")
    assert launcher.logs("a") == "hello from an env in pod-2\n"
    assert launcher.logs("c") == ""
    cluster.end_pod("pod-2", 1, "the end")
    assert launcher.status()["a"] == Status(True, "pod pod-2 ended: Error (exit code 1): the end")
    assert not launcher.status()["b"].ended


def test_a_pod_that_is_gone_has_ended(cluster, launcher, run_pod):
    launcher.start(orders("a"))
    run_pod("pod-1", "a")
    launcher.status()
    del cluster.pod_by_name["pod-1"]
    assert launcher.status()["a"].ended


def test_who_is_missing_gets_the_reason_of_a_pod_that_is_stuck(cluster, launcher, run_pod):
    launcher.start(orders("a", "b"))
    run_pod("pod-1")
    cluster.pull_fails("pod-2")
    assert launcher.status()["a"] == Status(False, "pod pod-2 waits: ErrImagePull: no")


def test_without_any_pod_the_events_say_why(cluster, launcher):
    launcher.start(orders("a"))
    (job,) = cluster.job_by_name
    for name in (job, "another's"):
        event = {"involvedObject": {"name": name}, "type": "Warning", "reason": "FailedCreate"}
        cluster.events.append({**event, "message": f"quota of {name}"})
    reason = f"there is no pod for it yet: FailedCreate: quota of {job}"
    assert launcher.status()["a"] == Status(False, reason)
    cluster.refuses = "events"
    assert launcher.status()["a"] == Status(False, "there is no pod for it yet")


def test_a_host_that_fails_before_it_is_enrolled_has_ended(cluster, launcher, run_pod):
    launcher.start(orders("a", "b"))
    run_pod("pod-1", "a")
    cluster.end_pod("pod-2", 1, "No module named clusterenv")
    status = launcher.status()
    assert not status["a"].ended
    assert status["b"].ended
    assert "No module named clusterenv" in status["b"].reason


def test_a_host_whose_pod_was_seen_to_end_before_it_was_heard_of_is_not_another(
    cluster, launcher, run_pod
):
    launcher.start(orders("a", "b"))
    cluster.end_pod("pod-1", 1)
    assert launcher.status()["b"].ended
    launcher.enrolled("a", "pod-1")
    assert launcher.status()["a"].ended
    assert not launcher.status()["b"].ended


def test_a_host_that_does_not_know_where_it_is_is_in_no_pod(cluster, launcher):
    launcher.enrolled("a", "pod-1")  # before any run
    launcher.start(orders("a"))
    cluster.run_pod("pod-1")
    launcher.enrolled("a", "")
    assert launcher.status()["a"] == Status(False, "pod pod-1 runs")
    assert launcher.logs("a") == ""


def test_a_log_that_cannot_be_read_is_that_of_the_pods_end(cluster, launcher, run_pod):
    launcher.start(orders("a"))
    run_pod("pod-1", "a")
    cluster.end_pod("pod-1", 1, "the end")
    launcher.status()
    cluster.refuses = "log"
    assert launcher.logs("a") == "the end"


def test_a_lost_host_whose_pod_still_runs_loses_it_and_the_job_starts_another(
    cluster, launcher, run_pod
):
    launcher.start(orders("a.0", "b.0"))
    run_pod("pod-1", "a.0")
    launcher.stop(["a.0"])
    assert cluster.deleted_pods == ["pod-1"]
    launcher.start(orders("a.1"))
    assert cluster.num_places == [2]


def test_a_host_that_ended_well_is_replaced_by_another_job(cluster, launcher, run_pod):
    launcher.start(orders("a.0", "b.0"))
    run_pod("pod-1", "a.0")
    cluster.end_pod("pod-1", 0)
    assert launcher.status()["a.0"].ended
    (job,) = cluster.job_by_name.values()
    job["status"]["succeeded"] = 1
    launcher.stop(["a.0"])
    assert cluster.deleted_pods == []
    launcher.start(orders("a.1"))
    assert cluster.num_places == [2, 1]
    launcher.status()
    assert cluster.num_places == [2, 1]
    launcher.stop(["a.1", "b.0"])
    assert not cluster.job_by_name


def test_while_the_api_server_does_not_answer_what_it_said_last_counts(cluster, launcher, run_pod):
    launcher.start(orders("a"))
    run_pod("pod-1", "a")
    before = launcher.status()
    cluster.refuses = "pods"
    assert launcher.status() == before
    launcher.stop(["a"])
    assert not cluster.job_by_name


def test_hosts_may_end_by_themselves_before_they_are_ended(cluster, launcher, run_pod, monkeypatch):
    launcher.start(orders("a"))
    run_pod("pod-1", "a")
    monkeypatch.setattr(run.time, "sleep", lambda _: cluster.end_pod("pod-1", 0))
    launcher.stop(["a"], grace_s=60.0)
    assert cluster.deleted_pods == []


def test_who_waits_for_long_is_told_once(cluster, launcher, monkeypatch, caplog):
    monkeypatch.setattr(run, "_PATIENCE_S", 0.0)
    launcher.start(orders("a", "b"))
    cluster.pull_fails("pod-1")
    cluster.pull_fails("pod-2")
    with caplog.at_level(logging.WARNING, "clusterenv"):
        launcher.status()
        launcher.status()
    assert [record.getMessage() for record in caplog.records] == [
        "2 pod(s) wait: pod pod-1 waits: ErrImagePull: no"
    ]


@pytest.mark.parametrize(
    ("image", "name", "match"),
    [("", "run", "image=''"), ("rl", "Run_1", "name='Run_1'"), ("rl", "a" * 41, "at most 40")],
)
def test_what_kubernetes_would_refuse_is_refused_here(image, name, match):
    with pytest.raises(ValueError, match=match):
        KubernetesLauncher(image, name=name)


@pytest.mark.parametrize(
    ("cpus", "workers"), [(1, 1), (16, 16), (0.5, 1), ("500m", 1), ("2500m", 2), (None, None)]
)
def test_a_host_has_a_worker_per_core(cpus, workers):
    launcher = KubernetesLauncher("rl", hosts=4, cpus_per_host=cpus)
    assert (launcher.num_hosts, launcher.workers_per_host) == (4, workers)


@pytest.mark.parametrize(
    "wrong",
    [{"hosts": 0}, {"cpus_per_host": 0}, {"cpus_per_host": "many"}, {"gpus_per_host": -1}],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value!r} must be"):
        KubernetesLauncher("rl", **wrong)


def test_without_a_cluster_the_error_says_what_to_give(tmp_path):
    launcher = KubernetesLauncher("rl", kubeconfig=tmp_path / "none")
    with pytest.raises(ValueError, match="give kubeconfig= or context="):
        _ = launcher.towards
