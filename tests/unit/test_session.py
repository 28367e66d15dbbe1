"""What hosts report becomes rows, values, warnings and errors of the user's own calls."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv.errors import RemoteError, WorkerLostError
from clusterenv.head.fleet import Deal
from clusterenv.head.gathered import _LONGEST_WARNING, _MOST_WARNINGS
from clusterenv.head.session import Agreement, Session
from clusterenv.host.events import Failed, Lost, Rows, Values, Voided, WorkerWarned
from clusterenv.plain.infos import pack_infos
from clusterenv.plain.row_layout import RowLayout
from clusterenv.plain.spaces import leaves_of, single_array_leaf
from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.replies import Raised
from clusterenv.protocol.requests import Act, Call, Collect, Newest, Reset, SetAttr, Step

SPACE, ACTIONS = spaces.Box(-9.0, 9.0, (2,)), spaces.Discrete(9)
NUM_ENVS = 4
SLOTS = tuple(range(NUM_ENVS))


class PaperHost:
    """Keeps what it is asked."""

    def __init__(self, name, slots):
        self.name, self.slots, self.is_idle = name, slots, True
        self.asked = []

    def ask(self, request, actions=None):
        self.asked.append(request)

    def abandon(self):
        return set()


class PaperFleet:
    """Reports what it is told to report."""

    deals, is_closed, has_core_to_spare = 0, False, True

    def __init__(self):
        self.hosts = [PaperHost("host-0.0", range(2)), PaperHost("host-1.0", range(2, 4))]
        layout = RowLayout(leaves_of(SPACE))
        self.results = layout.view(bytearray(layout.size(NUM_ENVS)), NUM_ENVS)
        self.reported, self.blamed, self.deal = [], [], None

    def events(self, timeout_s):
        reported, self.reported = self.reported, []
        for place, event in reported:
            yield self.hosts[place], event

    def check_acted(self, rows, acted):
        pass

    def blame(self, host, event, error):
        self.blamed.append((host.name, event, error))

    def do_without(self, host):
        return self.deal

    def wait_for_parts(self, num_slots, timeout_s):
        return False

    def close(self, grace_s):
        self.is_closed = True


class PaperDrift:
    """Keeps what policies acted on."""

    is_measured = True

    def __init__(self):
        self.steps, self.fragments = [], []

    def news_for(self, host):
        return Newest(1, 1)

    def note_step(self, host, first_slot, observations, acted):
        self.steps.append((host.name, first_slot, [leaf.tolist() for leaf in observations]))

    def note_fragment(self, host, part):
        self.fragments.append((host.name, part))


class Scene:
    """A session whose hosts say what the test says."""

    def __init__(self, mode=AutoresetMode.NEXT_STEP, trusted=False):
        agreed = Agreement(SPACE, ACTIONS, single_array_leaf(ACTIONS), mode, False, (2, 2), trusted)
        self.fleet, self.drift = PaperFleet(), PaperDrift()
        packer = SimpleNamespace(pack_values=lambda value: pack(value, allow_pickle=True))
        status = SimpleNamespace(close=lambda: None)
        self.session = Session(
            self.fleet, agreed, SimpleNamespace(), self.drift, packer, [], status
        )

    def hear(self, *reported):
        """These hosts report these events."""
        self.fleet.reported += reported
        self.session.pump(0.0)

    def asked(self):
        found = [host.asked for host in self.fleet.hosts]
        for host in self.fleet.hosts:
            host.asked = []
        return found


@pytest.fixture
def scene():
    return Scene()


def failed(text="hm"):
    raised = Raised(1, 0, "nowhere", "Odd", b"", text, "Traceback …")
    return Failed(Step(1, SLOTS), (0, 1), raised, "worker-0.0 (pid 4711)")


def call(slots=SLOTS):
    return Call(1, tuple(slots), "render", b"")


def fragment(slots, released=None):
    request = Collect(1, SLOTS, 5, Newest(1, 1))
    release = (lambda: None) if released is None else lambda: released.append(slots)
    return FragmentPart(request, tuple(slots), 1, {}, release)


# Errors and warnings.


def test_an_error_is_raised_when_it_is_asked_for_and_once(scene):
    scene.hear((0, failed()))
    with pytest.raises(RemoteError, match="Odd: hm") as caught:
        scene.session.raise_errors()
    assert caught.value.__notes__ == ["raised on worker-0.0 (pid 4711), slot 0"]
    scene.session.raise_errors()


def test_of_several_errors_the_first_is_raised(scene):
    scene.hear((0, failed("first")), (1, failed("second")))
    with pytest.raises(RemoteError, match="first"):
        scene.session.raise_errors()
    scene.session.raise_errors()


def test_a_warning_of_a_worker_is_issued_here(scene):
    scene.hear((0, WorkerWarned("worker-0.0", "DeprecationWarning", "old env")))
    with pytest.warns(DeprecationWarning, match=r"worker-0\.0: old env"):
        scene.session.raise_errors()
    scene.session.raise_errors()


@pytest.mark.parametrize("category", ["NoSuchWarning", "ValueError", "print", "__doc__"])
def test_a_warning_of_a_kind_that_is_none_here_is_a_users(scene, category):
    scene.hear((0, WorkerWarned("worker-0.0", category, "hm")))
    with pytest.warns(UserWarning, match="hm"):
        scene.session.raise_errors()


def test_a_warning_that_a_filter_makes_an_error_does_not_hide_the_others(scene):
    scene.hear(
        (0, WorkerWarned("worker-0.0", "UserWarning", "first")),
        (0, WorkerWarned("worker-0.0", "UserWarning", "second")),
        (0, failed()),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="first"):
            scene.session.raise_errors()
    scene.session.raise_errors()


def test_workers_cannot_fill_the_heads_memory_with_warnings(scene):
    text = "x" * (2 * _LONGEST_WARNING)
    warned = WorkerWarned("worker-0.0", "UserWarning", text)
    scene.hear(*[(0, warned)] * (2 * _MOST_WARNINGS))
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        scene.session.raise_errors()
    assert len(issued) == _MOST_WARNINGS
    assert all(len(str(one.message)) < _LONGEST_WARNING + 100 for one in issued)


def test_what_cannot_be_made_sense_of_is_the_hosts_fault(scene):
    rows = Rows(Step(1, SLOTS), (0, 1), infos=b"nonsense")
    scene.hear((1, rows), (0, Rows(Step(1, SLOTS), (0, 1))))
    ((host, event, _),) = scene.fleet.blamed
    assert (host, event) == ("host-1.0", rows)
    # The other host's rows have come all the same.
    assert scene.session.ready == [0, 1]


@pytest.mark.parametrize("trusted", [True, False])
def test_pickles_are_opened_only_where_hosts_are_trusted(trusted):
    scene = Scene(trusted=trusted)
    value = pack([object, object], allow_pickle=True)
    scene.hear((0, Values(call((0, 1)), (0, 1), value)))
    assert bool(scene.fleet.blamed) != trusted
    assert scene.session.take_values() == ((object, object) if trusted else ())


# Rows and values.


def test_slots_are_ready_in_the_order_of_their_answers(scene):
    scene.hear((1, Rows(Step(1, SLOTS), (2, 3))), (0, Rows(Step(1, SLOTS), (0,))))
    assert scene.session.ready == [2, 3, 0]
    assert scene.session.take_ready(2) == [2, 3]
    assert scene.session.ready == [0]


def test_slots_that_are_taken_are_in_slot_order(scene):
    scene.session.ready.extend([3, 1, 0, 2])
    assert scene.session.take_ready(3) == [0, 1, 3]


def test_values_are_in_slot_order_whoever_was_first(scene):
    for place, slots in [(1, (2, 3)), (0, (0, 1))]:
        values = pack([slot * 10 for slot in slots], allow_pickle=False)
        scene.hear((place, Values(call(), slots, values)))
    assert scene.session.take_values() == (0, 10, 20, 30)
    assert scene.session.take_values() == ()


def test_infos_belong_to_the_slots_that_answered(scene):
    infos = pack_infos([(3, {"k": 1})], allow_pickle=False)
    scene.hear((1, Rows(Step(1, SLOTS), (2, 3), infos=infos)))
    assert scene.session.batch.infos.take_of(SLOTS)["_k"].tolist() == [False, False, False, True]
    infos = pack_infos([(0, {"k": 1})], allow_pickle=False)
    scene.hear((1, Rows(Step(1, SLOTS), (2, 3), infos=infos)))
    assert [host for host, _, _ in scene.fleet.blamed] == ["host-1.0"]


# With a policy.


def acted(slots, version=1):
    count = len(slots)
    said = {"action": np.array(slots), "version": np.full(count, version)}
    return pack({**said, "log_prob": np.zeros(count)}, allow_pickle=False)


def test_what_a_policy_did_is_joined_by_slot(scene):
    scene.session.act()
    for place, slots in [(1, (2, 3)), (0, (0, 1))]:
        (request,) = scene.fleet.hosts[place].asked
        assert isinstance(request, Act)
        scene.hear((place, Rows(request, slots, acted=acted(slots))))
    said = scene.session.take_acted()
    assert said["action"].tolist() == [0, 1, 2, 3]
    assert said["version"].tolist() == [1, 1, 1, 1]


def test_the_divergence_is_measured_on_what_the_policy_acted_on(scene):
    observations = scene.fleet.results.observations[0]
    observations[...] = np.arange(4)[:, None]
    scene.session.act()
    # By the time the rows are there, the observations are those after the step.
    observations[...] = 9.0
    scene.hear((0, Rows(scene.fleet.hosts[0].asked[0], (0, 1), acted=acted((0, 1)))))
    scene.hear((1, Rows(scene.fleet.hosts[1].asked[0], (3,), acted=acted((3,)))))
    assert scene.drift.steps == [
        ("host-0.0", 0, [[[0.0, 0.0], [1.0, 1.0]]]),
        ("host-1.0", 3, [[[3.0, 3.0]]]),
    ]


def test_after_a_loss_it_is_measured_on_what_the_others_act_on_now(scene):
    observations = scene.fleet.results.observations[0]
    for number in (1.0, 2.0):
        observations[...] = number
        scene.session.act()
        scene.asked()
        if number == 1.0:
            scene.hear((0, Lost((0,), "exit code 1", "obituary")))
    request = Act(2, (1,), Newest(1, 1))
    scene.hear((0, Rows(request, (1,), acted=acted((1,)))))
    assert scene.drift.steps == [("host-0.0", 1, [[[2.0, 2.0]]])]


def test_fragments_wait_until_they_are_taken_and_are_looked_at(scene):
    part = fragment((0, 1))
    scene.hear((0, part))
    assert scene.session.fragments.waiting == [part]
    assert scene.drift.fragments == [("host-0.0", part)]


def test_fragments_that_nobody_wants_are_released(scene):
    released = []
    scene.hear((0, fragment((0, 1), released)), (1, fragment((2, 3), released)))
    scene.session.abandon()
    assert released == [(0, 1), (2, 3)]
    assert scene.session.fragments.waiting == []


# Losses.


def test_a_step_goes_on_without_the_slots_that_were_lost(scene):
    scene.hear((0, Lost((1,), "exit code 1", "obituary")))
    scene.session.step(SLOTS, np.arange(10, 14))
    first, second = scene.asked()
    assert [request.slots for request in first] == [(0,)]
    assert [request.slots for request in second] == [(2, 3)]
    assert scene.session.ready == [1]
    assert scene.session.batch.truncated.tolist() == [False, True, False, False]


def test_actions_stay_with_their_slots_when_others_are_lost(scene):
    scene.hear((0, Lost((0, 2), "exit code 1", "obituary")))
    scene.session.step(SLOTS, [{"a": slot} for slot in SLOTS])
    requests = [request for asked in scene.asked() for request in asked]
    found = {
        slot: unpack(action, allow_pickle=False)
        for request in requests
        for slot, action in zip(request.slots, request.packed_actions, strict=True)
    }
    assert found == {1: {"a": 1}, 3: {"a": 3}}


def test_a_reset_within_a_step_still_says_that_the_env_was_lost():
    scene = Scene(AutoresetMode.SAME_STEP)
    scene.hear((0, Lost((1,), "exit code 1", "obituary", (Voided(Step(1, SLOTS), (1,)),))))
    ((reset,), _) = scene.asked()
    assert isinstance(reset, Reset)
    scene.hear((0, Rows(reset, (1,))))
    assert scene.session.batch.truncated.tolist() == [False, True, False, False]
    assert scene.session.ready == [1]


def test_fragments_that_will_not_come_are_told(scene):
    voided = Voided(Collect(1, SLOTS, 5, Newest(1, 1)), (0, 1))
    scene.hear((0, Lost((0, 1), "exit code 1", "obituary", (voided,))))
    assert scene.session.fragments.take_missing() == [voided]


@pytest.mark.parametrize("request_", [call(), SetAttr(1, SLOTS, "speed", (b"",) * 4)], ids=str)
def test_a_call_in_which_a_worker_was_lost_has_to_be_repeated_by_the_user(scene, request_):
    scene.hear((0, Lost((0, 1), "exit code 1", "obituary", (Voided(request_, (0, 1)),))))
    with pytest.raises(WorkerLostError, match=r"host-0\.0 .* \(exit code 1\): call it again"):
        scene.session.raise_errors()


@pytest.mark.parametrize(
    "request_", [Step(1, SLOTS), Act(1, SLOTS, Newest(1, 1)), Reset(1, SLOTS, 42)], ids=str
)
def test_a_step_in_which_a_worker_was_lost_is_no_error(scene, request_):
    scene.hear((0, Lost((0, 1), "exit code 1", "obituary", (Voided(request_, (0, 1)),))))
    scene.session.raise_errors()


def test_slots_that_nobody_can_take_end_the_run(scene):
    scene.hear((0, Lost((0, 1), "exit code 1", "obituary", error="worker-0.3 was lost …")))
    with pytest.raises(WorkerLostError, match=r"worker-0\.3 was lost"):
        scene.session.raise_errors()
    with pytest.raises(WorkerLostError, match=r"worker-0\.3 was lost"):
        scene.session.step(SLOTS, np.zeros(4, int))


def test_slots_of_a_host_that_is_gone_start_over_on_the_others(scene):
    released = []
    step = Voided(Step(1, SLOTS), (0, 1))
    moved = Voided(Step(1, SLOTS), (2,))
    scene.hear((0, fragment((2, 3), released)))
    scene.fleet.deal = Deal((0, 1, 2), (moved,))
    scene.hear((0, Lost((0, 1), "gone", "obituary", (step,), error="it cannot be replaced")))
    scene.session.raise_errors()
    # All that moved is lost, whoever had it.
    assert sorted(scene.session.ready) == [0, 1, 2]
    assert scene.session.batch.truncated.tolist() == [True, True, True, False]
    assert released == [(2, 3)]
    assert scene.session.fragments.waiting == []


def test_an_env_that_spends_the_restarts_of_two_hosts_is_not_tried_on_a_third(scene):
    scene.fleet.deal = Deal((0, 1), ())
    for number, slot in enumerate([0, 1, None, None]):
        error = f"worker-0.{number} was lost"
        scene.hear((0, Lost((0, 1), "exit code 1", "obituary", error=error, slot=slot)))
        scene.session.raise_errors()
    scene.hear((1, Lost((0, 1), "exit code 1", "obituary", error="slot 1 is to blame", slot=1)))
    with pytest.raises(WorkerLostError, match="slot 1 is to blame"):
        scene.session.raise_errors()


def test_slots_that_are_dealt_anew_are_lost_to_whoever_waits_for_them(scene):
    scene.session.dealt(Deal((3,), (Voided(Step(1, SLOTS), (3,)),)))
    assert scene.session.ready == [3]
    scene.session.dealt(None)
    assert scene.session.ready == [3]


# Waiting.


def test_waiting_ends_when_all_hosts_are_idle(scene):
    host = scene.fleet.hosts[1]
    host.is_idle = False
    assert not scene.session.wait_until_idle(0.0)
    scene.fleet.reported.append((1, Rows(Step(1, SLOTS), SLOTS)))
    scene.fleet.events = lambda timeout_s: [setattr(host, "is_idle", True)] and iter(())
    assert scene.session.wait_until_idle(60.0)


def test_waiting_for_all_raises_what_went_wrong(scene):
    scene.hear((0, failed()))
    with pytest.raises(RemoteError):
        scene.session.wait_until_idle(60.0)


def test_nothing_of_what_was_abandoned_comes_up_later(scene):
    scene.hear(
        (0, Rows(Step(1, SLOTS), (0, 1), infos=pack_infos([(0, {"k": 1})], allow_pickle=False))),
        (0, Values(call((0, 1)), (0, 1), pack([1, 2], allow_pickle=False))),
    )
    scene.session.abandon()
    assert scene.session.ready == []
    assert scene.session.batch.infos.take_of(SLOTS) == {}
    assert scene.session.take_values() == ()


def test_closing_closes_the_hosts(scene):
    scene.session.close(0.0)
    assert scene.session.is_closed
    assert scene.fleet.is_closed
