"""Frames cross shared memory whole, and nothing is written over what was not released."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.memory import frames
from clusterenv.memory.frames import FrameReader, FrameWriter


class Buffer:
    """Both ends of a buffer, with the counter that they share."""

    def __init__(self):
        self.fd = os.memfd_create("test")
        self.released = memoryview(bytearray(8)).cast("q")
        self.writer = FrameWriter(self.fd, self.released)
        self.reader = FrameReader(self.fd, self.released)

    def write(self, *data):
        return self.writer.write(b"header", data)

    def read(self, message):
        return [bytes(frame) for frame in self.reader.read(message)]

    @property
    def size(self):
        return os.fstat(self.fd).st_size

    def close(self):
        os.close(self.fd)


@pytest.fixture
def buffer():
    buffer = Buffer()
    yield buffer
    buffer.close()


@pytest.fixture
def no_smallest(monkeypatch):
    """As if buffers began with no more room than what is written first."""
    monkeypatch.setattr(frames, "_SMALLEST_BYTES", 0)


def test_frames_come_back_with_their_header(buffer):
    message = buffer.write(b"one", b"", b"x" * 1000)
    assert message.header == b"header"
    assert buffer.read(message) == [b"one", b"", b"x" * 1000]


def test_a_message_whose_frames_are_all_empty_comes_back(buffer):
    assert buffer.read(buffer.write(b"", b"")) == [b"", b""]


def test_a_message_may_be_larger_than_all_before(buffer):
    for size in (10, 100_000, 10, 1_000_000):
        assert buffer.read(buffer.write(bytes([7]) * size)) == [bytes([7]) * size]


def test_what_was_read_stays_as_it_is_until_it_is_released(buffer):
    (first,) = buffer.reader.read(buffer.write(b"a" * 100))
    for _ in range(10):
        later = buffer.write(b"b" * 100)
        buffer.read(later)
        buffer.reader.release(later.number)
    assert bytes(first) == b"a" * 100


def test_what_lies_in_the_buffer_stays_readable_when_it_grows(buffer):
    (first,) = buffer.reader.read(buffer.write(b"a" * 100))
    large = buffer.write(b"b" * 10_000_000)
    assert bytes(first) == b"a" * 100
    assert buffer.read(large) == [b"b" * 10_000_000]
    assert bytes(first) == b"a" * 100


def test_released_room_is_used_again(buffer):
    for _ in range(1000):
        message = buffer.write(b"a" * 1000)
        buffer.read(message)
        buffer.reader.release(message.number)
    assert buffer.size == frames._SMALLEST_BYTES


def test_the_room_of_one_that_is_released_early_comes_back_with_those_before_it(buffer):
    first, second = buffer.write(b"a" * 100), buffer.write(b"b" * 100)
    buffer.reader.release(second.number)
    assert buffer.released[0] == 0
    buffer.reader.release(first.number)
    assert buffer.released[0] == 2


def test_messages_are_numbered_from_one(buffer):
    assert [buffer.write(b"x").number for _ in range(3)] == [1, 2, 3]


def test_a_buffer_grows_by_what_it_needs_where_there_is_no_memory_for_more(buffer, monkeypatch):
    allocate, asked = frames.allocate, []

    def hardly_enough(fd, size):
        asked.append(size)
        if size > 1000:
            raise OSError("no memory")
        allocate(fd, size)

    monkeypatch.setattr(frames, "allocate", hardly_enough)
    assert buffer.read(buffer.write(b"x" * 600)) == [b"x" * 600]
    assert asked == [frames._SMALLEST_BYTES, 640]
    with pytest.raises(OSError, match="no memory"):
        buffer.write(b"x" * 600)


def test_after_a_message_that_found_no_memory_others_still_pass(buffer, monkeypatch):
    first = buffer.write(b"a" * 100)

    def nothing(fd, size):
        raise OSError("no memory")

    with monkeypatch.context() as there_is:
        there_is.setattr(frames, "allocate", nothing)
        with pytest.raises(OSError, match="no memory"):
            buffer.write(b"x" * 10_000_000)
    second = buffer.write(b"b" * 100)
    assert second.number == first.number + 1
    assert (buffer.read(first), buffer.read(second)) == ([b"a" * 100], [b"b" * 100])


# The allocator: whatever the sizes, and the order in which the reader is done.

sizes = st.lists(st.integers(0, 300), min_size=1, max_size=3)
"""Of the frames of a message."""


def contents(number, sizes):
    return [bytes([(number + index) % 251]) * size for index, size in enumerate(sizes)]


def extent(message):
    """From where to where a message's frames lie."""
    return message.offset, message.offset + sum(-(-size // 64) * 64 for size in message.sizes)


class Model:
    """Writes and releases, and knows what must be there."""

    def __init__(self):
        self.buffer = Buffer()
        self.unreleased = []
        self.most_live = self.largest = 0
        self._written = []

    def write(self, sizes):
        data = contents(len(self._written), sizes)
        message = self.buffer.write(*data)
        start, stop = extent(message)
        for _, _, other in self.unreleased:
            begin, end = extent(other)
            assert stop <= begin or end <= start, "written over what was not released"
        self.unreleased.append((data, self.buffer.reader.read(message), message))
        self._written.append(max(64, stop - start))
        self.largest = max(self.largest, self._written[-1])
        # Room comes back in the order of writing: what is live goes from the oldest on.
        live = self._written[self.unreleased[0][2].number - 1 :]
        self.most_live = max(self.most_live, sum(live))

    def release(self, number):
        if self.unreleased:
            _, _, message = self.unreleased.pop(number % len(self.unreleased))
            self.buffer.reader.release(message.number)

    def check(self):
        for data, views, message in self.unreleased:
            assert [bytes(view) for view in views] == data
            assert self.buffer.read(message) == data


@pytest.mark.usefixtures("no_smallest")
class TestAllocator:
    @given(st.lists(sizes, min_size=1, max_size=5), st.floats(0.2, 0.8), st.randoms())
    def test_nothing_is_written_over_and_nothing_is_lost(self, kinds, pace, random):
        model = Model()
        try:
            for _ in range(80):
                if random.random() < pace:
                    model.release(random.randrange(100))
                else:
                    model.write(random.choice(kinds))
                model.check()
        finally:
            model.buffer.close()

    @given(st.lists(sizes, min_size=1, max_size=5), st.integers(1, 4), st.randoms())
    def test_memory_is_bounded_by_what_waits_in_it(self, kinds, at_once, random):
        model = Model()
        try:
            for turn in range(200):
                model.write(kinds[turn % len(kinds)])
                while len(model.unreleased) >= at_once:
                    model.release(random.randrange(at_once))
            assert model.buffer.size <= 4 * (model.most_live + 2 * model.largest)
        finally:
            model.buffer.close()

    def test_room_is_not_given_out_twice_after_a_full_buffer_that_had_wrapped_has_grown(self):
        model = Model()
        for _ in range(4):
            model.write([64])
        model.release(0)
        # The second stays: one goes to where the first was, and the buffer is full.
        for _ in range(40):
            model.write([64])
        model.check()
        model.buffer.close()
