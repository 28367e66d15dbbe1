"""The ways to reach workers that every contract test runs on; a new launcher is one line here."""

from clusterenv import ClusterEnv

TRANSPORTS = {
    "shared_memory": lambda: {"launcher": "local", "shared_memory": True},
    "tcp": lambda: {"launcher": "local", "shared_memory": False},
    "in-process": lambda: {"launcher": "in-process"},
}


def cluster_env(transport, env, num_envs=None, num_workers=None, **kwargs):
    """Return a ClusterEnv over the named transport."""
    return ClusterEnv(env, num_envs, num_workers, **TRANSPORTS[transport](), **kwargs)
