"""The one place that asks whether this platform has what ClusterEnv needs.

Worker processes use what only Linux has: memory without a name, ``/proc``, signals when a pipe
closes. Workers that are threads, and a head whose hosts are elsewhere, need what any Unix has.
Modules that a platform may lack are imported only where they are used, so that this comes first.
"""

from __future__ import annotations

import importlib
import os
import sys

from clusterenv.errors import StartupError

_FOR_HEADS = ("fcntl", "os.register_at_fork", "os.sched_yield", "resource", "select.poll")
_FOR_WORKERS = ("os.memfd_create", "os.posix_fallocate", "/proc")


def lacking_for_heads() -> list[str]:
    """What any head needs and is missing here: nothing on Linux and macOS."""
    return [name for name in _FOR_HEADS if not _is_here(name)]


def lacking_for_workers() -> list[str]:
    """What worker processes or their head need and is missing here: nothing on Linux."""
    return lacking_for_heads() + [name for name in _FOR_WORKERS if not _is_here(name)]


def check_head() -> None:
    """StartupError if no head can run here."""
    if lacking := lacking_for_heads():
        raise StartupError(
            f"ClusterEnv needs Linux, or macOS with launcher='in-process': {sys.platform} lacks "
            f"{', '.join(lacking)}; on Windows, use it within WSL 2"
        )


def check_workers() -> None:
    """StartupError if no worker process can run here."""
    check_head()
    if lacking := lacking_for_workers():
        raise StartupError(
            f"workers that are processes need Linux: {sys.platform} lacks {', '.join(lacking)}; "
            "use launcher='in-process' here, or hosts on Linux machines (SshLauncher, …)"
        )


def _is_here(name: str) -> bool:
    """Whether there is such a folder, module, or function of a module."""
    if name.startswith("/"):
        return os.path.isdir(name)
    module, _, function = name.partition(".")
    try:
        found = importlib.import_module(module)
    except ImportError:
        return False
    return not function or hasattr(found, function)
