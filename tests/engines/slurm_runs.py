"""What the tests on Slurm share."""

from contextlib import contextmanager

from tests.engines.checked_runs import hosts_on


def processes_on(slurm, *nodes):
    """The hosts that run on these nodes, or on all."""
    return [pid for node in nodes or slurm.nodes for pid in hosts_on(slurm[node])]


def nothing_runs_on(slurm):
    """Whether there is neither a host nor a worker on any node."""
    return not any(slurm[node].processes("-m clusterenv") for node in slurm.nodes)


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
