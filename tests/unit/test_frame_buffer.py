"""Frames cross the buffer whole, in order, and never over what nobody has read yet."""

import os
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.wire.frame_buffer import FrameReader, FrameWriter


class Buffer:
    """Both ends of a buffer, with the counter that they share."""

    def __init__(self):
        self.fd = os.memfd_create("test")
        self.released = memoryview(bytearray(8)).cast("q")
        self.writer = FrameWriter(self.fd, self.released)
        self.reader = FrameReader(self.fd, self.released)

    def write(self, *frames):
        return self.writer.write(b"header", frames)

    def read(self, envelope):
        return [bytes(frame) for frame in self.reader.read(envelope)]

    def close(self):
        os.close(self.fd)


@pytest.fixture
def buffer():
    buffer = Buffer()
    yield buffer
    buffer.close()


def test_frames_come_back_with_their_header(buffer):
    envelope = buffer.write(b"one", b"", b"x" * 1000)
    assert envelope.header == b"header"
    assert buffer.read(envelope) == [b"one", b"", b"x" * 1000]


def test_a_message_whose_frames_are_all_empty_comes_back(buffer):
    assert buffer.read(buffer.write(b"", b"")) == [b"", b""]


def test_a_message_may_be_larger_than_all_before(buffer):
    for size in (10, 100_000, 10, 1_000_000):
        assert buffer.read(buffer.write(bytes([7]) * size)) == [bytes([7]) * size]


def test_what_was_read_is_the_readers_own(buffer):
    (first,) = buffer.reader.read(buffer.write(b"a" * 100))
    for _ in range(10):
        buffer.read(buffer.write(b"b" * 100))
    assert bytes(first) == b"a" * 100


def test_there_is_no_room_when_nobody_reads(buffer):
    envelopes = [buffer.write(b"a" * 100) for _ in range(10)]
    assert envelopes[0] is not None
    assert envelopes[-1] is None


def test_reading_makes_room_again(buffer):
    waiting = deque()
    while (envelope := buffer.write(b"a" * 100)) is not None:
        waiting.append(envelope)
    buffer.read(waiting.popleft())
    assert buffer.write(b"b" * 100) is not None


frame = st.integers(1, 300).map(lambda size: bytes([size % 251]) * size)
frames = st.lists(frame, min_size=1, max_size=3)


@given(st.lists(frames | st.none(), max_size=40))
def test_a_buffer_is_a_queue(operations):
    buffer, waiting = Buffer(), deque()
    for message in operations:
        if message is not None:
            envelope = buffer.write(*message)
            if envelope is not None:
                waiting.append((envelope, message))
        elif waiting:
            envelope, expected = waiting.popleft()
            assert buffer.read(envelope) == expected
    for envelope, expected in waiting:
        assert buffer.read(envelope) == expected
    buffer.close()
