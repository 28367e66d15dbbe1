"""What to change where Slurm refuses a job, or keeps it waiting for ever. Pure."""

from __future__ import annotations

import re

_LARGER_THAN_ALLOWED = re.compile(r"(?:Assoc|QOS)Max\w+PerJob(?:Limit)?")
_CANNOT_START = {
    "AccountNotAllowed": "the partition does not take account=: choose another of the two",
    "BadConstraints": "no node has what the job asks for: check constraint= and extra=",
    "InvalidAccount": "Slurm does not know account=: see `sacctmgr show associations user=$USER`",
    "InvalidQOS": "Slurm does not know qos=: see `sacctmgr show qos`",
    "PartitionConfig": "no node of the partition is large enough: ask for less with "
    "cpus_per_node=, mem_per_node= or gpus_per_node=, or choose another partition; see `sinfo -Nl`",
    "PartitionNodeLimit": "the partition does not take jobs of this many nodes, and each host is "
    "a job of one node: choose another partition, or check extra=",
    "PartitionTimeLimit": "the partition's limit is shorter: lower time_limit=, or choose another "
    "partition; see `sinfo -o '%P %l'`",
    "QOSNotAllowed": "the partition does not take qos=: choose another of the two",
}
"""Reasons for which a job is pending and never starts, however long it waits."""
_TOO_LARGE = _CANNOT_START["PartitionConfig"]
_REFUSED = {
    "invalid partition": "Slurm does not know partition=: `sinfo -s` shows those that there are",
    "no partition specified": "name one with partition=: `sinfo -s` shows those that there are",
    "invalid account": "check account=, or whether the partition takes it: see "
    "`sacctmgr show associations user=$USER`",
    "invalid qos": _CANNOT_START["InvalidQOS"],
    "invalid feature": "no node has these features: check constraint=; see `sinfo -o '%N %f'`",
    "policy": "your account or qos allows no job as large or as long, or no more jobs: ask for "
    "less, or choose another account= or qos=",
    "time limit": _CANNOT_START["PartitionTimeLimit"],
    "node configuration is not available": _TOO_LARGE,
    "cpu count": _TOO_LARGE,
    "memory specification": _TOO_LARGE,
    "generic resource": "no node has what gpus_per_node= asks for: see `sinfo -o '%N %G'`",
    "unable to contact": "Slurm's controller does not answer: try `scontrol ping`",
}
"""Words of sbatch, in lower case."""
_UNKNOWN = "change the launcher's arguments; print(launcher.script()) shows what is submitted"


def advice_on_waiting(reason: str) -> str:
    """Why a job waits for something that cannot happen, and what to do; empty if it may start."""
    if _LARGER_THAN_ALLOWED.fullmatch(reason):
        return "no job may be this large or long: ask for less, or choose another qos="
    return _CANNOT_START.get(reason, "")


def advice_on_refusal(said: str) -> str:
    """What to do after sbatch has said this."""
    known = (advice for words, advice in _REFUSED.items() if words in said.lower())
    return next(known, _UNKNOWN)
