"""Turns snapshots of a run into what the page draws: points over time, and events. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator

import msgspec

from clusterenv.status.run_status import EpisodeSummary, LossSummary, RunStatus, WarningSummary
from clusterenv.tools.run_table import rates_by_host

_MOST_POINTS = 1200
_MOST_EVENTS = 300
# Fragments come in one piece: between two looks there are often none, or all.
_RATES_OVER_S = 10.0


class Point(msgspec.Struct, frozen=True):
    """One moment of the charts; None where nothing was measured."""

    time_s: float
    steps_per_s: float
    lag: int | None
    """Of the host that is furthest behind."""
    divergence: float | None
    """Of the host whose copy is furthest away …"""
    median_divergence: float | None
    """… and of the one in the middle."""
    threshold: float | None
    bytes_per_s: float
    """Through the socket."""
    mean_reward: float | None
    """Total reward of an episode; mean of the last hundred."""
    mean_length: float | None


class Event(msgspec.Struct, frozen=True):
    """Something happened to a worker or host, or the user was warned."""

    time_s: float
    kind: str
    """``lost``, ``replaced`` or ``warning``."""
    text: str


class Update(msgspec.Struct, frozen=True):
    """What the page is sent for a new snapshot."""

    status: RunStatus
    """Without what is in ``events`` and ``episodes``."""
    rates: dict[str, float]
    point: Point
    events: tuple[Event, ...]
    """Those since the last snapshot …"""
    episodes: tuple[EpisodeSummary, ...]
    """… and the episodes that have ended since then."""


class Story(msgspec.Struct, frozen=True):
    """All that a page needs to begin."""

    points: tuple[Point, ...]
    events: tuple[Event, ...]
    latest: Update
    has_ended: bool


class History:
    """Remembers the past, which snapshots do not. Bounded, however long the run takes."""

    def __init__(self) -> None:
        self.status: RunStatus | None = None
        self.has_ended = False
        self._points: list[Point] = []
        self._spacing_s = 0.0
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._latest: Update | None = None
        self._recent: deque[RunStatus] = deque()

    def add(self, status: RunStatus) -> Update:
        """Add a snapshot; returns what is new."""
        before, self.status = self.status, status
        earlier = self._earlier(status)
        rates = rates_by_host(earlier, status)
        point = point_of(earlier, status, sum(rates.values()))
        events = tuple(sorted(_events(before, status), key=lambda event: event.time_s))
        since = -1.0 if before is None else before.uptime_s
        episodes = tuple(one for one in status.recent_episodes if one.time_s > since)
        if before is not None:
            # The first rates are those of the whole run so far.
            self._keep(point)
        self._events.extend(events)
        shown = msgspec.structs.replace(status, losses=(), warnings=(), recent_episodes=())
        news = Update(shown, rates, point, events, episodes)
        self._latest = msgspec.structs.replace(news, episodes=status.recent_episodes)
        return news

    def _earlier(self, now: RunStatus) -> RunStatus | None:
        """The snapshot from which rates are counted."""
        recent = self._recent
        while len(recent) > 1 and now.uptime_s - recent[1].uptime_s >= _RATES_OVER_S:
            recent.popleft()
        recent.append(now)
        return recent[0] if len(recent) > 1 else None

    def _keep(self, point: Point) -> None:
        points = self._points
        if len(points) > 1 and points[-1].time_s - points[-2].time_s < self._spacing_s:
            points[-1] = point
        else:
            points.append(point)
        if len(points) > _MOST_POINTS:
            # Keep half as many points from here on.
            del points[1::2]
            self._spacing_s = 2 * (points[-1].time_s - points[0].time_s) / _MOST_POINTS

    @property
    def story(self) -> Story:
        """The story so far, for a page that was just opened."""
        assert self._latest is not None, "there is no snapshot yet"
        return Story(tuple(self._points), tuple(self._events), self._latest, self.has_ended)


def point_of(before: RunStatus | None, now: RunStatus, steps_per_s: float) -> Point:
    """A snapshot as one point of each chart."""
    lags = [now.version - host.held for host in now.hosts if host.held is not None]
    divergences = [host.divergence for host in now.hosts if host.divergence is not None]
    thresholds = [host.threshold for host in now.hosts if host.threshold is not None]
    rewards = [one.total_reward for one in now.recent_episodes]
    lengths = [one.length for one in now.recent_episodes]
    return Point(
        time_s=now.uptime_s,
        steps_per_s=steps_per_s,
        lag=max(lags, default=None),
        divergence=max(divergences, default=None),
        median_divergence=statistics.median(divergences) if divergences else None,
        threshold=statistics.median(thresholds) if thresholds else None,
        bytes_per_s=_bytes_per_s(before, now),
        mean_reward=statistics.fmean(rewards) if rewards else None,
        mean_length=statistics.fmean(lengths) if lengths else None,
    )


def _bytes_per_s(before: RunStatus | None, now: RunStatus) -> float:
    earlier = sum(before.bytes_by_kind.values()) if before else 0
    seconds = now.uptime_s - (before.uptime_s if before else 0.0)
    return max(0.0, sum(now.bytes_by_kind.values()) - earlier) / max(1e-9, seconds)


def _events(before: RunStatus | None, now: RunStatus) -> Iterator[Event]:
    since = -1.0 if before is None else before.uptime_s
    yield from (_of_loss(one) for one in now.losses if one.time_s > since)
    yield from (_of_warning(one) for one in now.warnings if one.time_s > since)
    if before is not None:
        yield from _replacements(before, now)


def _of_loss(loss: LossSummary) -> Event:
    who = f"{loss.worker} of {loss.host}" if loss.worker else loss.host
    where = "" if loss.slot is None else f", in slot {loss.slot}"
    return Event(loss.time_s, "lost", f"{who}: {loss.reason}{where}")


def _of_warning(warning: WarningSummary) -> Event:
    return Event(warning.time_s, "warning", warning.text)


def _replacements(before: RunStatus, now: RunStatus) -> Iterator[Event]:
    """Replacements that have become ready: ``worker-1.2`` in place of ``worker-1.1``."""
    earlier = dict(_ready(before))
    for (host, place), name in _ready(now):
        is_replacement = not name.endswith(".0")
        if is_replacement and earlier.get((host, place)) != name:
            of = f" of {host}" if place else ""
            yield Event(now.uptime_s, "replaced", f"{name}{of} is ready")


def _ready(status: RunStatus) -> Iterator[tuple[tuple[str, str], str]]:
    """By place, who is ready there: (host, worker), or (host, ``""``) for a host itself."""
    for host in status.hosts:
        place = host.name.rpartition(".")[0]
        if host.state == "ready":
            yield (place, ""), host.name
        for worker in host.workers:
            if worker.state == "ready":
                yield (place, worker.name.rpartition(".")[0]), worker.name
