"""The versions on each side, and whether two sides can work together."""

from __future__ import annotations

import platform

import gymnasium
import numpy as np

from clusterenv.version import __version__

# How many parts of each version must agree. Functions travel as byte code, so Python's minor
# version counts; spaces and arrays are rebuilt, so numpy's major and gymnasium's minor do.
_PARTS_THAT_COUNT = {"python": 2, "numpy": 1, "gymnasium": 2, "clusterenv": 3}


def versions() -> dict[str, str]:
    """The versions that run here."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
        "clusterenv": __version__,
    }


def disagreements(head: dict[str, str], host: dict[str, str]) -> list[str]:
    """What keeps a host with these versions from working for such a head."""
    return [
        f"{name} {host.get(name, 'missing')} on the host, {head[name]} on the head"
        for name in _that_differ(head, host)
    ]


def remedy(head: dict[str, str], host: dict[str, str]) -> str:
    """What to do about the disagreements; empty if there are none."""
    names = _that_differ(head, host)
    packages = [f"{name}=={head[name]}" for name in names if name != "python"]
    steps = [f"start hosts with Python {'.'.join(head['python'].split('.')[:2])}"]
    steps = steps if "python" in names else []
    steps += [f"run `python -m pip install {' '.join(packages)}` there"] if packages else []
    return ", and ".join(steps)


def _that_differ(head: dict[str, str], host: dict[str, str]) -> list[str]:
    return [
        name
        for name, parts in _PARTS_THAT_COUNT.items()
        if host.get(name, "").split(".")[:parts] != head[name].split(".")[:parts]
    ]
