"""The ways to reach workers that every contract test runs on; a new launcher is one line here."""

from clusterenv import ClusterEnv
from tests.integration.polling import eventually

TRANSPORTS = {
    "shared_memory": lambda: {"launcher": "local", "shared_memory": True},
    "tcp": lambda: {"launcher": "local", "shared_memory": False},
    "in-process": lambda: {"launcher": "in-process"},
}


def cluster_env(transport, env, num_envs=None, num_workers=None, **kwargs):
    """Return a ClusterEnv over the named transport."""
    return ClusterEnv(env, num_envs, num_workers, **TRANSPORTS[transport](), **kwargs)


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
