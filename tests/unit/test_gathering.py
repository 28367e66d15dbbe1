"""What workers have done reaches the head in few messages, and each slot once in a message."""

from types import SimpleNamespace

import numpy as np
import pytest

from clusterenv.host.events import Rows
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Act, Call, Collect, Newest, Reset, Step
from clusterenv.wire.compression import ZLIB
from clusterenv.wire.gathering import Gathering
from clusterenv.wire.messages import Extra, FragmentMade, RowsMade
from clusterenv.wire.observation_codec import ObservationCodec

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
        codec = ObservationCodec(ZLIB)
        self.gathering = Gathering(host, self.ready, socket, epoch=7, codec=codec)
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


def test_rows_of_envs_that_are_lost_then_go_first_and_the_others_still_wait():
    host = Host(step := Step(1, SLOTS))
    host.gathering.add_rows(Rows(step, (0,)))
    host.gathering.add_rows(Rows(step, (1,)))
    host.gathering.let_go((1,))
    assert host.send() == [rows_of(1)]
    host.gathering.add_rows(Rows(step, (2, 3)))
    assert host.send() == [rows_of(0, 2, 3)]


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


def test_fragments_that_were_asked_for_ahead_of_some_slots_are_messages_of_their_own():
    host = Host(collect := Collect(1, SLOTS, 2, NEWEST, ahead=True))
    for slots in ((0, 1), (2, 3)):
        host.gathering.add_fragment(part(collect, slots))
    assert [message.slots for message, _ in host.send()] == [(0, 1), (2, 3)]


def test_a_fragment_ahead_does_not_overtake_one_of_its_slots_that_waits_for_others():
    first = Collect(1, SLOTS, 2, NEWEST, together=True, ahead=True)
    second = Collect(2, (2, 3), 2, NEWEST, together=True, ahead=True)
    host = Host(first, second)
    for request in (first, second):
        host.gathering.add_fragment(part(request, (2, 3)))
    assert host.send() == []
    host.gathering.add_fragment(part(first, (0, 1)))
    assert [(message.request, message.slots) for message, _ in host.send()] == [
        (1, SLOTS),
        (2, (2, 3)),
    ]


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


def test_no_row_overtakes_the_fragment_before_it():
    """If the host were lost in between, nobody would be told that the env of that row is lost."""
    collect, step = Collect(1, SLOTS, 2, NEWEST), Step(2, SLOTS, together=False)
    host = Host(collect, step)
    host.gathering.add_fragment(part(collect, (2, 3)))
    host.gathering.add_rows(Rows(step, (2,)))
    host.ready += [3]
    assert [type(message) for message, _ in host.send()] == [FragmentMade, RowsMade]


def test_no_fragment_overtakes_the_reset_before_it():
    """If the host were lost in between, the env would be reset again, and the fragment be of an
    episode that nobody saw end."""
    owed, reset = Collect(1, SLOTS, 2, NEWEST), Reset(2, (0, 1), 0)
    collect = Collect(3, (0, 1), 2, NEWEST)
    host = Host(owed, reset, collect)
    host.gathering.add_rows(Rows(reset, (0, 1)))
    host.gathering.add_fragment(part(collect, (0, 1)))
    host.gathering.add_fragment(part(owed, (2, 3)))
    assert [message.slots for message, _ in host.send()] == [(0, 1), (2, 3), (0, 1)]


# Fragments of a stream: one message at a time is under way.


def streamed(number, slots=SLOTS):
    return Collect(number, slots, 2, NEWEST, asks_again=True)


def test_fragments_that_finish_before_the_head_has_taken_the_last_leave_together():
    host = Host(first := streamed(1))
    host.gathering.add_fragment(part(first, (1,)))
    assert fragments(host) == [(1, (1,))]
    for slot in (3, 0):
        host.gathering.add_fragment(part(first, (slot,)))
        assert host.send() == []
    host.gathering.expect(streamed(2, (1,)))
    assert fragments(host) == [(1, (0, 3))]


def test_a_message_may_answer_several_requests():
    first, second = streamed(1, (0, 2)), streamed(2, (1, 3))
    host = Host(first, second)
    for request, slot in ((second, 3), (first, 0), (second, 1), (first, 2)):
        host.gathering.add_fragment(part(request, (slot,)))
    ((message, frames),) = host.send()
    assert (message.request, message.slots) == (1, SLOTS)
    assert message.others == ((2, (1, 3)),)
    assert np.frombuffer(frames[0]).tolist() == [0, 1, 2, 3] * 2


def test_the_second_fragment_of_a_slot_follows_in_a_message_of_its_own():
    first, second = streamed(1), streamed(2)
    host = Host(first, second)
    for request in (first, second):
        host.gathering.add_fragment(part(request, (0, 1)))
        host.gathering.add_fragment(part(request, (2, 3)))
    assert fragments(host) == [(1, SLOTS), (2, SLOTS)]


def test_the_head_has_taken_all_messages_before_another_leaves():
    first, second = streamed(1), streamed(2)
    host = Host(first, second)
    host.gathering.add_fragment(part(first, (0, 1)))
    host.gathering.add_fragment(part(second, (0, 1)))
    assert len(host.send()) == 2
    host.gathering.add_fragment(part(first, (2, 3)))
    assert host.send() == []
    host.gathering.expect(streamed(3, (0, 1)))
    assert fragments(host) == [(1, (2, 3))]


def test_an_abandoned_stream_does_not_hold_up_the_next():
    host = Host(first := streamed(1))
    host.gathering.add_fragment(part(first, (0,)))
    host.send()
    host.gathering.forget(8)
    host.gathering.expect(second := streamed(2))
    host.gathering.add_fragment(part(second, (1,)))
    assert fragments(host) == [(2, (1,))]


@pytest.mark.parametrize("together", [False, True])
def test_a_rollout_does_not_wait_for_what_a_stream_has_left(together):
    host = Host(first := streamed(1))
    host.gathering.add_fragment(part(first, SLOTS))
    assert fragments(host) == [(1, SLOTS)]
    host.gathering.expect(second := Collect(2, SLOTS, 2, NEWEST, together=together))
    host.gathering.add_fragment(part(second, SLOTS))
    assert fragments(host) == [(2, SLOTS)]


def test_fragments_that_nobody_asks_for_again_do_not_wait():
    host = Host(collect := Collect(1, SLOTS, 2, NEWEST))
    host.gathering.add_fragment(part(collect, (0,)))
    assert fragments(host) == [(1, (0,))]
    host.gathering.add_fragment(part(collect, (1,)))
    assert fragments(host) == [(1, (1,))]


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
