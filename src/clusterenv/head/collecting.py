"""Rollouts, streams and evaluations: policies act where the envs are, and fragments come back."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from clusterenv.head.pace import Pace
from clusterenv.head.session import Session
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Collect, Evaluate

_TICK_S = 1.0


class Collecting:
    """Asks hosts to act with the policy that was published, and hands out what they collect."""

    def __init__(self, session: Session, balance: bool) -> None:
        self._session = session
        self._pace = Pace() if balance else None
        self._num_steps, self._together, self._credits = 0, True, 1
        self._deals = session.fleet.deals
        self._owed: Counter[int] = Counter()
        """By slot: how many fragments are under way."""
        self._asked_at: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._is_announcing = False

    # Rollouts.

    def collect(self, num_steps: int, together: bool) -> None:
        """Ask for a fragment of every slot, but of those that still owe one to the last rollout."""
        session = self._session
        if num_steps != self._num_steps:
            self.forget_owed()
        self._num_steps, self._together, self._credits = num_steps, together, 1
        session.dealt(session.fleet.welcome_arrivals())
        self._balance()
        self._count_off()
        self._top_up()

    def wait_for(self, num_slots: int, patience_s: float) -> list[FragmentPart]:
        """Wait for fragments of this many slots, and then at most so long for the others."""
        session = self._session
        deadline, waits_for_some = math.inf, num_slots < session.num_envs
        while any(self._owed.values()):
            now = time.monotonic()
            if waits_for_some and sum(len(p.slots) for p in session.fragments) >= num_slots:
                deadline = min(deadline, now + patience_s)
            if now >= deadline:
                break
            self._pump(min(_TICK_S, deadline - now))
            session.raise_errors()
        parts, session.fragments[:] = sorted(session.fragments, key=lambda p: p.slots), []
        return parts

    def forget_owed(self) -> None:
        """Hosts need not deliver any more what they still owe to the last rollout."""
        if any(self._owed.values()):
            self._session.recovery.restart_later(self._session.asking.abandon())
        self.abandon()

    def start_over(self) -> None:
        """All slots are going to be reset: hosts that came late may take part."""
        self.forget_owed()
        session = self._session
        session.dealt(session.fleet.welcome_arrivals())
        session.uncollected.clear()

    def abandon(self) -> None:
        """Nobody waits for fragments any more."""
        self._session.drop_fragments()
        self._session.arrived.clear()
        self._owed.clear()

    def _balance(self) -> None:
        """Between rollouts: give faster hosts more slots, where that is worth it."""
        session = self._session
        if self._pace is None or not session.asking.is_idle:
            return
        if speeds := self._pace.better_shares(session.fleet.hosts):
            session.dealt(session.fleet.rebalance(speeds))

    # Asking, and taking in what comes.

    def _top_up(self) -> None:
        """Let every slot have as many fragments under way, or waiting here, as it may."""
        session = self._session
        self._deals = session.fleet.deals
        there = Counter(slot for part in session.fragments for slot in part.slots)
        for _ in range(self._credits):
            every = range(session.num_envs)
            self._ask([s for s in every if self._owed[s] + there[s] < self._credits])

    def _ask(self, slots: Sequence[int]) -> None:
        session = self._session
        if not slots:
            return
        session.recovery.restart_lost(slots)
        number = session.asking.new_number()
        for host, group, _ in session.asking.split(slots):
            news = session.drift.news_for(host)
            self._asked_at[host.name] = time.monotonic()
            host.ask(Collect(number, group, self._num_steps, news, self._together))
        self._owed.update(slots)
        # Hosts of this process may want weights before they can begin.
        self._pump(0.0)

    def _pump(self, timeout_s: float) -> None:
        session = self._session
        session.pump(timeout_s)
        # Some may have come while something else was waited for.
        arrived, session.arrived = session.arrived, []
        for part in arrived:
            self._owed.subtract(part.slots)
            self._note_pace(part)
        if session.uncollected or session.fleet.deals != self._deals:
            self._count_off()
            self._top_up()

    def _count_off(self) -> None:
        """Some fragments will not come."""
        for one in self._session.uncollected:
            self._owed.subtract(one.slots)
        self._session.uncollected.clear()

    def _note_pace(self, part: FragmentPart) -> None:
        if self._pace is None:
            return
        for host in self._session.fleet.hosts:
            if host.slots.start == part.slots[0] and len(host.slots) == len(part.slots):
                seconds = time.monotonic() - self._asked_at[host.name]
                self._pace.note(host, self._num_steps, seconds)

    # Streams.

    def stream(self, num_steps: int, in_flight: int) -> Iterator[FragmentPart]:
        """Fragments as they finish, at most ``in_flight`` of each slot at a time."""
        session = self._session
        self.forget_owed()
        self._num_steps, self._together, self._credits = num_steps, False, in_flight
        self._thread = threading.get_ident()
        session.dealt(session.fleet.welcome_arrivals())
        self._count_off()
        self._top_up()
        try:
            while True:
                session.dealt(session.fleet.welcome_arrivals())
                while not session.fragments:
                    self._announce_if_asked()
                    self._pump(_TICK_S)
                    session.raise_errors()
                part = session.fragments.pop(0)
                # The next task goes out before the learner starts with this fragment.
                self._ask(part.slots)
                yield part
        finally:
            if not session.is_closed:
                self.forget_owed()

    def announce(self) -> None:
        """Tell the hosts that there is a new version; they decide whether to pull it."""
        if threading.get_ident() == self._thread:
            self._announce()
        else:
            self._is_announcing = True
            self._session.fleet.wake()

    def _announce_if_asked(self) -> None:
        if self._is_announcing:
            self._is_announcing = False
            self._announce()

    def _announce(self) -> None:
        for host in self._session.fleet.hosts:
            host.announce(self._session.drift.news_for(host))
        self._pump(0.0)

    # Evaluations.

    def evaluate(self, episodes: Sequence[int], seed: int, deterministic: bool) -> None:
        """Ask for ``episodes[i]`` whole episodes of slot *i*."""
        asking, slots = self._session.asking, tuple(range(self._session.num_envs))
        news = self._session.publisher.news()
        number = asking.new_number()
        asking.ask(Evaluate(number, slots, tuple(episodes), seed, deterministic, news))
