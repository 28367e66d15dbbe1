"""The ways to reach workers that every contract test runs on; a new launcher is one line here."""

from clusterenv import ClusterEnv, LocalLauncher
from tests.integration.polling import eventually

FOUR_HOSTS = "four_hosts"
TRANSPORTS = {
    "shared_memory": lambda num_envs: {"launcher": "local", "shared_memory": True},
    "tcp": lambda num_envs: {"launcher": "local", "shared_memory": False},
    FOUR_HOSTS: lambda num_envs: {"launcher": LocalLauncher(hosts=min(4, num_envs))},
    "in-process": lambda num_envs: {"launcher": "in-process"},
}
SOCKETS = ["tcp", FOUR_HOSTS]
PROCESSES = ["shared_memory", *SOCKETS]
IN_TURNS = ["shared_memory", "tcp", "in-process"]
"""For tests whose cases take a transport each; ``and_on_four_hosts`` adds the fourth."""


def and_on_four_hosts(cases):
    """These cases, and those over tcp once more with four hosts."""
    cases = list(cases)
    again = [tuple(FOUR_HOSTS if part == "tcp" else part for part in case) for case in cases]
    return cases + [case for case in again if FOUR_HOSTS in case]


def cluster_env(transport, env, num_envs=None, num_workers=None, **kwargs):
    """Return a ClusterEnv over the named transport."""
    count = num_envs or (len(env) if isinstance(env, list | tuple) else 1)
    return ClusterEnv(env, num_envs, num_workers, **TRANSPORTS[transport](count), **kwargs)


def hosts_of(envs):
    """The names of the hosts that run the envs."""
    return sorted({worker.host for worker in envs.workers})


def assert_are_of_whole_workers(slots, envs):
    """Of one worker; or of several, where a host behind a socket joins what they have ready."""
    for worker in envs.workers:
        assert len(set(worker.slots) - set(slots)) in (0, len(worker.slots))


def weight_bytes(envs):
    """Bytes of weights that went to hosts so far, through a socket or into shared memory."""
    ledger = envs.ledger
    # Who counts what goes through a socket hears only afterwards that it has arrived.
    num_sent = sum(pull.bytes > 0 for pull in ledger.pulls)
    assert eventually(lambda: len(ledger.pull_latencies_s) == num_sent)
    return ledger.bytes_by_kind.get("Weights", 0) + ledger.shared_bytes
