"""Requests that need a policy wait for its weights, and for their worker, in order."""

from types import SimpleNamespace

import pytest

from clusterenv.host.events import PullWanted
from clusterenv.host.policy_queue import PolicyQueue, Waiting
from clusterenv.host.worker import Asked
from clusterenv.protocol.requests import Act, Call, Collect, Evaluate, Newest

WANTED = PullWanted(0, 0, "first", 0.0)


class PaperWeights:
    """Wants what it is told to want, once."""

    waits_for_policy = False

    def __init__(self, *wanted_for):
        self.pulls_for, self._wanted_for, self.asked = "", list(wanted_for), []

    def wanted_for(self, request):
        self.asked.append(request)
        if request in self._wanted_for:
            self._wanted_for.remove(request)
            self.pulls_for = "first"
            return WANTED
        return None


def worker(index, *asked):
    """One that is at work on these requests."""
    return SimpleNamespace(
        index=index, asked={n: Asked(request, (0,), 0.0) for n, request in enumerate(asked)}
    )


def collect(number=1):
    return Collect(number, (0, 1), 5, Newest(1, 1))


def act(number=1):
    return Act(number, (0, 1), Newest(1, 1))


def evaluate(number=1):
    return Evaluate(number, (0, 1), (1, 1), 7, True, Newest(1, 1))


def waiting(request, slots=(0,)):
    return Waiting(100 + request.request, request, request, slots)


def begin(queue, staff):
    """What is begun; as a host does, each is noted with its worker at once."""
    begun = []
    for one in queue.begin(staff):
        begun.append(one)
        if not isinstance(one, PullWanted):
            own, what = one
            own.asked[what.number] = Asked(what.request, what.slots, 0.0)
    return begun


def test_nothing_waits_at_first():
    queue = PolicyQueue(PaperWeights(), ahead=False)
    assert not queue.is_waiting
    assert begin(queue, [worker(0)]) == []


def test_what_can_be_begun_is_begun_by_its_worker():
    queue, first, second = PolicyQueue(PaperWeights(), ahead=False), worker(0), worker(1)
    queue.add(second, waiting(collect()))
    assert queue.is_waiting
    assert begin(queue, [first, second]) == [(second, waiting(collect()))]
    assert not queue.is_waiting


def test_weights_that_are_wanted_come_first():
    request = collect()
    weights = PaperWeights(request)
    queue, staff = PolicyQueue(weights, ahead=False), [worker(0), worker(1)]
    for one in staff:
        queue.add(one, waiting(request))
    assert begin(queue, staff) == [WANTED]
    # Nobody begins, and nobody pulls again, while they are on their way.
    assert begin(queue, staff) == []
    assert queue.is_waiting
    weights.pulls_for = ""
    assert begin(queue, staff) == [(one, waiting(request)) for one in staff]


def test_a_pull_before_a_later_request_lets_the_earlier_ones_begin():
    first, second = collect(1), collect(2)
    queue, own = PolicyQueue(PaperWeights(second), ahead=True), worker(0)
    queue.add(own, waiting(first))
    queue.add(own, waiting(second))
    assert begin(queue, [own]) == [(own, waiting(first)), WANTED]


def test_a_worker_that_collects_is_not_free():
    queue, busy, free = PolicyQueue(PaperWeights(), ahead=False), worker(0, collect(1)), worker(1)
    for one in (busy, free):
        queue.add(one, waiting(collect(2)))
    assert begin(queue, [busy, free]) == [(free, waiting(collect(2)))]
    busy.asked.clear()
    assert begin(queue, [busy, free]) == [(busy, waiting(collect(2)))]


def test_each_worker_gets_one_fragment_at_a_time():
    queue, own = PolicyQueue(PaperWeights(), ahead=False), worker(0)
    for number in (1, 2):
        queue.add(own, waiting(collect(number)))
    assert begin(queue, [own]) == [(own, waiting(collect(1)))]
    assert begin(queue, [own]) == []
    own.asked.clear()
    assert begin(queue, [own]) == [(own, waiting(collect(2)))]


def test_whether_to_pull_is_decided_when_a_fragment_begins_and_not_earlier():
    weights, own = PaperWeights(), worker(0)
    queue = PolicyQueue(weights, ahead=False)
    for number in (1, 2):
        queue.add(own, waiting(collect(number)))
    begin(queue, [own])
    assert weights.asked == [collect(1)]
    own.asked.clear()
    begin(queue, [own])
    assert weights.asked == [collect(1), collect(2)]


def test_a_worker_may_get_its_next_fragment_before_it_is_done():
    queue, own = PolicyQueue(PaperWeights(), ahead=True), worker(0, collect(1))
    for number in (2, 3):
        queue.add(own, waiting(collect(number)))
    assert begin(queue, [own]) == [(own, waiting(collect(number))) for number in (2, 3)]


def ahead(number):
    return Collect(number, (0, 1), 5, Newest(1, number), ahead=True)


def test_what_is_asked_for_ahead_is_due_at_once_even_where_fragments_are_not():
    queue, own = PolicyQueue(PaperWeights(), ahead=False), worker(0, ahead(1))
    queue.add(own, waiting(ahead(2)))
    queue.add(own, waiting(collect(3)))
    assert begin(queue, [own]) == [(own, waiting(ahead(2)))]


def test_all_workers_begin_with_a_request_before_weights_are_pulled_for_the_next():
    queue, staff = PolicyQueue(PaperWeights(ahead(2)), ahead=False), [worker(0), worker(1)]
    for one in staff:
        queue.add(one, waiting(ahead(1)))
        queue.add(one, waiting(ahead(2)))
    assert begin(queue, staff) == [*((one, waiting(ahead(1))) for one in staff), WANTED]


@pytest.mark.parametrize("request_", [act(), evaluate(), Call(1, (0,), "render", b"")], ids=str)
def test_a_worker_with_anything_else_to_do_is_free(request_):
    queue, own = PolicyQueue(PaperWeights(), ahead=False), worker(0, request_)
    queue.add(own, waiting(collect(2)))
    assert begin(queue, [own]) == [(own, waiting(collect(2)))]


def test_requests_of_one_worker_keep_their_order():
    queue, own = PolicyQueue(PaperWeights(), ahead=False), worker(0)
    requests = [act(1), evaluate(2), collect(3), act(4)]
    for request in requests:
        queue.add(own, waiting(request))
    assert [what.request for _, what in begin(queue, [own])] == requests[:3]
    # Not before the fragment is there, though it is no fragment itself.
    assert queue.is_waiting


def test_what_a_lost_worker_was_to_do_is_given_back():
    queue, lost, other = PolicyQueue(PaperWeights(), ahead=False), worker(0), worker(1)
    for one in (lost, other):
        queue.add(one, waiting(collect(1)))
    queue.add(lost, waiting(collect(2)))
    assert queue.forget(lost) == [waiting(collect(1)), waiting(collect(2))]
    assert queue.forget(lost) == []
    assert begin(queue, [lost, other]) == [(other, waiting(collect(1)))]
