"""A policy acts where the envs are: weights come once for all workers, and only when wanted."""

import numpy as np
import pytest

from clusterenv.host.events import PullWanted, Rows, Values, Voided
from clusterenv.host.weights import PulledWeights
from clusterenv.memory.messages import WorkerLeaving
from clusterenv.memory.weights import WeightStore
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.replies import Collected, Raised, Returned, Stepped
from clusterenv.protocol.requests import Act, Call, Collect, Evaluate, Newest, Reset, Step
from clusterenv.sync import EveryNth, EveryVersion
from tests.unit.paper_workers import Stage

SLOTS = (4, 5, 6, 7)
POLICY, OTHER = TakePolicy(1, b"policy", b"layout"), TakePolicy(2, b"other", b"layout")
FIRST = PullWanted(0, 0, "first", 0.0)


@pytest.fixture
def make_stage():
    stages = []

    def make(rule=None, ahead=False, **how):
        stages.append(Stage(**how).open(rule, ahead))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


def collect(number=1, version=1, slots=SLOTS, policy_id=1):
    return Collect(number, slots, 3, Newest(policy_id, version))


def give(stage, version, policy=POLICY, cause=None):
    """The weights that the host wanted last have come."""
    cause = stage.host._asking._weights.pulls_for if cause is None else cause
    stage.host.take_weights(PulledWeights(policy, version, bytes([version]) * 8, cause, 8))


def deliver(worker, request, version=1):
    """A fragment, as a worker answers with it."""
    rewards = np.zeros((3, len(worker.slots)))
    reply = Collected(request, version, ("rewards",), (("<f8", rewards.shape),))
    worker.say(reply, [rewards.tobytes()])


def numbers(worker):
    return [message.request for message in worker.hear() if not isinstance(message, TakePolicy)]


def begun(stage, **how):
    """A rollout whose weights have come, and the numbers of its requests."""
    stage.host.ask(collect(**how))
    assert [type(event) for event in stage.events()] == [PullWanted]
    give(stage, 1)
    return [numbers(stage.worker(place))[0] for place in range(2)]


# Order.


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("later", [Call(2, SLOTS, "pid", b""), Reset(2, (4,), 0), Step(2, SLOTS)])
def test_what_is_asked_after_a_fragment_does_not_overtake_it(make_stage, later, ahead):
    stage = make_stage(ahead=ahead)
    stage.host.ask(collect())
    stage.events()
    stage.host.ask(later, np.arange(4) if isinstance(later, Step) else None)
    assert stage.heard() == [[], []]
    give(stage, 1)
    worker = stage.worker(0)
    policy, first, *others = worker.hear()
    assert isinstance(policy, TakePolicy)
    assert isinstance(first, Collect)
    deliver(worker, first.request)
    stage.events()
    assert [type(one) for one in (*others, *worker.hear())] == [type(later)]


def test_what_waits_behind_a_fragment_that_fails_is_done_all_the_same(make_stage):
    stage = make_stage()
    (number, _) = begun(stage)
    stage.host.ask(collect(2))
    stage.host.ask(Call(3, SLOTS, "pid", b""))
    worker = stage.worker(0)
    worker.say(Raised(number, 4, "builtins", "ValueError", b"", "hm", ""))
    stage.events()
    (second,) = numbers(worker)
    worker.say(Raised(second, 4, "builtins", "ValueError", b"", "hm", ""))
    stage.events()
    assert [type(one) for one in worker.hear()] == [Call]


def test_weights_of_a_new_policy_wait_for_who_acts_with_the_one_before(make_stage):
    stage = make_stage()
    first, second = begun(stage)
    deliver(stage.worker(0), first)
    stage.events()
    stage.host.ask(collect(2, version=2))
    assert [type(event) for event in stage.events()] == [PullWanted]
    # Before the answer another policy was published: the second worker has its fragment yet to do.
    stage.host.announce(Newest(2, 3))
    give(stage, 3, OTHER)
    weights = WeightStore(stage.worker(1).line.descriptors.weights)
    assert weights.take(1, 0) == (1, bytes([1]) * 8)
    assert stage.worker(0).hear() == []
    deliver(stage.worker(1), second)
    stage.events()
    assert weights.take(2, 0) == (3, bytes([3]) * 8)
    for place in range(2):
        assert [type(one) for one in stage.worker(place).hear()] == [TakePolicy, Collect]


def test_weights_that_waited_are_not_taken_for_those_of_a_later_pull(make_stage):
    stage = make_stage()
    begun(stage)
    stage.host.announce(Newest(1, 2))
    stage.host.ask(collect(2, version=2))
    stage.host._asking._weights.pulls_for = "version"
    give(stage, 3, OTHER)
    stage.host.abandon()
    stage.host.ask(collect(3, version=4, policy_id=2))
    assert [type(event) for event in stage.events()] == [PullWanted]
    assert stage.heard() == [[], []]


# Pulling.


def test_weights_are_wanted_before_anybody_begins(make_stage):
    stage = make_stage()
    stage.host.ask(collect())
    assert stage.heard() == [[], []]
    assert stage.events() == [FIRST]
    assert not stage.host.is_idle


def test_weights_come_once_for_all_workers_and_each_gets_the_policy(make_stage):
    stage = make_stage()
    stage.host.ask(collect())
    stage.events()
    give(stage, 1)
    for place, (policy, request) in enumerate(stage.heard()):
        worker = stage.worker(place)
        assert policy == POLICY
        assert request.slots == worker.slots
        assert request.num_steps == 3
        weights = WeightStore(worker.line.descriptors.weights)
        assert weights.take(1, 0) == (1, bytes([1]) * 8)
    assert stage.events() == []


def test_a_policy_that_workers_have_is_not_sent_again(make_stage):
    stage = make_stage()
    requests = begun(stage)
    for place, request in enumerate(requests):
        deliver(stage.worker(place), request)
    stage.events()
    stage.host.ask(collect(2, version=2))
    assert stage.events() == [PullWanted(1, 1, "version", 0.0)]
    give(stage, 2)
    assert [[type(one) for one in heard] for heard in stage.heard()] == [[Collect]] * 2


def test_another_policy_is_sent_before_what_it_is_for(make_stage):
    stage = make_stage()
    for place, request in enumerate(begun(stage)):
        deliver(stage.worker(place), request)
    stage.events()
    stage.host.ask(collect(2, version=2, policy_id=2))
    assert [event.cause for event in stage.events()] == ["first"]
    give(stage, 2, OTHER)
    for policy, request in stage.heard():
        assert policy == OTHER
        assert isinstance(request, Collect)


def test_nothing_is_pulled_where_the_rule_does_not_say_so(make_stage):
    stage = make_stage(EveryNth(5))
    for place, request in enumerate(begun(stage)):
        deliver(stage.worker(place), request)
    stage.events()
    stage.host.ask(collect(2, version=4))
    assert stage.events() == []
    assert all(len(heard) == 1 for heard in stage.heard())


def test_a_replacement_gets_the_policy_too(make_stage):
    stage = make_stage()
    begun(stage)
    stage.worker(0).end = "exit code 1"
    stage.events()
    stage.get_ready(0)
    stage.host.staff[0].not_reset.clear()
    stage.host.ask(collect(2, slots=(4, 5)))
    assert stage.events() == []
    assert [type(one) for one in stage.worker(0).hear()] == [TakePolicy, Collect]


# What comes back.


def test_fragments_come_as_workers_finish(make_stage):
    stage = make_stage()
    first, second = begun(stage)
    deliver(stage.worker(1), second)
    (part,) = stage.events()
    assert (part.request, part.slots, part.version) == (collect(), (6, 7), 1)
    assert not stage.host.is_idle
    deliver(stage.worker(0), first)
    (part,) = stage.events()
    assert part.slots == (4, 5)
    assert stage.host.is_idle


def test_a_step_with_a_policy_comes_back_with_what_it_did(make_stage):
    stage = make_stage()
    request = Act(1, SLOTS, Newest(1, 1))
    stage.host.ask(request)
    stage.events()
    give(stage, 1)
    for place in range(2):
        stage.worker(place).say(Stepped(numbers(stage.worker(place))[0], acted=b"acted"))
    assert stage.events() == [
        Rows(request, (4, 5), acted=b"acted"),
        Rows(request, (6, 7), acted=b"acted"),
    ]


def test_an_evaluation_has_weights_of_its_own(make_stage):
    stage = make_stage(EveryNth(100))
    for place, request in enumerate(begun(stage)):
        deliver(stage.worker(place), request)
    stage.events()
    evaluation = Evaluate(2, SLOTS, (1, 2, 3, 4), 7, True, Newest(1, 5))
    stage.host.ask(evaluation)
    assert stage.events() == [PullWanted(1, 0, "evaluation", 0.0)]
    give(stage, 5)
    messages = [message for (message,) in stage.heard()]
    assert [message.episodes for message in messages] == [(1, 2), (3, 4)]
    fds = stage.worker(0).line.descriptors
    assert WeightStore(fds.weights).take(1, 0)[0] == 1
    assert WeightStore(fds.evaluation_weights).take(1, 0)[0] == 5
    stage.worker(0).say(Returned(messages[0].request, b"episodes"))
    assert stage.events() == [Values(evaluation, (4, 5), b"episodes")]


# One fragment after the other.


def test_a_worker_gets_its_next_fragment_when_it_is_done(make_stage):
    stage = make_stage()
    first, _ = begun(stage)
    stage.host.ask(collect(2))
    assert stage.heard() == [[], []]
    deliver(stage.worker(0), first)
    stage.events()
    heard = stage.heard()
    assert [len(one) for one in heard] == [1, 0]


def test_a_worker_gets_its_next_fragment_ahead_where_nobody_may_be_there_in_time(make_stage):
    stage = make_stage(ahead=True)
    begun(stage)
    stage.host.ask(collect(2))
    assert [len(one) for one in stage.heard()] == [1, 1]


def test_whoever_is_told_of_a_version_pulls_at_once_only_where_workers_run_ahead(make_stage):
    for ahead, expected in [(True, [PullWanted(1, 1, "version", 0.0)]), (False, [])]:
        stage = make_stage(EveryVersion(), ahead)
        begun(stage)
        stage.host.announce(Newest(1, 2))
        assert stage.events() == expected


def test_what_is_announced_while_weights_are_on_their_way_waits_for_these(make_stage):
    stage = make_stage(ahead=True)
    stage.host.ask(collect())
    assert stage.events() == [FIRST]
    stage.host.announce(Newest(1, 2))
    stage.host.announce(Newest(1, 3))
    assert stage.events() == []
    give(stage, 3)
    assert all(len(heard) == 2 for heard in stage.heard())


# Giving up.


def test_what_was_abandoned_before_its_weights_came_is_never_begun(make_stage):
    stage = make_stage()
    stage.host.ask(collect())
    stage.events()
    # Nothing happened to their envs.
    assert stage.host.abandon() == set()
    assert stage.host.is_idle
    # Weights that come all the same are for nobody.
    give(stage, 1, cause="first")
    assert stage.heard() == [[], []]
    stage.host.ask(collect(2))
    assert stage.events() == [FIRST]


def test_whoever_gave_up_on_weights_may_ask_for_them_again(make_stage):
    stage = make_stage()
    stage.host.ask(collect())
    stage.events()
    stage.host.abandon()
    stage.host.ask(collect(2))
    assert stage.events() == [FIRST]


def test_workers_see_that_what_they_have_not_begun_is_not_wanted(make_stage):
    stage = make_stage(ahead=True)
    requests = begun(stage)
    stage.host.ask(collect(2))
    later = [numbers(stage.worker(place))[0] for place in range(2)]
    assert stage.host.abandon() == set()
    for place in range(2):
        cancelled = stage.worker(place).line.mailbox.cancelled_up_to
        assert cancelled >= max(requests[place], later[place])
    stage.host.ask(collect(3))
    for place in range(2):
        (number,) = numbers(stage.worker(place))
        assert number > stage.worker(place).line.mailbox.cancelled_up_to


def test_fragments_that_nobody_wants_any_more_are_released(make_stage):
    stage = make_stage()
    first, _ = begun(stage)
    stage.host.abandon()
    deliver(stage.worker(0), first)
    assert stage.events() == []
    assert stage.worker(0).line.mailbox.released_by_host[0] == 1


def test_the_slots_of_a_worker_that_is_not_ready_were_never_begun(make_stage):
    stage = make_stage()
    stage.worker(0).end = "exit code 1"
    stage.events()
    stage.host.ask(Reset(2, SLOTS, 42))
    assert stage.host.abandon() == {4, 5}


# Losses.


def test_what_a_lost_worker_was_to_do_with_the_policy_is_void(make_stage):
    stage = make_stage()
    begun(stage)
    stage.host.ask(collect(2))
    stage.worker(0).end = "exit code 1"
    (lost,) = stage.events()
    assert lost.voided == (Voided(collect(), (4, 5)), Voided(collect(2), (4, 5)))


def test_a_worker_that_has_to_leave_need_not_end_its_fragment(make_stage):
    stage = make_stage()
    begun(stage)
    stage.worker(0).say(WorkerLeaving("it was told to leave (SIGTERM)"))
    (lost,) = stage.events()
    assert lost.reason == "it was told to leave (SIGTERM)"
    assert lost.voided == (Voided(collect(), (4, 5)),)


def test_a_replacement_is_not_asked_to_collect_before_it_was_reset(make_stage):
    stage = make_stage()
    begun(stage)
    stage.worker(0).end = "exit code 1"
    stage.events()
    stage.host.ask(collect(2, slots=(4, 5)))
    (lost,) = stage.events()
    assert lost.voided == (Voided(collect(2, slots=(4, 5)), (4, 5)),)
    assert stage.host.staff[0].asked == {}


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_new_policy_begins_when_nobody_acts_with_the_old_one_any_more(make_stage, is_lost):
    stage = make_stage()
    first, _ = begun(stage, slots=(4, 5, 6, 7))
    deliver(stage.worker(1), first)
    stage.events()
    stage.host.ask(collect(2, version=2, policy_id=2, slots=(6, 7)))
    assert stage.events() == []
    if is_lost:
        stage.worker(0).end = "killed by SIGKILL"
    else:
        deliver(stage.worker(0), first)
    assert PullWanted in [type(event) for event in stage.events()]
