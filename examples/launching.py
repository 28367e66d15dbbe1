"""Where the workers run, by name: the one place to edit for a cluster of your own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from clusterenv import InProcessLauncher, Launcher, LocalLauncher, SlurmLauncher, SshLauncher

LauncherName = Literal["local", "in-process", "slurm", "ssh", "ray", "kubernetes"]


def make_launcher(name: LauncherName) -> Launcher:
    """The launcher that ``--launcher`` names; give yours its partition, image or hosts here."""
    match name:
        case "local":
            return LocalLauncher()
        case "in-process":
            return InProcessLauncher()
        case "slurm":
            return SlurmLauncher()
        case "ssh":
            # HOSTS=node1,node2 or, in hosts.txt, a host and its number of workers per line.
            names = os.environ.get("HOSTS")
            return SshLauncher(names.split(",") if names else Path("hosts.txt"))
        case "ray":
            from clusterenv import RayLauncher

            return RayLauncher()  # the cluster of RAY_ADDRESS, or this machine's
        case "kubernetes":
            # IMAGE=registry.example/rl:1, made with docker/Dockerfile.
            from clusterenv import KubernetesLauncher

            return KubernetesLauncher(os.environ["IMAGE"], run_as_user=1000)
