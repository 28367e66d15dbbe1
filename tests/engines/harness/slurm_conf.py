"""What slurm.conf says for a cluster on one machine: no cgroups, no accounting, quick to notice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CPUS_PER_NODE = 4
"""As advertised; the nodes share the cores of this machine."""

SETTINGS = """
ClusterName=clusterenv
SlurmctldHost={head}
SlurmctldPort={port}
SlurmdPort=6818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
# Nodes may advertise more cores than this machine has.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
# A silent node is down after about twice SlurmdTimeout, and back when it registers again.
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=5
ReturnToService=2
TreeWidth=64
KillWait=3
BatchStartTimeout=10
UnkillableStepTimeout=20
CompleteWait=0
InactiveLimit=0
Waittime=0
JobRequeue=1
MinJobAge=300
PropagateResourceLimits=NONE
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
"""

PARTITIONS = """
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE DefaultTime=60 OverSubscribe=NO
PartitionName=main Default=YES PriorityTier=5 PreemptMode=OFF
PartitionName=low PriorityTier=1 PreemptMode=CANCEL
PartitionName=urgent PriorityTier=9 PreemptMode=OFF
PartitionName=closed State=DOWN
"""


def slurm_conf(folder: Path, head: str, port: int, addresses: Mapping[str, str]) -> str:
    """The text of the file, for nodes at these addresses; all other files are in ``folder``."""
    shape = f"CPUs={CPUS_PER_NODE} Boards=1 SocketsPerBoard=1 CoresPerSocket={CPUS_PER_NODE}"
    nodes = [
        f"NodeName={name} NodeHostname={name} NodeAddr={address} {shape}"
        " ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN\n"
        for name, address in addresses.items()
    ]
    return SETTINGS.format(port=port, folder=folder, head=head) + "".join(nodes) + PARTITIONS
