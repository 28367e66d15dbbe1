"""Rollouts, streams and evaluations: policies act where the envs are, and fragments come back."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clusterenv.head.owed import Owed
from clusterenv.head.pace import Pace
from clusterenv.head.session import Session
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Collect, Evaluate
from clusterenv.sync.ledger import Ledger

_TICK_S = 1.0


@dataclass(frozen=True)
class _Wish:
    """What is being collected now."""

    num_steps: int = 0
    policy_id: int = 0
    together: bool = True
    """Whether the fragments of one host are wanted in one piece."""
    infos: bool = True
    credits: int = 1
    """How many fragments of a slot may be under way or waiting here."""
    asks_again: bool = False
    """Whether each slot is asked for again once its fragment has been taken."""
    ahead: bool = False
    """Whether the next rollout is collected while the learner has this one."""


class Collecting:
    """Asks hosts to act with the published policy, and hands out what they collect."""

    def __init__(self, session: Session, balance: bool, ledger: Ledger | None = None) -> None:
        self._session, self._fleet, self._fragments = session, session.fleet, session.fragments
        self._ledger = ledger or Ledger()
        self._pace = Pace() if balance else None
        self._wish = _Wish()
        self._deals = session.fleet.deals
        self._owed = Owed()
        self._lacks_earlier = False
        """Whether the rollout before the one ahead lacks a fragment that will not come."""
        self._asked_at: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._is_announcing = False

    # Rollouts.

    def collect(
        self, num_steps: int, together: bool, infos: bool = True, ahead: bool = False
    ) -> None:
        """Ask for a fragment of every slot, except those that still owe one to the last rollout.

        With ``ahead``, ask for two of every slot: the second is for the rollout after this one.
        """
        session = self._session
        policy_id = session.publisher.news().policy_id
        if (num_steps, policy_id) != (self._wish.num_steps, self._wish.policy_id):
            # What is owed does not fit: its arrays have other lengths or another policy's names.
            self.forget_owed()
        self._wish = _Wish(num_steps, policy_id, together, infos, 1 + ahead, ahead=ahead)
        self._welcome_arrivals()
        self._balance()
        self._top_up()

    def wait_for(self, num_slots: int, patience_s: float) -> list[FragmentPart]:
        """Wait for fragments of this many slots, then at most ``patience_s`` for the others."""
        session, box, deadline = self._session, self._fragments, math.inf
        while True:
            now = time.monotonic()
            # Counting different slots takes time, and fewer than this cannot be enough.
            if box.num_waiting >= num_slots:
                num_there = box.num_different
                if num_there == session.num_envs:
                    break
                if num_there >= num_slots:
                    deadline = min(deadline, now + patience_s)
            if now >= deadline:
                break
            self._pump(min(_TICK_S, deadline - now))
            session.raise_errors()
        return box.take_one_per_slot()

    @property
    def owes_fragments(self) -> bool:
        """Whether some are under way or failed, once all that have come are counted."""
        self._count()
        return bool(self._owed)

    def forget_owed(self) -> None:
        """Release hosts from what they still owe to the last rollout."""
        if self.owes_fragments:
            self._session.abandon_requests()
        self.abandon()

    def start_over(self) -> None:
        """Prepare for a reset of all slots: hosts that joined late may take part."""
        self.forget_owed()
        self._welcome_arrivals()
        self._fragments.take_missing()

    def abandon(self) -> None:
        """Drop all fragments: nobody waits for them any more."""
        self._note_dropped(range(self._session.num_envs))
        self._fragments.clear()
        self._owed.clear()
        self._lacks_earlier = False

    def _welcome_arrivals(self) -> None:
        """Give hosts that joined late their slots, which start over there."""
        session = self._session
        if (deal := session.fleet.welcome_arrivals()) is not None:
            self._note_dropped(deal.moved)
            session.dealt(deal)

    def _note_dropped(self, slots: Sequence[int]) -> None:
        """Count in the ledger what was asked of these slots and will not be read."""
        self._count()
        waiting = self._fragments.waiting
        if waiting or self._owed:
            outstanding = _outstanding(self._owed, waiting)
            num_dropped = sum(outstanding[slot] for slot in slots)
            self._ledger.count_dropped(num_dropped * self._wish.num_steps)

    def _balance(self) -> None:
        """Between rollouts, give faster hosts more slots where that is worth it."""
        session = self._session
        if self._pace is None or self._fragments.waiting or not session.asking.is_idle:
            return
        if speeds := self._pace.better_shares(session.fleet.hosts):
            session.dealt(session.fleet.rebalance(speeds))

    # Asking, and taking in the answers.

    def _top_up(self) -> None:
        """Bring every slot to the number of fragments it may have under way or waiting here."""
        session = self._session
        self._deals = session.fleet.deals
        slots = range(session.num_envs)
        while True:
            # Some may have come or been lost since the others were asked for.
            self._count()
            if self._lacks_earlier:
                self._drop_later()
            there = _outstanding(self._owed, self._fragments.waiting)
            fewest = min(there[slot] for slot in slots)
            if fewest >= self._wish.credits:
                return
            # Only slots with equally many: what a host joins then belongs to one rollout.
            self._ask([slot for slot in slots if there[slot] == fewest])

    def _ask(self, slots: Sequence[int]) -> None:
        session = self._session
        if not slots:
            return
        session.recovery.restart_lost(slots)
        if self._wish.ahead:
            session.publisher.promise()
        number = session.asking.new_number()
        for host, group, _ in session.asking.split(slots):
            news = session.drift.news_for(host)
            self._asked_at[host.name] = time.monotonic()
            host.ask(
                Collect(
                    number,
                    group,
                    self._wish.num_steps,
                    news,
                    together=self._wish.together,
                    asks_again=self._wish.asks_again,
                    infos=self._wish.infos,
                    ahead=self._wish.ahead,
                )
            )
        self._owed.add(number, slots)
        # Hosts in this process may want weights before they can begin.
        self._pump(0.0)

    def _pump(self, timeout_s: float) -> None:
        self._session.pump(timeout_s)
        if self._fragments.has_missing or self._fleet.deals != self._deals:
            self._top_up()
        else:
            self._count()

    def _count(self) -> None:
        """Count the fragments that have come, perhaps in another wait, and those that will not."""
        for part in self._fragments.take_arrived():
            for number, slots in part.answers:
                self._owed.settle(number, slots)
            self._note_pace(part)
        recovery = self._session.recovery
        for missing in self._fragments.take_missing():
            number = missing.request.request
            has_later = self._owed.write_off(number, missing.slots, recovery.is_doomed)
            has_later |= self._fragments.has_joined_later(number, missing.slots)
            self._lacks_earlier |= has_later and self._wish.ahead

    def _drop_later(self) -> None:
        """Drop fragments ahead: one of a slot that lacks its earlier one would fit no rollout.

        The rollout ahead is requested anew. What has come for the one before it is kept.
        """
        self._session.abandon_requests()
        self._lacks_earlier = False
        outstanding = _outstanding(self._owed, self._fragments.waiting)
        self._fragments.drop_later()
        num_dropped = outstanding.total() - self._fragments.num_waiting
        self._ledger.count_dropped(num_dropped * self._wish.num_steps)
        self._owed.clear()

    def _note_pace(self, part: FragmentPart) -> None:
        # What was asked for ahead has also waited for what came before it.
        if self._pace is None or part.request.ahead:
            return
        for host in self._fleet.hosts:
            if host.slots.start == part.slots[0] and len(host.slots) == len(part.slots):
                seconds = time.monotonic() - self._asked_at[host.name]
                self._pace.note(host, self._wish.num_steps, seconds)

    # Streams.

    def stream(self, num_steps: int, in_flight: int, infos: bool = True) -> Iterator[FragmentPart]:
        """Fragments as they finish, at most ``in_flight`` of each slot under way or waiting."""
        session = self._session
        self.forget_owed()
        policy_id = session.publisher.news().policy_id
        self._wish = _Wish(num_steps, policy_id, False, infos, in_flight, asks_again=True)
        self._thread = threading.get_ident()
        self._welcome_arrivals()
        self._top_up()
        try:
            while True:
                self._welcome_arrivals()
                while not self._fragments.waiting:
                    if self._is_announcing:
                        self._announce()
                    self._pump(_TICK_S)
                    session.raise_errors()
                part = self._fragments.take_first()
                # The next request goes out before the learner starts with this fragment.
                self._ask(part.slots)
                yield part
        finally:
            if not session.is_closed:
                self.forget_owed()

    def announce(self) -> None:
        """Tell the hosts about a new version; they decide whether to pull it."""
        if threading.get_ident() == self._thread:
            self._announce()
        else:
            self._is_announcing = True
            self._fleet.wake()

    def _announce(self) -> None:
        self._is_announcing = False
        drift = self._session.drift
        for host in self._fleet.hosts:
            host.announce(drift.news_for(host))
        self._pump(0.0)

    # Evaluations.

    def evaluate(
        self, episodes: Sequence[int], seed: int, deterministic: bool, backend: Any = None
    ) -> None:
        """Ask for ``episodes[i]`` whole episodes of slot *i*, in envs of ``backend`` if given."""
        session = self._session
        asking, slots = session.asking, tuple(range(session.num_envs))
        news = session.publisher.news()
        number = asking.new_number()
        packed = b"" if backend is None else session.pack_backend(backend)
        asking.ask(Evaluate(number, slots, tuple(episodes), seed, deterministic, news, packed))


def _outstanding(owed: Owed, parts: Iterable[FragmentPart]) -> Counter[int]:
    """By slot: how many fragments are under way or waiting to be taken."""
    outstanding = owed.count()
    for part in parts:
        outstanding.update(part.slots)
    return outstanding
