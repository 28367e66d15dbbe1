"""A rollout ahead survives the loss of a worker: what the other slots collect is kept."""

from collections import Counter
from contextlib import closing
from types import SimpleNamespace

import pytest
from gymnasium.vector import AutoresetMode

from clusterenv.head.collecting import Collecting
from clusterenv.head.fragment_box import FragmentBox
from clusterenv.head.owed import Owed
from clusterenv.host.events import Voided
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Collect, Newest, Reset
from clusterenv.sync.ledger import Ledger
from tests.unit.test_recovery import NUM_ENVS, Scene

EVERY, LOST = tuple(range(NUM_ENVS)), (4, 5)
NEWEST = Newest(1, 1)


class PaperRun:
    """A session with one host, behind a wire on which requests are under way."""

    def __init__(self):
        self.scene = Scene(AutoresetMode.NEXT_STEP)
        self.num_envs, self.fragments, self.ledger = NUM_ENVS, FragmentBox(), Ledger()
        self.asking, self.recovery = self.scene.asking, self.scene.recovery
        self.asking.split = lambda slots: [(self, tuple(slots), None)]
        self.fleet = SimpleNamespace(deals=0, hosts=[], welcome_arrivals=lambda: None)
        self.publisher = SimpleNamespace(news=lambda: NEWEST, promise=lambda: None)
        self.drift = SimpleNamespace(news_for=lambda host: NEWEST)
        self.name, self.num_abandoned, self.to_hear = "host-0.0", 0, []
        self.collecting = Collecting(self, balance=False, ledger=self.ledger)

    def ask(self, request):
        self.asking.ask(request)

    def pump(self, timeout_s):
        for slots, voided, in_vain in self.to_hear:
            self.fragments.put_missing(self.recovery.lost(slots, voided, in_vain=in_vain))
        self.to_hear = []

    def raise_errors(self):
        pass

    def abandon_requests(self):
        self.num_abandoned += 1

    def collects(self):
        return [one for one in self.asking.asked if isinstance(one, Collect)]

    def lose(self, *voided, in_vain=False):
        """The host says that the worker of some slots is gone, and what went with it."""
        self.to_hear.append((LOST, [Voided(one, LOST) for one in voided], in_vain))


@pytest.fixture
def run():
    run = PaperRun()
    run.collecting.collect(3, together=True, ahead=True)
    assert [one.slots for one in run.collects()] == [EVERY, EVERY]
    return run


def test_what_was_sent_before_the_loss_was_known_is_not_waited_for(run):
    first, second = run.collects()
    run.lose(first)
    run.collecting.wait_for(0, patience_s=1e-3)
    run.lose(second, in_vain=True)
    run.collecting.wait_for(0, patience_s=1e-3)
    assert (run.num_abandoned, run.ledger.dropped_steps) == (0, 0)
    asked = [one for one in run.asking.asked if one not in (first, second)]
    assert [(type(one), one.slots) for one in asked] == [
        (Reset, LOST),
        (Collect, LOST),
        (Collect, LOST),
    ]


def test_a_loss_of_the_later_fragment_alone_drops_nothing(run):
    run.lose(run.collects()[1])
    run.collecting.wait_for(0, patience_s=1e-3)
    assert (run.num_abandoned, run.ledger.dropped_steps) == (0, 0)
    assert run.collects()[2].slots == LOST


def test_what_comes_joined_for_the_wrong_rollout_is_dropped_and_counted():
    run = PaperRun()
    # The worker ended before anything was asked, and the head hears of it between two requests.
    run.lose()
    run.collecting.collect(3, together=True, ahead=True)
    first = run.collects()[0]
    run.lose(first, in_vain=True)
    run.collecting.wait_for(0, patience_s=1e-3)
    assert run.num_abandoned == 1
    assert run.ledger.dropped_steps > 0


def test_what_comes_joined_in_a_stream_costs_no_slot_a_fragment_under_way():
    run = PaperRun()
    run.is_closed = False
    early = tuple(sorted(set(EVERY).difference(LOST)))

    def pump(timeout_s):
        match run.collects():
            case [one]:
                run.fragments.put(FragmentPart(one, LOST, 1, {}))
            case [one, two]:
                joined = ((one.request, early), (two.request, LOST))
                run.fragments.put(FragmentPart(one, EVERY, 1, {}, joined=joined))

    run.pump = pump
    with closing(run.collecting.stream(3, in_flight=4)) as stream:
        assert next(stream).slots == LOST
        asked = Counter(slot for one in run.collects() for slot in one.slots)
    # Four of each, and one more of those whose fragment was taken.
    assert asked == {slot: 4 + (slot in LOST) for slot in EVERY}


def test_who_owes_what_is_known_by_slot_and_request():
    owed = Owed()
    owed.add(1, (0, 1))
    owed.add(2, (0, 1))
    assert owed.settle(1, (1,)) == [1]
    assert owed.settle(1, (1,)) == []
    assert owed.count() == {0: 2, 1: 1}
    owed.clear()
    assert not owed


def test_what_is_doomed_is_written_off_with_what_is_lost():
    owed = Owed()
    for number in (1, 2, 3):
        owed.add(number, (0, 1))
    assert owed.write_off(1, (0,), lambda slot, number: number == 2)
    assert owed.count() == {0: 1, 1: 3}
    assert not owed.write_off(1, (0,), lambda slot, number: False)
    assert not owed.write_off(3, (0,), lambda slot, number: False)
    assert owed.count()[0] == 0
