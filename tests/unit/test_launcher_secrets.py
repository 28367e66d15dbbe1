"""What a user gives to `environment=` is on no command line, where other users could read it."""

import inspect
import re

import pytest

from clusterenv import KubernetesLauncher, LocalLauncher, RayLauncher, SlurmLauncher, SshLauncher
from clusterenv.host.plan import WorkerLimits
from clusterenv.launchers.base import Order
from clusterenv.launchers.kubernetes.manifests import PodRequest
from clusterenv.launchers.slurm import launcher as slurm_launcher
from clusterenv.tools.checks import machine_checks
from clusterenv.wire.invitation import Invitation

VARIABLES = {"API_KEY": "S3CRET"}


@pytest.fixture(autouse=True)
def slurm_is_here(monkeypatch):
    monkeypatch.setattr(slurm_launcher, "_assert_installed", lambda command: None)


def local_command():
    return LocalLauncher(1, environment=VARIABLES).command("host-0.0")


def ssh_command():
    launcher = SshLauncher(["node"], ssh=("sh",), environment=VARIABLES)
    launcher._machine_by_host["host-0.0"] = "node"
    return launcher.command("host-0.0")


def slurm_job():
    return [SlurmLauncher(environment=VARIABLES, new_jobs=True).script()]


def slurm_step():
    return [SlurmLauncher(environment=VARIABLES, new_jobs=False).script()]


def kubernetes_command():
    return PodRequest("image", environment=VARIABLES).command()


@pytest.mark.parametrize(
    "command", [local_command, ssh_command, slurm_job, slurm_step, kubernetes_command]
)
def test_a_variable_is_on_no_command_line(command):
    words = command()
    assert any("clusterenv" in word for word in words)
    assert not any("S3CRET" in word for word in words)


def test_ssh_sends_variables_with_the_key():
    limits = WorkerLimits(1.0, 1.0, 1.0, 1)
    plain = Invitation("host-0.0", "tcp://x:1", *["key".ljust(40, ".")] * 3, 1.0, limits)
    launcher = SshLauncher(["node"], ssh=("sh",), environment=VARIABLES)
    sent = launcher.invitation(Order("host-0.0", plain.to_bytes()))
    assert Invitation.from_bytes(sent).environment == VARIABLES


# What tools advise must exist.


def test_the_doctor_advises_parameters_that_exist():
    launchers = [SlurmLauncher, KubernetesLauncher, RayLauncher, SshLauncher, LocalLauncher]
    by_name = {launcher.__name__: launcher for launcher in launchers}
    advised = re.findall(r"(\w+Launcher): (?:\"\s*\")?(\w+)=", inspect.getsource(machine_checks))
    assert ("SlurmLauncher", "mem_per_node") in advised
    assert ("KubernetesLauncher", "memory_per_host") in advised
    for name, parameter in advised:
        assert parameter in inspect.signature(by_name[name].__init__).parameters
