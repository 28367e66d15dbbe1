"""From settings to a running session: build envs, agree on spaces, lay out rows."""

from __future__ import annotations

import os
import secrets
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterenv.agreement import AgreedSpaces, agree_on_spaces
from clusterenv.backends.base import ThreadedBackend
from clusterenv.errors import StartupError
from clusterenv.head.drift import Drift
from clusterenv.head.episodes import EpisodeLog
from clusterenv.head.fleet import Fleet
from clusterenv.head.hosts import Hosts
from clusterenv.head.local import NAME as LOCAL_HOST
from clusterenv.head.local import LocalFleet, LocalStart
from clusterenv.head.loss_reports import LossReports
from clusterenv.head.own_policy import OwnPolicies
from clusterenv.head.partial_batches import check_for_vector_envs
from clusterenv.head.publisher import Publisher
from clusterenv.head.remote import RemoteFleet
from clusterenv.head.remote_start import RemoteStart
from clusterenv.head.session import Agreement, Session
from clusterenv.head.show import Show
from clusterenv.head.snapshot import Snapshots
from clusterenv.host.events import Stuck
from clusterenv.host.host import LocalHost
from clusterenv.host.plan import Plan, Spaces, WorkerLimits, WorkerSetup
from clusterenv.host.starting import ProcessStarter, Starter, ThreadStarter, hash_environment
from clusterenv.host.worker import Worker
from clusterenv.launchers.base import THREAD_NAME, cores
from clusterenv.launchers.in_process import InProcessLauncher
from clusterenv.limits import Limits
from clusterenv.plain.row_layout import RowLayout
from clusterenv.plain.spaces import leaves_of, single_array_leaf, space_to_plain
from clusterenv.plain.values import pack
from clusterenv.settings import Settings
from clusterenv.sharing import shares
from clusterenv.status.channel import Run, StatusServer
from clusterenv.sync.ledger import Ledger
from clusterenv.wire.parcels import Packer
from clusterenv.wire.reply_checks import ReplyChecks

_TICK_S = 1.0
_NUM_HASH_SEEDS = 1 << 32
# Infinity cannot travel as text.
_LONGEST_S = 1e9


def open_session(settings: Settings, ledger: Ledger) -> tuple[Session, AgreedSpaces]:
    """Open a session that is ready for work; nothing is left behind if that fails."""
    packer = Packer(elsewhere=not settings.launcher.trusted)
    if not isinstance(settings.launcher, InProcessLauncher):
        ledger.hash_seed = choose_hash_seed(os.environ.get("PYTHONHASHSEED", ""))
    publisher, reports = Publisher(ledger, settings.encoding, packer), LossReports(ledger)
    opening = Opening(settings, packer, publisher, ledger, reports)
    session, spaces = opening.local() if settings.launcher.num_hosts == 0 else opening.remote()
    session.show()
    return session, spaces


@dataclass(frozen=True)
class Opening:
    """What opening a session needs."""

    settings: Settings
    packer: Packer
    publisher: Publisher
    ledger: Ledger
    reports: LossReports
    run: Run = field(default_factory=lambda: Run(secrets.token_hex(3), os.getpid()))

    def local(self) -> tuple[Session, AgreedSpaces]:
        """Open it with a host in this process."""
        settings = self.settings
        num_workers = settings.num_workers or min(cores(), settings.num_envs)
        starter, spins = starter_for(settings, self.ledger.hash_seed)
        plan = self._plan(range(settings.num_envs))
        limits = worker_limits(settings.limits)
        # An engine's threads want all cores: a waiter that spins would take one from them.
        has_core = cores() > num_workers and not isinstance(settings.backend, ThreadedBackend)
        may_spin = spins and has_core
        start = LocalStart(num_workers, starter, limits, may_spin, plan, self._tell)
        try:
            counts, spaces = self._agree(start)
            ready: list[int] = []
            host = start.lay_out(packed_spaces(spaces), settings.sync_rule, ready)
            fleet = LocalFleet(start, host, self.publisher)
            session = self._session(fleet, spaces, counts, ready)
            _wait_until_ready(session, host, settings.limits.startup_timeout_s)
            return session, spaces
        except BaseException:
            start.close(0.0)
            raise

    def remote(self) -> tuple[Session, AgreedSpaces]:
        """Open it with hosts behind sockets."""
        settings, limits = self.settings, self.settings.limits
        hosts = Hosts(
            settings.launcher,
            settings.network,
            limits.lease_s,
            worker_limits(limits),
            WorkerSetup(self.ledger.hash_seed, str(settings.log_dir or "")),
            workers_by_host(settings),
            self.publisher,
            self.ledger,
            self._plan,
            self.run.id,
        )
        try:
            start = RemoteStart(
                hosts,
                settings.num_envs,
                settings.min_hosts or settings.launcher.num_hosts,
                limits.startup_timeout_s,
                self.settings.trusts_hosts,
                self.reports,
            )
            counts, spaces = self._agree(start)
            start.lay_out(packed_spaces(spaces))
            observation, action = spaces.single_observation_space, spaces.single_action_space
            trusted = self.settings.trusts_hosts
            own = None if trusted else OwnPolicies(self.publisher, observation, action)
            checks = ReplyChecks(observation, action, self.publisher, own, trusted)
            layout = RowLayout(leaves_of(observation))
            fleet = RemoteFleet(start, layout, checks, settings.num_envs)
            return self._session(fleet, spaces, counts, []), spaces
        except BaseException:
            hosts.close(0.0)
            raise

    def _tell(self, stuck: Stuck) -> None:
        self.reports.warn(LOCAL_HOST, stuck.text)

    def _plan(self, slots: range) -> Plan:
        """What the host of these slots runs."""
        settings, packer = self.settings, self.packer
        return Plan(
            slots.start,
            len(slots),
            packer.pack(settings.backend.for_slots(tuple(slots)), with_env_ids=True),
            packer.pack(settings.sync_rule),
            settings.autoreset_mode.value,
            self.settings.trusts_hosts,
            packer.search_path,
            packer.working_directory,
            isinstance(settings.backend, ThreadedBackend),
        )

    def _agree(self, start: LocalStart | RemoteStart) -> tuple[tuple[int, ...], AgreedSpaces]:
        for worker, _, text in start.warnings:
            warnings.warn(f"{worker}: {text}", stacklevel=6)
        counts, descriptions = zip(*start.descriptions, strict=True)
        return counts, agree_on_spaces(descriptions, counts, self.settings.observation_mode)

    def _session(
        self, fleet: Fleet, spaces: AgreedSpaces, counts: tuple[int, ...], ready: list[int]
    ) -> Session:
        observation, action = spaces.single_observation_space, spaces.single_action_space
        rule, publisher = self.settings.sync_rule, self.publisher
        drift = Drift(rule, observation, action, publisher, self.ledger, fleet.accuse)
        agreed = Agreement(
            observation,
            action,
            single_array_leaf(action),
            self.settings.autoreset_mode,
            spaces.steps_together,
            counts,
            self.settings.trusts_hosts,
        )
        if spaces.steps_together and not hasattr(self.settings.backend, "in_batches_of"):
            check_for_vector_envs(self.settings.batch_size, counts)
        settings, ledger = self.settings, self.ledger
        episodes = EpisodeLog(settings.num_envs, settings.autoreset_mode, lambda: ledger.uptime_s)
        status = self._status(fleet, episodes)
        return Session(
            fleet, agreed, publisher, drift, self.packer, ready, status, self.reports, episodes
        )

    def _status(self, fleet: Fleet, episodes: EpisodeLog) -> StatusServer:
        run, publisher = self.run, self.publisher
        snapshots = Snapshots(run.id, self.settings, publisher, fleet, self.ledger, episodes)
        show = Show(self.settings.backend, self.settings.num_envs, publisher, self.packer)
        name = f"{THREAD_NAME} status"
        return StatusServer(name, run, snapshots.take, episodes.watch, show)


def _wait_until_ready(session: Session, host: LocalHost, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not host.is_ready:
        if time.monotonic() > deadline:
            raise StartupError(_who_is_late(host.staff, timeout_s))
        session.pump(_TICK_S)
        session.raise_errors()


def _who_is_late(staff: Sequence[Worker], timeout_s: float) -> str:
    late = [worker for worker in staff if not worker.is_ready]
    return (
        f"{len(staff) - len(late)} of {len(staff)} workers became ready "
        f"within startup_timeout_s={timeout_s:g}; waiting for "
        f"{', '.join(worker.whereabouts() for worker in late)}; if they need longer, raise "
        f"limits=Limits(startup_timeout_s=…){late[0].log()}"
    )


def workers_by_host(settings: Settings) -> list[int | None]:
    """How many workers each host runs; None for one per core."""
    num_hosts, per_host = settings.launcher.num_hosts, settings.launcher.workers_per_host
    if settings.num_workers is None:
        return [per_host] * num_hosts
    # As many as requested, dealt evenly; each host has at least one.
    return list(shares(max(settings.num_workers, num_hosts), [1.0] * num_hosts))


def choose_hash_seed(own: str) -> int:
    """The hash seed of all workers: the head's own if it has one, else one for this run."""
    # Python also accepts "random", but then each of them would get another seed.
    if own.isdecimal() and int(own) < _NUM_HASH_SEEDS:
        return int(own)
    return 1 + secrets.randbelow(_NUM_HASH_SEEDS - 1)


def starter_for(settings: Settings, hash_seed: int | None) -> tuple[Starter, bool]:
    """How to start workers on this machine, and whether waiting for them may spin."""
    launcher: Any = settings.launcher
    if isinstance(launcher, InProcessLauncher):
        return ThreadStarter(), False
    environment = {**launcher.worker_environment, **hash_environment(hash_seed)}
    return ProcessStarter(environment, settings.log_dir or launcher.log_dir), True


def worker_limits(limits: Limits) -> WorkerLimits:
    """The part of the limits that concerns workers."""
    return WorkerLimits(
        limits.startup_timeout_s,
        limits.step_timeout_s,
        limits.restart_timeout_s,
        limits.max_restarts_per_minute,
        limits.max_restarts,
        min(limits.restart_backoff_s, _LONGEST_S),
        min(limits.slow_warning_s, _LONGEST_S),
    )


def packed_spaces(spaces: AgreedSpaces) -> Spaces:
    """The spaces in the form in which hosts get them."""
    return Spaces(
        pack(space_to_plain(spaces.single_observation_space), allow_pickle=True),
        pack(space_to_plain(spaces.single_action_space), allow_pickle=True),
    )
