"""Hosts on a Slurm cluster."""

from clusterenv.launchers.slurm.launcher import SlurmLauncher

__all__ = ["SlurmLauncher"]
