"""Hosts on a Kubernetes cluster."""

from clusterenv.launchers.kubernetes.launcher import KubernetesLauncher

__all__ = ["KubernetesLauncher"]
