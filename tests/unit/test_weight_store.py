"""One vector for all workers of a host: newer versions only, and never a mix of two."""

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.memory import weights as weights_module
from clusterenv.memory.weights import WeightStore

_PATIENCE_S = 60.0


@pytest.fixture
def host():
    store = WeightStore.create()
    yield store
    store.close()


@pytest.fixture
def worker(host):
    return WeightStore(host.fd)


def vector(version, size=100):
    """Every byte says which version it is of."""
    return bytes([version % 251]) * size


def test_an_empty_store_has_nothing_for_anybody(worker):
    assert worker.take(1, 0) is None
    assert worker.take(0, 0) is None


def test_what_was_put_is_taken_with_its_version(host, worker):
    host.put(1, 7, vector(7))
    assert worker.take(1, 0) == (7, vector(7))


@pytest.mark.parametrize("held", [7, 8, 100])
def test_who_has_it_already_or_a_newer_one_takes_nothing(host, worker, held):
    host.put(1, 7, vector(7))
    assert worker.take(1, held) is None


@pytest.mark.parametrize("policy_id", [0, 2])
def test_weights_of_another_policy_are_not_taken(host, worker, policy_id):
    host.put(1, 7, vector(7))
    assert worker.take(policy_id, 0) is None


def test_the_newest_is_taken_whatever_was_missed(host, worker):
    for version in range(1, 10):
        host.put(1, version, vector(version))
    assert worker.take(1, 2) == (9, vector(9))


def test_the_one_before_the_newest_can_be_had_by_its_version(host, worker):
    for version in (4, 5, 6):
        host.put(1, version, vector(version))
    assert worker.take(1, 0, 5) == (5, vector(5))
    assert worker.take(1, 0, 6) == (6, vector(6))
    # It is written over: whoever wanted it gets the newest.
    assert worker.take(1, 0, 4) == (6, vector(6))
    assert worker.take(1, 5, 5) is None


@pytest.mark.parametrize("last", [(2, 6, 100), (1, 6, 300)], ids=["policy", "size"])
def test_what_is_of_another_policy_or_was_in_the_way_cannot_be_had_any_more(host, worker, last):
    for version in (4, 5):
        host.put(1, version, vector(version))
    policy_id, version, size = last
    host.put(policy_id, version, vector(version, size))
    assert worker.take(policy_id, 0, 5) == (version, vector(version, size))


def test_another_policy_may_begin_with_any_version(host, worker):
    host.put(1, 7, vector(7))
    host.put(2, 8, vector(8, 300))
    assert worker.take(1, 7) is None
    assert worker.take(2, 0) == (8, vector(8, 300))


def test_what_was_taken_is_the_workers_own(host, worker):
    host.put(1, 1, vector(1))
    _, mine = worker.take(1, 0)
    host.put(1, 2, vector(2))
    host.put(1, 3, vector(3))
    assert mine == vector(1)
    mine[:] = bytes(100)
    assert worker.take(1, 0) == (3, vector(3))


def test_every_worker_takes_the_same(host):
    workers = [WeightStore(host.fd) for _ in range(3)]
    host.put(1, 1, vector(1))
    assert [worker.take(1, 0) for worker in workers] == [(1, vector(1))] * 3


def test_an_empty_vector_is_a_vector(host, worker):
    host.put(1, 1, b"")
    assert worker.take(1, 0) == (1, b"")


@given(st.lists(st.integers(0, 500), max_size=20), st.lists(st.booleans(), min_size=20))
def test_vectors_may_grow_and_shrink(sizes, looks):
    host = WeightStore.create()
    worker, held = WeightStore(host.fd), 0
    for version, (size, looks_now) in enumerate(zip(sizes, looks, strict=False), start=1):
        host.put(1, version, vector(version, size))
        if looks_now:
            assert worker.take(1, held) == (version, vector(version, size))
            held = version
    host.close()


def test_memory_grows_with_the_largest_vector_and_no_further(host):
    for version in range(1, 50):
        host.put(1, version, vector(version, 1000 if version % 2 else 10))
    assert os.fstat(host.fd).st_size < 3000


def test_no_memory_for_a_vector_leaves_the_last_one_in_place(host, worker, monkeypatch):
    host.put(1, 1, vector(1))

    def no_memory(fd, size):
        raise OSError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(weights_module, "allocate", no_memory)
        with pytest.raises(OSError, match="no memory"):
            host.put(1, 2, vector(2, 10_000))
    assert worker.take(1, 0) == (1, vector(1))
    host.put(1, 3, vector(3))
    assert worker.take(1, 1) == (3, vector(3))


def test_closing_gives_the_descriptor_back():
    store = WeightStore.create()
    store.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(store.fd)


# Slow readers.


class SlowMemory:
    """Memory in which others do something before, or while, it is being copied."""

    def __init__(self, memory, before, between):
        self._memory, self._before, self._between = memory, before, between

    def __len__(self):
        return len(self._memory)

    def __getitem__(self, part):
        self._before()
        middle = (part.start + part.stop) // 2
        first = bytes(self._memory[part.start : middle])
        self._between()
        return first + bytes(self._memory[middle : part.stop])


sizes_then = st.lists(st.integers(1, 300), min_size=1, max_size=5)


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3))
def test_a_slow_worker_that_wants_a_version_never_sees_a_mix(first, before, between):
    host = WeightStore.create()
    worker, put = WeightStore(host.fd), []

    def put_some(count):
        for _ in range(count):
            put.append(vector(len(put) + 1))
            host.put(1, len(put), put[-1])

    put_some(first)
    plans = [before, between]
    worker._memory = SlowMemory(
        WeightStore(host.fd)._memory,
        lambda: put_some(plans[0]) or plans.__setitem__(0, 0),
        lambda: put_some(plans[1]) or plans.__setitem__(1, 0),
    )
    version, taken = worker.take(1, 0, first)
    assert taken == put[version - 1]
    assert version == (first if before + between <= 1 else len(put))
    host.close()


@given(sizes_then, sizes_then, sizes_then)
def test_a_slow_worker_never_sees_a_mix_of_two_versions(first, before, between):
    host = WeightStore.create()
    worker, put = WeightStore(host.fd), []

    def put_some(sizes):
        for size in sizes:
            put.append(vector(len(put) + 1, size))
            host.put(1, len(put), put[-1])

    put_some(first)
    # Each once, when the worker begins to copy, and halfway.
    plans = [before, between]
    worker._memory = SlowMemory(
        WeightStore(host.fd)._memory,
        lambda: put_some(plans[0]) or plans.__setitem__(0, []),
        lambda: put_some(plans[1]) or plans.__setitem__(1, []),
    )
    version, taken = worker.take(1, 0)
    assert taken == put[version - 1]
    assert version == len(put)
    host.close()


class SlowHost(WeightStore):
    """In the middle of writing a vector it lets others look."""

    def __init__(self, fd, look):
        self._look = look
        super().__init__(fd)

    def _map(self):
        super()._map()
        self._memory = HalfWritten(self._memory, self._look)


class HalfWritten:
    def __init__(self, memory, look):
        self._memory, self._look = memory, look

    def __len__(self):
        return len(self._memory)

    def __setitem__(self, part, vector):
        middle = len(vector) // 2
        self._memory[part.start : part.start + middle] = vector[:middle]
        self._look()
        self._memory[part.start + middle : part.stop] = vector[middle:]


@pytest.mark.parametrize(
    "sizes",
    [[100] * 6, [100, 100, 300, 300], [100, 300, 900, 900], [300, 100, 300, 100, 400, 400]],
    ids=str,
)
def test_who_looks_while_the_host_writes_sees_one_version_as_a_whole(sizes):
    store, looks, put = WeightStore.create(), [], [b""]

    def look():
        worker, taken = WeightStore(store.fd), []
        thread = threading.Thread(target=lambda: taken.append(worker.take(1, 0)), daemon=True)
        thread.start()
        # It may have to wait until the host is done.
        thread.join(0.02)
        looks.append((thread, taken))

    host = SlowHost(store.fd, look)
    for version, size in enumerate(sizes, start=1):
        put.append(vector(version, size))
        host.put(1, version, put[-1])
        thread, taken = looks.pop()
        thread.join(_PATIENCE_S)
        if taken != [None]:
            ((seen, whole),) = taken
            assert whole == put[seen]
            assert seen in (version - 1, version)
        else:
            assert version == 1
    store.close()


READER = """
import sys, time
from clusterenv.memory.weights import WeightStore
store, held, last, takes = WeightStore(int(sys.argv[1])), 0, int(sys.argv[2]), 0
deadline = time.monotonic() + 60
while held < last:
    assert time.monotonic() < deadline
    if (newer := store.take(1, held)) is not None:
        version, vector = newer
        assert version > held, (version, held)
        assert len(vector) == 300_000 + 97_700 * (version % 7), (version, len(vector))
        assert vector == bytes([version % 251]) * len(vector), version
        held, takes = version, takes + 1
print(takes)
"""


def test_workers_that_copy_while_the_host_writes_never_see_a_mix(host):
    last = 1000
    command = [sys.executable, "-c", READER, str(host.fd), str(last)]
    readers = [
        subprocess.Popen(command, pass_fds=[host.fd], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for version in range(1, last + 1):
            host.put(1, version, vector(version, 300_000 + 97_700 * (version % 7)))
        for reader in readers:
            takes, _ = reader.communicate(timeout=_PATIENCE_S)
            assert reader.returncode == 0
            assert int(takes) > 0
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()


def test_a_worker_waits_for_a_host_that_is_writing(host, worker):
    host.put(1, 1, vector(1))
    # As in the middle of `put`.
    host._begin(host._header)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(worker.take(1, 0)), daemon=True)
    thread.start()
    thread.join(0.05)
    assert not taken
    host.put(1, 2, vector(2))
    thread.join(_PATIENCE_S)
    assert taken == [(2, vector(2))]
