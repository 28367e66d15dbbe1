"""Memory without a name is there for real, or it is an error at once."""

import os

import pytest

from clusterenv.memory import segments
from clusterenv.memory.segments import allocate, create, map_memory


@pytest.fixture
def descriptors():
    """Closed at the end."""
    opened = []
    yield opened
    for fd in opened:
        os.close(fd)


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_new_memory_is_as_large_as_asked_for_and_zero(descriptors):
    descriptors.append(create("test", 5000))
    assert bytes(map_memory(descriptors[0], 5000)) == bytes(5000)


def test_memory_need_not_have_a_size_at_first(descriptors):
    descriptors.append(create("test"))
    assert os.fstat(descriptors[0]).st_size == 0
    allocate(descriptors[0], 100)
    assert os.fstat(descriptors[0]).st_size == 100


def test_two_maps_of_one_memory_show_the_same(descriptors):
    descriptors.append(create("test", 100))
    one, other = (map_memory(descriptors[0], 100) for _ in range(2))
    one[7] = 3
    assert other[7] == 3


def test_memory_that_grows_keeps_what_it_held(descriptors):
    descriptors.append(create("test", 100))
    before = map_memory(descriptors[0], 100)
    before[:3] = b"abc"
    allocate(descriptors[0], 100_000)
    assert bytes(map_memory(descriptors[0], 100_000)[:3]) == b"abc"
    before[3] = ord("d")
    assert bytes(map_memory(descriptors[0], 100_000)[:4]) == b"abcd"


def test_its_pages_are_allocated_for_real(descriptors):
    descriptors.append(create("test", 1 << 20))
    assert os.fstat(descriptors[0]).st_blocks * 512 >= 1 << 20


def test_it_is_inherited_only_by_those_it_is_passed_to(descriptors):
    descriptors.append(create("test", 10))
    assert not os.get_inheritable(descriptors[0])


def test_more_memory_than_there_is_is_an_error_at_once(descriptors):
    descriptors.append(create("test"))
    with pytest.raises(OSError, match=f"{1 << 50} bytes of shared memory wanted"):
        allocate(descriptors[0], 1 << 50)
    assert os.fstat(descriptors[0]).st_size == 0


def test_memory_that_cannot_be_made_leaves_no_descriptor():
    before = num_descriptors()
    with pytest.raises(OSError, match="bytes of shared memory wanted"):
        create("test", 1 << 50)
    assert num_descriptors() == before


def test_a_system_that_does_not_tell_how_much_there_is_is_asked_anyway(monkeypatch, descriptors):
    monkeypatch.setattr(segments, "_WORTH_LOOKING_BYTES", 0)
    monkeypatch.setattr(segments, "open", _no_such_file, raising=False)
    descriptors.append(create("test", 5000))
    assert os.fstat(descriptors[0]).st_size == 5000


def _no_such_file(name):
    raise FileNotFoundError(name)


def test_mapping_more_than_was_allocated_is_an_error_and_no_signal(descriptors):
    descriptors.append(create("test", 100))
    with pytest.raises(ValueError, match="greater than file size"):
        map_memory(descriptors[0], 10_000)
