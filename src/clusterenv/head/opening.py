"""From settings to a running session: workers build envs, everybody agrees, rows are laid out."""

from __future__ import annotations

import os
import secrets
import time
import warnings
from dataclasses import dataclass
from typing import Any

from clusterenv.agreement import AgreedSpaces, agree_on_spaces
from clusterenv.errors import StartupError
from clusterenv.head.drift import Drift
from clusterenv.head.fleet import Fleet
from clusterenv.head.hosts import Hosts
from clusterenv.head.local import LocalFleet, LocalStart
from clusterenv.head.publisher import Publisher
from clusterenv.head.remote import RemoteFleet
from clusterenv.head.remote_start import RemoteStart
from clusterenv.head.session import Agreement, Session
from clusterenv.head.snapshot import snapshot
from clusterenv.host.host import Host
from clusterenv.host.plan import Plan, Spaces, WorkerLimits
from clusterenv.host.starting import ProcessStarter, Starter, ThreadStarter
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


def open_session(settings: Settings, ledger: Ledger) -> tuple[Session, AgreedSpaces]:
    """A session that is ready for work; nothing is left behind if that fails."""
    packer = Packer(elsewhere=not settings.launcher.trusted)
    opening = Opening(settings, packer, Publisher(ledger, settings.encoding, packer), ledger)
    session, spaces = opening.local() if settings.launcher.num_hosts == 0 else opening.remote()
    session.show()
    return session, spaces


@dataclass(frozen=True)
class Opening:
    """What it takes to open a session."""

    settings: Settings
    packer: Packer
    publisher: Publisher
    ledger: Ledger

    def local(self) -> tuple[Session, AgreedSpaces]:
        """With a host in this process."""
        settings = self.settings
        num_workers = settings.num_workers or min(cores(), settings.num_envs)
        starter, spins = starter_for(settings)
        plan = self._plan(range(settings.num_envs))
        limits = worker_limits(settings.limits)
        start = LocalStart(num_workers, starter, limits, spins and cores() > num_workers, plan)
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
        """With hosts behind sockets."""
        settings, limits = self.settings, self.settings.limits
        hosts = Hosts(
            settings.launcher,
            settings.network,
            limits.lease_s,
            worker_limits(limits),
            workers_by_host(settings),
            self.publisher,
            self.ledger,
            self._plan,
        )
        try:
            start = RemoteStart(
                hosts,
                settings.num_envs,
                settings.min_hosts or settings.launcher.num_hosts,
                limits.startup_timeout_s,
                self._is_trusted,
            )
            counts, spaces = self._agree(start)
            start.lay_out(packed_spaces(spaces))
            observation, action = spaces.single_observation_space, spaces.single_action_space
            checks = ReplyChecks(observation, action, self.publisher)
            layout = RowLayout(leaves_of(observation))
            fleet = RemoteFleet(start, layout, checks, settings.num_envs)
            return self._session(fleet, spaces, counts, []), spaces
        except BaseException:
            hosts.close(0.0)
            raise

    @property
    def _is_trusted(self) -> bool:
        return self.settings.launcher.trusted or self.settings.trust_workers

    def _plan(self, slots: range) -> Plan:
        """What the host of these slots is to run."""
        settings, packer = self.settings, self.packer
        return Plan(
            slots.start,
            len(slots),
            packer.pack(settings.backend.for_slots(tuple(slots)), with_env_ids=True),
            packer.pack(settings.sync_rule),
            settings.autoreset_mode.value,
            self._is_trusted,
            packer.search_path,
            packer.working_directory,
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
        drift = Drift(rule, observation, action, publisher, self.ledger)
        agreed = Agreement(
            observation,
            action,
            single_array_leaf(action),
            self.settings.autoreset_mode,
            spaces.steps_together,
            counts,
            self._is_trusted,
        )
        status = self._status(fleet)
        return Session(fleet, agreed, publisher, drift, self.packer, ready, status)

    def _status(self, fleet: Fleet) -> StatusServer:
        run, num_envs = Run(secrets.token_hex(3), os.getpid()), self.settings.num_envs
        return StatusServer(
            f"{THREAD_NAME} status",
            run,
            lambda: snapshot(run.id, num_envs, self.publisher.version, fleet, self.ledger),
        )


def _wait_until_ready(session: Session, host: Host, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not host.is_ready:
        if time.monotonic() > deadline:
            raise StartupError(f"not all workers got ready within startup_timeout_s={timeout_s:g}")
        session.pump(_TICK_S)
        session.raise_errors()


def workers_by_host(settings: Settings) -> list[int | None]:
    """How many workers each host runs; None: as many as it has cores."""
    num_hosts, per_host = settings.launcher.num_hosts, settings.launcher.workers_per_host
    if settings.num_workers is None:
        return [per_host] * num_hosts
    # As many as asked for, dealt evenly: each host has at least one.
    return list(shares(max(settings.num_workers, num_hosts), [1.0] * num_hosts))


def starter_for(settings: Settings) -> tuple[Starter, bool]:
    """How workers of this machine come to be, and whether waiting for them may spin."""
    launcher: Any = settings.launcher
    if isinstance(launcher, InProcessLauncher):
        return ThreadStarter(), False
    return ProcessStarter(launcher.worker_environment, launcher.log_dir), True


def worker_limits(limits: Limits) -> WorkerLimits:
    """What of the limits concerns workers."""
    return WorkerLimits(
        limits.startup_timeout_s,
        limits.step_timeout_s,
        limits.restart_timeout_s,
        limits.max_restarts_per_minute,
    )


def packed_spaces(spaces: AgreedSpaces) -> Spaces:
    """The spaces as hosts get them."""
    return Spaces(
        pack(space_to_plain(spaces.single_observation_space), allow_pickle=True),
        pack(space_to_plain(spaces.single_action_space), allow_pickle=True),
    )
