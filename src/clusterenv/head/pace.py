"""How fast each host is, and whether the slots should be dealt differently."""

from __future__ import annotations

from collections.abc import Sequence

from clusterenv.head.fleet import Host
from clusterenv.sharing import shares

# Moving slots restarts their envs: only for a worthwhile gain, and not at first sight.
_WORTHWHILE_GAIN = 0.9
_ROLLOUTS_BEFORE_MOVING = 2
_NEWEST_WEIGHT = 0.5


class Pace:
    """Measured speeds of hosts, in env steps per second. Pure decisions."""

    def __init__(self) -> None:
        self._speeds: dict[str, float] = {}
        self._looks: dict[str, int] = {}

    def note(self, host: Host, num_steps: int, seconds: float) -> None:
        """Note that a fragment of this many steps of each of the host's slots took ``seconds``."""
        speed = len(host.slots) * num_steps / max(seconds, 1e-9)
        before = self._speeds.get(host.name, speed)
        self._speeds[host.name] = before + _NEWEST_WEIGHT * (speed - before)
        self._looks[host.name] = self._looks.get(host.name, 0) + 1

    def better_shares(self, hosts: Sequence[Host]) -> list[float]:
        """Weights to deal slots by, if that shortens rollouts enough; else an empty list."""
        if any(self._looks.get(h.name, 0) < _ROLLOUTS_BEFORE_MOVING for h in hosts):
            return []
        speeds = [self._speeds[host.name] for host in hosts]
        sizes = [len(host.slots) for host in hosts]
        dealt = shares(sum(sizes), speeds)
        now_s, then_s = _slowest_s(sizes, speeds), _slowest_s(dealt, speeds)
        if then_s > _WORTHWHILE_GAIN * now_s:
            return []
        self._looks.clear()
        return speeds


def _slowest_s(sizes: Sequence[int], speeds: Sequence[float]) -> float:
    """How long one step of all slots takes: as long as the slowest host."""
    return max(size / speed for size, speed in zip(sizes, speeds, strict=True))
