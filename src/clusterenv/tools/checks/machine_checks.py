"""Turns facts about a machine into findings. Pure: it opens nothing."""

from __future__ import annotations

from collections.abc import Iterator

from clusterenv.tools.checks.findings import Finding, ok, problem, size, warning
from clusterenv.tools.checks.machine import MachineFacts

# Docker's default for a container; PyTorch and Ray are known to need more.
_SMALL_SHM_BYTES = 64 << 20
_MEMORY_PER_WORKER_BYTES = 200 << 20
_FILES_PER_WORKER = 8
_FILES_BESIDES = 100


def check_machine(facts: MachineFacts, num_workers: int) -> Iterator[Finding]:
    """Findings about a machine on which this many workers will run, or none."""
    yield _name(facts)
    yield _shm(facts)
    yield _open_files(facts, num_workers)
    if num_workers:
        yield _memory(facts, num_workers)
        yield _cores(facts, num_workers)


def check_threads(facts: MachineFacts) -> Finding:
    """Whether a worker's numerical libraries keep to one core."""
    several = [f"{name}={value or '(unset)'}" for name, value in facts.threads.items()]
    several = [setting for setting in several if not setting.endswith("=1")]
    if not several:
        return ok("threads: numerical libraries of the workers use one thread each")
    return warning(
        f"threads: {', '.join(several)} on {facts.name}: libraries of each worker may start a "
        "thread per core, and these fight for the cores",
        "set them to 1 in the launcher's environment=",
    )


def check_rows(num_bytes: int, num_envs: int, trouble: str, where: str) -> Finding:
    """Whether the rows of a host's slots fit into memory shared with its workers."""
    what = f"shared memory: {size(num_bytes)} for the rows of {num_envs} envs"
    if not trouble:
        return ok(f"{what} can be had on {where}")
    return problem(
        f"{what} cannot be had on {where} ({trouble})",
        "raise the memory limit of the container or cgroup and `ulimit -f`, or take fewer envs or "
        "smaller observations there",
    )


def _name(facts: MachineFacts) -> Finding:
    if facts.address:
        return ok(f"name of this machine: {facts.name} is {facts.address}")
    return warning(
        f"name of this machine: {facts.name!r} cannot be resolved here",
        "add it to /etc/hosts; ClusterEnv itself goes by addresses, but MPI, Ray and torch do not",
    )


def _shm(facts: MachineFacts) -> Finding:
    what = f"/dev/shm: {size(facts.shm_free_bytes)} of {size(facts.shm_bytes)} are free"
    if facts.shm_free_bytes >= _SMALL_SHM_BYTES:
        return ok(what)
    return warning(
        f"{what} on {facts.name}, which is too small for PyTorch's loaders, Ray and some envs "
        "(ClusterEnv's own memory has no name and does not count against it)",
        "docker run --shm-size=1g; Kubernetes: mount an emptyDir with medium: Memory at /dev/shm; "
        "else: mount -o remount,size=1g /dev/shm",
    )


def _open_files(facts: MachineFacts, num_workers: int) -> Finding:
    needed = _FILES_PER_WORKER * num_workers + _FILES_BESIDES
    what = f"open files: {facts.open_files_limit} allowed"
    if facts.open_files_limit >= needed:
        return ok(what)
    return problem(
        f"{what} on {facts.name}, {num_workers} workers need about {needed}",
        f"ulimit -n {max(4096, needed)}, before the run starts",
    )


def _memory(facts: MachineFacts, num_workers: int) -> Finding:
    limit = facts.memory_limit_bytes
    if limit is None:
        return ok("memory: no cgroup limit")
    free, needed = limit - facts.memory_used_bytes, num_workers * _MEMORY_PER_WORKER_BYTES
    what = f"memory: {size(max(0, free))} left of the cgroup's {size(limit)}"
    if free >= needed:
        return ok(what)
    return warning(
        f"{what} on {facts.name}: {num_workers} Python processes alone take about {size(needed)}, "
        "and the kernel kills a worker when it is used up",
        "raise the memory limit (SlurmLauncher: mem_per_node=, KubernetesLauncher: "
        "memory_per_host=), or take fewer workers: num_workers=",
    )


def _cores(facts: MachineFacts, num_workers: int) -> Finding:
    usable = min(facts.cores, facts.cpu_limit or facts.cores)
    what = f"cores: {facts.cores} for {num_workers} worker(s)"
    if facts.cpu_limit is not None:
        what += f", of which the cgroup grants {facts.cpu_limit:g}"
    if num_workers <= usable:
        return ok(what)
    return warning(
        f"{what} on {facts.name}: workers take turns, which costs more than it gives",
        f"num_workers={max(1, int(usable))}, or a larger cpu limit",
    )
