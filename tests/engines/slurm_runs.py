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
def allocation(slurm, monkeypatch, nodes):
    """As a process in an allocation of the first nodes, with all their cores, sees it."""
    slurm.run(["salloc", "--no-shell", f"--nodes={nodes}", "--ntasks-per-node=4", "--time=10"])
    (job,) = slurm.jobs()
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_JOB_ID", job)
        patch.setenv("SLURM_JOB_NODELIST", f"n[1-{nodes}]")
        patch.setenv("SLURM_JOB_CPUS_PER_NODE", f"4(x{nodes})")
        yield job


def whole_allocation(slurm, monkeypatch):
    """As a process in an allocation of all nodes sees it."""
    return allocation(slurm, monkeypatch, 4)
