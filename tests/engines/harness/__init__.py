"""Starts and stops real engines for the tests: hosts, Slurm, ssh, Ray.

A host is a set of namespaces (network, host name, mounts) kept by one process, so that nothing of
it can outlast its processes. Each harness claims a number that makes its addresses and its bridge
its own, and has a keeper that clears up when the process that owns it is killed.
"""

from tests.engines.harness.host import Host
from tests.engines.harness.namespaces import Hosts
from tests.engines.harness.packages import why_not_here
from tests.engines.harness.ray import RayCluster
from tests.engines.harness.slurm import SlurmCluster
from tests.engines.harness.ssh import SshHosts

__all__ = ["Host", "Hosts", "RayCluster", "SlurmCluster", "SshHosts", "why_not_here"]
