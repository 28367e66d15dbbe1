"""How many cores there are, what an order shows, what is said about wrong parameters."""

import os

import pytest

from clusterenv.counts import check_count
from clusterenv.launchers import base
from clusterenv.launchers.attach import AttachLauncher
from clusterenv.launchers.base import Order, cgroup_quota
from clusterenv.launchers.in_process import InProcessLauncher
from clusterenv.launchers.kubernetes import KubernetesLauncher
from clusterenv.launchers.local import LocalLauncher
from clusterenv.launchers.parameters import check_environment
from clusterenv.launchers.ray import RayLauncher
from clusterenv.launchers.slurm import SlurmLauncher
from clusterenv.launchers.ssh import SshLauncher

ALL_LAUNCHERS = {
    InProcessLauncher: (),
    LocalLauncher: (2,),
    SshLauncher: (["a", "b"],),
    AttachLauncher: ("run.key",),
    SlurmLauncher: ("cpu",),
    RayLauncher: ("auto",),
    KubernetesLauncher: ("image",),
}
"""Each with what it takes at least."""

# Cores.

V2 = "0::/user.slice/job\n"
V1 = "12:pids:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/\n"
QUOTAS = {
    "v2": (
        {"/proc/self/cgroup": V2, "/sys/fs/cgroup/user.slice/job/cpu.max": "150000 100000\n"},
        1.5,
    ),
    "v2, a parent's": (
        {
            "/proc/self/cgroup": V2,
            "/sys/fs/cgroup/user.slice/job/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/user.slice/cpu.max": "400000 100000\n",
            "/sys/fs/cgroup/cpu.max": "800000 100000\n",
        },
        4.0,
    ),
    "v2, of a container": (
        {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "50000 100000"},
        0.5,
    ),
    "v2, without a limit": (
        {"/proc/self/cgroup": V2, "/sys/fs/cgroup/cpu.max": "max 100000\n"},
        None,
    ),
    "v1": (
        {
            "/proc/self/cgroup": V1,
            "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "250000\n",
            "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        },
        2.5,
    ),
    "v1, of a container that sees another's path": (
        {
            "/proc/self/cgroup": "3:cpuacct,cpu:/docker/4711\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        3.0,
    ),
    "v1, without a limit": (
        {
            "/proc/self/cgroup": V1,
            "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        },
        None,
    ),
    "both, as on hybrid machines": (
        {
            "/proc/self/cgroup": V1 + V2,
            "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "100000\n",
            "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "50000\n",
        },
        2.0,
    ),
    "nonsense": ({"/proc/self/cgroup": "what\n::\n", "/sys/fs/cgroup/cpu.max": "? 0"}, None),
    "no cgroups": ({}, None),
}


@pytest.mark.parametrize(("files", "quota"), QUOTAS.values(), ids=QUOTAS)
def test_the_quota_is_the_smallest_of_the_cgroups_on_the_way_up(files, quota):
    assert cgroup_quota(files.get) == quota


@pytest.mark.parametrize(
    ("quota", "cores"), [(None, 4), (0.2, 1), (1.0, 1), (1.5, 2), (3.01, 4), (64.0, 4)]
)
def test_cores_are_those_of_the_affinity_as_far_as_the_quota(monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(base, "cgroup_quota", lambda read: quota)
    assert base.cores() == cores


def test_this_machine_has_cores():
    assert 1 <= base.cores() <= len(os.sched_getaffinity(0))


# Orders and parameters.


def test_an_order_does_not_show_its_secret():
    assert "secret" not in repr(Order("host-0.0", b"the secret"))


@pytest.mark.parametrize("launcher", ALL_LAUNCHERS)
def test_a_launcher_has_all_that_the_head_asks_for(launcher, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda program: program)
    members = {name for name in vars(base.Launcher) if not name.startswith("_")}
    assert {"num_hosts", "workers_per_host", "enrolled"} < members
    # `dir` does not ask for values: some take a cluster to answer.
    assert members <= set(dir(launcher(*ALL_LAUNCHERS[launcher])))


@pytest.mark.parametrize("launcher", list(ALL_LAUNCHERS)[1:])
def test_a_parameter_that_does_not_exist_is_answered_with_those_that_do(launcher):
    with pytest.raises(
        TypeError, match=r"has no parameter workers_per_job=.*; it takes: "
    ) as caught:
        launcher(*ALL_LAUNCHERS[launcher], workers_per_job=2)
    assert {"environment", "key_file"} & set(str(caught.value).replace(",", "").split())


def test_a_parameter_that_is_nearly_right_is_named():
    with pytest.raises(
        TypeError, match=r"no parameter enviroment= \(did you mean environment=\?\)"
    ):
        LocalLauncher(enviroment={})


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (0, ValueError, "nodes=0 must be at least 1; ask"),
        (2.0, TypeError, "nodes=2.0 must be a whole number"),
        ("2", TypeError, "nodes='2' must be"),
        (True, TypeError, "nodes=True must be"),
    ],
)
def test_a_count_that_is_none_is_refused(value, error, words):
    with pytest.raises(error, match=words):
        check_count("nodes", value, advice="ask")


def test_variables_are_text():
    with pytest.raises(TypeError, match=r"environment=\{'N': 1\}: .* as in \{'N': '1'\}"):
        check_environment({"N": 1})
    with pytest.raises(ValueError, match="a variable's name must not be empty or contain '='"):
        check_environment({"A=B": "1"})
    assert check_environment(None) == {}
