"""What is asked of Kubernetes is what its API takes, strictly, with every option."""

import kubernetes_validate
import pytest
import yaml

from clusterenv.launchers.kubernetes import KubernetesLauncher, manifests
from clusterenv.launchers.kubernetes.manifests import PodRequest

VERSIONS = ["1.25", "1.30", kubernetes_validate.latest_version()]
TICKET = '{"host":"applicant","secret_key":"it\'s # a: secret"}'
OWNER = manifests.owner("Pod", "v1", "head", "0b7c9e3e-0000-4000-8000-000000000000")
OPTIONS = {
    "cpus_per_host": 0.5,
    "memory_per_host": "2Gi",
    "gpus_per_host": 1,
    "gpu_resource": "amd.com/gpu",
    "node_selector": {"disk": "ssd", "on": "yes"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "volumes": [{"name": "games", "persistentVolumeClaim": {"claimName": "roms"}}],
    "volume_mounts": [{"name": "games", "mountPath": "/games", "readOnly": True}],
    "service_account": "trainer",
    "priority_class": "low",
    "image_pull_secrets": ["registry"],
    "image_pull_policy": "Always",
    "environment": {"ROMS": "/games", "NUMBER": "1", "QUOTED": 'a "b" \\ : #\n€'},
    "python": "/opt/venv/bin/python",
    "labels": {"team": "rl"},
    "annotations": {"example.com/note": "mine"},
    "run_as_user": 1000,
    "pod_spec": {
        "terminationGracePeriodSeconds": 5,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    },
}
EVERYTHING = PodRequest(image="registry.example/rl:1", **OPTIONS)


def documents(request):
    return [
        manifests.secret(request, "run-1", TICKET, [OWNER]),
        manifests.job(request, "run-1-0", "run-1", 7, [OWNER]),
    ]


def pod_of(request):
    return manifests.job(request, "run-1-0", "run-1", 7)["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("option", [None, *OPTIONS, "all"])
def test_every_option_gives_valid_manifests(option, version):
    given = OPTIONS if option == "all" else {k: v for k, v in OPTIONS.items() if k == option}
    for document in documents(PodRequest(image="rl", **given)):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_validation_is_strict():
    (_, job) = documents(PodRequest(image="rl", pod_spec={"nodeSelektor": {}}))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


def test_each_option_is_where_kubernetes_looks_for_it():
    pod = pod_of(EVERYTHING)
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "0.5", "memory": "2Gi", "amd.com/gpu": "1"},
        "limits": {"memory": "2Gi", "amd.com/gpu": "1"},
    }
    assert pod["nodeSelector"] == OPTIONS["node_selector"]
    assert pod["tolerations"] == OPTIONS["tolerations"]
    assert [volume["name"] for volume in pod["volumes"]] == ["clusterenv-key", "games", "shm"]
    assert container["volumeMounts"][1:] == OPTIONS["volume_mounts"]
    assert pod["serviceAccountName"] == "trainer"
    assert pod["priorityClassName"] == "low"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert container["imagePullPolicy"] == "Always"
    assert {"name": "ROMS", "value": "/games"} in container["env"]
    assert container["command"][0] == "/opt/venv/bin/python"
    assert pod["terminationGracePeriodSeconds"] == 5
    assert pod["securityContext"]["fsGroup"] == 1000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    template = manifests.job(EVERYTHING, "a", "b", 1)["spec"]["template"]["metadata"]
    assert template["annotations"] == OPTIONS["annotations"]
    assert template["labels"] == {"team": "rl", **manifests.run_labels("b")}


def test_only_the_head_restarts_hosts_within_its_budget():
    job = manifests.job(EVERYTHING, "run-1-0", "run-1", 7)["spec"]
    assert job["parallelism"] == job["completions"] == 7
    assert job["backoffLimit"] >= 1_000_000
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_the_ticket_is_in_the_secret_and_reaches_the_host_as_a_file_that_only_it_can_read():
    secret, job = documents(EVERYTHING)
    assert secret["stringData"] == {"key": TICKET}
    assert "secret_key" not in str(job)
    (key, *_) = job["spec"]["template"]["spec"]["volumes"]
    assert key["secret"] == {"secretName": "run-1", "defaultMode": 0o400}
    (container,) = job["spec"]["template"]["spec"]["containers"]
    mount = container["volumeMounts"][0]
    assert container["command"][-3:] == ["--key-file", f"{mount['mountPath']}/key", "--once"]


def test_a_host_learns_the_name_of_its_pod():
    (container,) = pod_of(PodRequest(image="rl"))["containers"]
    (place,) = [one for one in container["env"] if one["name"] == "CLUSTERENV_PLACE"]
    assert place["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert container["command"][1:4] == ["-m", "clusterenv", "host"]


def test_hosts_get_no_way_to_the_api_server_unless_they_have_an_account_for_it():
    assert pod_of(PodRequest(image="rl"))["automountServiceAccountToken"] is False
    assert "automountServiceAccountToken" not in pod_of(EVERYTHING)


def test_nothing_outlives_the_pod_of_the_head():
    for document in documents(EVERYTHING):
        assert document["metadata"]["ownerReferences"] == [OWNER]


def test_the_yaml_says_what_the_dictionaries_say():
    text = manifests.to_yaml(*documents(EVERYTHING))
    assert list(yaml.safe_load_all(text)) == documents(EVERYTHING)


def test_what_the_launcher_shows_is_valid_and_holds_no_key():
    text = KubernetesLauncher("registry.example/rl:1", hosts=3, **OPTIONS).manifests()
    secret, job = yaml.safe_load_all(text)
    for document in (secret, job):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
    assert secret["stringData"] == {"key": manifests.NO_KEY}
    assert job["spec"]["parallelism"] == 3
