"""What workers have done reaches the head in few messages, and each slot once in a message."""

from types import SimpleNamespace

import numpy as np
import pytest

from clusterenv.host.events import Rows
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Act, Call, Collect, Newest, Reset, Step
from clusterenv.wire.gathering import Gathering
from clusterenv.wire.messages import Extra, FragmentMade, RowsMade

NEWEST = Newest(1, 1)
SLOTS = tuple(range(4))
ALL, SOME = b"all rows", b"some rows"


class Host:
    """A gathering of four slots; keeps what is sent."""

    def __init__(self, *requests):
        self.ready, self.sent = [], []
        rows = SimpleNamespace(memory=ALL, copy_of=lambda slots: SOME)
        host = SimpleNamespace(slots=range(4), rows=rows)
        socket = SimpleNamespace(send=lambda message, frames: self.sent.append((message, frames)))
        self.gathering = Gathering(host, self.ready, socket, epoch=7)
        for request in requests:
            self.gathering.expect(request)

    def send(self):
        """What is sent now."""
        self.gathering.send()
        sent = self.sent[:]
        self.sent.clear()
        return sent


def part(request, slots, version=1, **others):
    count = len(slots)
    arrays = {
        "rewards": np.full((2, count), float(slots[0])),
        "finals/steps": np.zeros(1),
        **others,
    }
    return FragmentPart(request, slots, version, arrays)


def rows_of(*slots):
    return (RowsMade(7, slots), [SOME])


# Rows.


def test_rows_that_are_wanted_together_wait_for_each_other():
    host = Host(step := Step(1, SLOTS))
    host.gathering.add_rows(Rows(step, (2, 3)))
    assert host.send() == []
    host.gathering.add_rows(Rows(step, (0, 1)))
    assert host.send() == [(RowsMade(7, None), [ALL])]


@pytest.mark.parametrize("request_", [Reset(1, SLOTS, 0), Act(1, SLOTS, NEWEST)])
def test_so_do_those_of_resets_and_of_policies(request_):
    host = Host(request_)
    host.gathering.add_rows(Rows(request_, (0, 1)))
    assert host.send() == []


def test_rows_that_are_wanted_as_they_come_do_not():
    host = Host(step := Step(1, SLOTS, together=False))
    host.gathering.add_rows(Rows(step, (2, 3)))
    assert host.send() == [rows_of(2, 3)]


def test_what_is_there_at_one_time_is_one_message():
    host = Host(step := Step(1, SLOTS, together=False))
    host.ready += [3]
    host.gathering.add_rows(Rows(step, (2,), infos=b"i"))
    host.gathering.add_rows(Rows(step, (0,)))
    assert host.send() == [(RowsMade(7, (0, 2, 3), (Extra((2,), infos=b"i"),)), [SOME])]
    assert host.send() == []


def test_who_answers_silently_does_not_hold_up_those_who_say_more():
    """Of a step of all slots one worker may have nothing to say, and answer by its rows alone."""
    host = Host(step := Step(1, SLOTS))
    host.gathering.add_rows(Rows(step, (2, 3), infos=b"i"))
    assert host.send() == []
    host.ready += [0, 1]
    ((message, _),) = host.send()
    assert message == RowsMade(7, None, (Extra((2, 3), infos=b"i"),))


def test_what_will_not_come_is_not_waited_for():
    host = Host(step := Step(1, SLOTS))
    host.gathering.add_rows(Rows(step, (2, 3)))
    host.gathering.count_off(step, (0, 1))
    assert host.send() == [rows_of(2, 3)]


def test_a_slot_that_was_reset_twice_is_in_two_messages():
    first, second = Reset(1, (0, 1), 0), Reset(2, (0, 1), 0)
    host = Host(first, second)
    host.gathering.add_rows(Rows(first, (0, 1), infos=b"1"))
    host.gathering.add_rows(Rows(second, (0, 1), infos=b"2"))
    assert [message for message, _ in host.send()] == [
        RowsMade(7, (0, 1), (Extra((0, 1), infos=b"1"),)),
        RowsMade(7, (0, 1), (Extra((0, 1), infos=b"2"),)),
    ]


def test_the_order_of_what_was_done_with_a_slot_is_kept():
    resets = [Reset(n, (0, 1, 2), 0, together=False) for n in range(3)]
    host = Host(*resets)
    host.ready += [2]
    host.gathering.add_rows(Rows(resets[0], (0,), infos=b"1"))
    host.gathering.add_rows(Rows(resets[1], (0, 1), infos=b"2"))
    host.gathering.add_rows(Rows(resets[2], (1, 2), infos=b"3"))
    messages = [message for message, _ in host.send()]
    assert [message.slots for message in messages] == [(0, 2), (0, 1), (1, 2)]
    assert [extra.infos for m in messages for extra in m.extras] == [b"1", b"2", b"3"]


def test_rows_of_requests_that_were_abandoned_are_not_sent():
    host = Host(step := Step(1, SLOTS))
    host.gathering.add_rows(Rows(step, (2, 3)))
    host.gathering.forget(8)
    host.gathering.count_off(step, (0, 1))
    assert host.send() == []


def test_other_requests_are_not_waited_for():
    host = Host(Call(1, SLOTS, "x", b""))
    host.gathering.count_off(Call(1, SLOTS, "x", b""), (0, 1))
    assert host.send() == []


# Fragments.


def fragments(host):
    return [(message.request, message.slots) for message, _ in host.send()]


def test_fragments_that_are_wanted_together_are_one_message():
    host = Host(collect := Collect(1, SLOTS, 2, NEWEST, together=True))
    host.gathering.add_fragment(part(collect, (2, 3)))
    assert host.send() == []
    host.gathering.add_fragment(part(collect, (0, 1)))
    ((message, frames),) = host.send()
    assert isinstance(message, FragmentMade)
    assert (message.slots, message.names) == (SLOTS, ("rewards", "finals/steps"))
    assert message.arrays == (("<f8", (2, 4)), ("<f8", (2,)))
    assert np.frombuffer(frames[0]).tolist() == [0, 0, 2, 2] * 2


def test_fragments_of_a_stream_are_sent_as_they_come():
    host = Host(collect := Collect(1, SLOTS, 2, NEWEST))
    host.gathering.add_fragment(part(collect, (2, 3)))
    assert fragments(host) == [(1, (2, 3))]


def test_fragments_that_do_not_fit_together_are_messages_of_their_own():
    first, second = (Collect(number, SLOTS, 2, NEWEST) for number in (1, 2))
    host = Host(first, second)
    for one in (
        part(second, (0,)),
        part(first, (0,)),
        part(first, (1,), version=2),
        part(first, (2,), version=2, **{"outputs/x": np.zeros((2, 1))}),
        part(first, (3,), version=2),
    ):
        host.gathering.add_fragment(one)
    assert fragments(host) == [(1, (0,)), (1, (1,)), (1, (2,)), (1, (3,)), (2, (0,))]


def test_slots_of_a_fragment_are_neighbours():
    host = Host(collect := Collect(1, SLOTS, 2, NEWEST, together=True))
    host.gathering.add_fragment(part(collect, (3,)))
    host.gathering.add_fragment(part(collect, (0,)))
    host.gathering.count_off(collect, (1, 2))
    assert fragments(host) == [(1, (0,)), (1, (3,))]


def test_the_memory_of_fragments_that_nobody_wants_is_given_back():
    released = []
    wanted, streamed = Collect(1, SLOTS, 2, NEWEST, together=True), Collect(2, SLOTS, 2, NEWEST)
    host = Host(wanted, streamed)
    for request in (wanted, streamed):
        one = part(request, (0,))
        release = lambda number=request.request: released.append(number)  # noqa: E731
        host.gathering.add_fragment(
            FragmentPart(request, one.slots, one.version, one.arrays, release)
        )
    host.gathering.forget(8)
    assert sorted(released) == [1, 2]
    assert host.send() == []
