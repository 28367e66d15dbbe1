"""Hosts on a Ray cluster."""

from clusterenv.launchers.ray.launcher import RayLauncher

__all__ = ["RayLauncher"]
