"""The record of what moved and why: versions, pulls with their causes, bytes, divergences."""

from __future__ import annotations

import time
from collections import Counter, deque

from clusterenv.sync.records import Loss, Measurement, PullRecord, Version, WarningRecord
from clusterenv.sync.tallies import KEPT, LossTally, PullTally

_ANNOUNCEMENTS = ("Announce", "Pull", "Pulled")
_KEPT_WARNINGS = 100
_LONGEST_WARNING = 4_000


class Ledger:
    """What moved between head and hosts, and what was lost.

    Written by the head's threads, read by anyone.
    """

    def __init__(self) -> None:
        self.hash_seed: int | None = None
        """The ``PYTHONHASHSEED`` of all workers; None if they are threads of the head."""
        self._started = time.monotonic()
        self._bytes_by_kind: Counter[str] = Counter()
        self._shared_bytes = 0
        self._observation_bytes = self._coded_bytes = 0
        self._dropped_steps = 0
        self._measurements: deque[Measurement] = deque(maxlen=KEPT)
        self._latest_by_host: dict[str, Measurement] = {}
        self._pulls, self._losses = PullTally(), LossTally()
        self._warnings: deque[WarningRecord] = deque(maxlen=_KEPT_WARNINGS)

    def count(self, kind: str, num_bytes: int) -> None:
        """Count the bytes of a message that went through the socket."""
        self._bytes_by_kind[kind] += num_bytes

    def count_shared(self, num_bytes: int) -> None:
        """Count bytes of weights that were copied into shared memory, not through a socket."""
        self._shared_bytes += num_bytes

    def count_coded(self, num_bytes: int, num_coded: int) -> None:
        """Observations of ``num_bytes`` came through the socket as ``num_coded`` bytes."""
        self._observation_bytes += num_bytes
        self._coded_bytes += num_coded

    def count_dropped(self, num_steps: int) -> None:
        """These steps were requested, and nobody will read them."""
        self._dropped_steps += num_steps

    def forget(self, host: str) -> None:
        """A host is gone, and would not have pulled later versions."""
        self._pulls.forget(host)
        self._latest_by_host.pop(host, None)

    def record_version(self, version: int, num_bytes: int) -> None:
        """Weights were published."""
        self._pulls.add_version(Version(self._now_s(), version, num_bytes))

    def record_pull(
        self,
        host: str,
        version: int,
        *,
        held: int,
        cause: str,
        num_bytes: int,
        threshold: float,
        shares_memory: bool = False,
    ) -> None:
        """A host that holds ``held`` gets ``version`` by message, or by shared memory."""
        pull = PullRecord(self._now_s(), host, version, held, cause, num_bytes, threshold)
        self._pulls.add_pull(pull, shares_memory=shares_memory)

    def record_latency(self, seconds: float) -> None:
        """A host has loaded what it asked for ``seconds`` ago."""
        self._pulls.add_latency(seconds)

    def record_measurement(
        self,
        host: str,
        *,
        held: int,
        newest: int,
        divergence: float,
        standard_error: float,
        effective_sample_size: float,
        realised: float | None,
    ) -> None:
        """The divergence of a host's copy from the newest version was measured."""
        measurement = Measurement(
            self._now_s(),
            host,
            held,
            newest,
            divergence,
            standard_error,
            effective_sample_size,
            realised,
        )
        self._measurements.append(measurement)
        self._latest_by_host[host] = measurement

    def record_loss(
        self, host: str, worker: str, slots: tuple[int, ...], slot: int | None, reason: str
    ) -> None:
        """A worker of ``host`` was lost; or the host itself, if ``worker`` is empty."""
        self._losses.add(Loss(self._now_s(), host, worker, slots, slot, reason))

    def record_warning(self, text: str) -> None:
        """The user was warned of something."""
        self._warnings.append(WarningRecord(self._now_s(), text[:_LONGEST_WARNING]))

    def _now_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def uptime_s(self) -> float:
        """How long ago the run began."""
        return self._now_s()

    @property
    def held_by_host(self) -> dict[str, int]:
        """The version that each present host was last sent, to act with."""
        return dict(self._pulls.held_by_host)

    @property
    def threshold_by_host(self) -> dict[str, float]:
        """The threshold of each present host at its last pull."""
        return dict(self._pulls.threshold_by_host)

    @property
    def latest_by_host(self) -> dict[str, Measurement]:
        """The latest measured divergence of each present host."""
        return dict(self._latest_by_host)

    @property
    def versions(self) -> list[Version]:
        """The versions so far, in order; in very long runs only the last ones."""
        return list(self._pulls.versions)

    @property
    def pulls(self) -> list[PullRecord]:
        """The pulls so far, in order; in very long runs only the last ones."""
        return list(self._pulls.pulls)

    @property
    def measurements(self) -> list[Measurement]:
        """The measured divergences so far, in order; in very long runs only the last ones."""
        return list(self._measurements)

    @property
    def losses(self) -> list[Loss]:
        """The workers and hosts lost so far, in order; of very many only the last ones."""
        return list(self._losses.losses)

    @property
    def warnings(self) -> list[WarningRecord]:
        """The last warnings about workers and hosts, and those of envs and policies on workers."""
        return list(self._warnings)

    @property
    def losses_by_host(self) -> dict[str, int]:
        """How often each host has lost a worker, or was lost itself."""
        return dict(self._losses.by_host)

    @property
    def losses_by_reason(self) -> dict[str, int]:
        """How often workers and hosts were lost for each reason."""
        return dict(self._losses.by_reason)

    @property
    def pull_latencies_s(self) -> list[float]:
        """How long each pull took a host, from the request until it was loaded."""
        return list(self._pulls.latencies_s)

    @property
    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes through the socket so far, both ways, by message kind (``Weights`` …)."""
        return dict(self._bytes_by_kind)

    @property
    def shared_bytes(self) -> int:
        """Bytes of weights that hosts in this process took from shared memory."""
        return self._shared_bytes

    @property
    def observation_bytes(self) -> int:
        """Bytes of the observations that hosts coded before they sent them …"""
        return self._observation_bytes

    @property
    def coded_bytes(self) -> int:
        """… and as how many bytes they came through the socket."""
        return self._coded_bytes

    @property
    def dropped_steps(self) -> int:
        """Steps of fragments that were requested, collected or not, and then given up: by a reset,
        an error, Ctrl-C, the end of a stream, or a rollout of another length or policy object."""
        return self._dropped_steps

    @property
    def pulls_by_host(self) -> dict[str, int]:
        """How often each host has pulled."""
        return dict(self._pulls.by_host)

    @property
    def pulls_by_cause(self) -> dict[str, int]:
        """How often hosts pulled for each reason."""
        return dict(self._pulls.by_cause)

    @property
    def sync_bytes(self) -> int:
        """Bytes through the socket for weights, pulls and announcements.

        Not the policies themselves (``TakePolicy``, once each), nor the few tens of bytes that a
        divergence adds to the requests it travels with.
        """
        return sum(self._bytes_by_kind[kind] for kind in ("Weights", *_ANNOUNCEMENTS))

    @property
    def bytes_of_always_pulling(self) -> int:
        """What the weights would have cost if each host had pulled every version in full.

        A host counts from its first pull until it is gone.
        """
        return self._pulls.bytes_of_always_pulling

    @property
    def bytes_avoided(self) -> int:
        """How many bytes were saved, compared with pulling every version in full."""
        return self.bytes_of_always_pulling - self.sync_bytes
