"""What the tests on Slurm share."""

from contextlib import contextmanager

WHOLE_NODE = {"cpus_per_worker": 4}
"""Each worker takes a node for itself."""


def processes_on(slurm, *nodes):
    """The workers that run on these nodes, or on all."""
    there = [slurm[node] for node in nodes or slurm.nodes]
    return [pid for node in there for pid in node.processes("clusterenv worker")]


@contextmanager
def whole_allocation(slurm, monkeypatch):
    """As a process in an allocation of all nodes sees it."""
    slurm.run(["salloc", "--no-shell", "--nodes=4", "--ntasks-per-node=4", "--time=10"])
    (job,) = slurm.jobs()
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    try:
        yield job
    finally:
        monkeypatch.delenv("SLURM_JOB_ID")
        monkeypatch.delenv("SLURM_JOB_NODELIST")
