"""Where the workers run, by name: the one place to edit for a cluster of your own.

NODES=4 asks for four hosts, CPUS=16 for as many cores on each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from clusterenv import InProcessLauncher, Launcher, LocalLauncher, SlurmLauncher, SshLauncher

LauncherName = Literal["local", "local-hosts", "in-process", "slurm", "ssh", "ray", "kubernetes"]


def make_launcher(name: LauncherName) -> Launcher:
    """The launcher that ``--launcher`` names; give yours its partition, image or hosts here."""
    nodes = int(os.environ.get("NODES", "1"))
    cpus = int(os.environ["CPUS"]) if "CPUS" in os.environ else None
    match name:
        case "local":
            return LocalLauncher()
        case "local-hosts":
            # Host processes behind sockets, as on a cluster.
            return LocalLauncher(hosts=int(os.environ.get("NODES", "2")))
        case "in-process":
            return InProcessLauncher()
        case "slurm":
            return SlurmLauncher(nodes=nodes, cpus_per_node=cpus)
        case "ssh":
            # HOSTS=node1,node2 or, in hosts.txt, a name and, if you like, its workers per line.
            names = os.environ.get("HOSTS")
            return SshLauncher(names.split(",") if names else Path("hosts.txt"))
        case "ray":
            from clusterenv import RayLauncher

            # The cluster of RAY_ADDRESS, or this machine's.
            return RayLauncher(nodes=nodes, cpus_per_node=cpus or 1)
        case "kubernetes":
            # IMAGE=registry.example/rl:1, made with docker/Dockerfile.
            from clusterenv import KubernetesLauncher

            return KubernetesLauncher(
                os.environ["IMAGE"], hosts=nodes, cpus_per_host=cpus or 1, run_as_user=1000
            )
