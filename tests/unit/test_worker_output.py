"""What workers print is kept short, and copied to the output of their host, line by line."""

import os
import sys
import time

import pytest

from clusterenv.bounded_log import MOST_BYTES, BoundedLog
from clusterenv.children import ChildProcess
from clusterenv.host import output
from clusterenv.host.output import WorkerOutput


class Printing:
    """A worker that prints what it is told to, and ends when it is told to."""

    def __init__(self, path):
        self.log, self.code = BoundedLog.open(path), None

    def print(self, text):
        os.write(self.log.fileno(), text.encode())

    def exit_code(self):
        return self.code

    def close(self):
        self.log.close()


@pytest.fixture
def worker(tmp_path):
    worker = Printing(tmp_path / "log")
    yield worker
    worker.close()


@pytest.fixture
def copied(tmp_path):
    """An output, and a function that copies what is new and returns it."""
    target = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT)
    copier = WorkerOutput(target)

    def copy():
        before = os.fstat(target).st_size
        copier.look()
        return os.pread(target, 1 << 20, before).decode()

    yield copier, copy
    os.close(target)


def test_each_line_is_copied_once_with_the_name_of_the_worker(worker, copied):
    copier, copy = copied
    copier.follow("worker-3.1", worker)
    worker.print("one\ntwo\n")
    assert copy() == "worker-3.1: one\nworker-3.1: two\n"
    assert copy() == ""
    worker.print("three\n")
    assert copy() == "worker-3.1: three\n"


def test_a_line_waits_for_its_end(worker, copied):
    copier, copy = copied
    copier.follow("worker-0.0", worker)
    worker.print("one\ntw")
    assert copy() == "worker-0.0: one\n"
    worker.print("o\n")
    assert copy() == "worker-0.0: two\n"


def test_the_last_words_are_copied_though_the_worker_was_replaced(worker, copied):
    copier, copy = copied
    copier.follow("worker-0.0", worker)
    worker.print("ouch")
    worker.code = -9
    worker.close()
    assert copy() == "worker-0.0: ouch\n"
    assert copier._logs == []


def test_of_very_much_the_end_is_copied_and_how_much_is_missing_is_told(worker, copied):
    copier, copy = copied
    copier.follow("worker-0.0", worker)
    worker.print("a" * 1000 + "\n" + "b" * (output._MOST_BYTES - 5) + "\nend\n")
    note, *_, last = copy().splitlines()
    assert note == "worker-0.0: (1001 bytes of output are left out here)"
    assert last == "worker-0.0: end"
    worker.print("and on\n")
    assert copy() == "worker-0.0: and on\n"


def test_what_a_real_process_prints_is_there_when_all_is_closed():
    theirs, ours = os.pipe()
    copier = WorkerOutput(ours)
    copier.start()
    command = [sys.executable, "-c", "print(input())"]
    child = ChildProcess(command, b"hello\n", dict(os.environ))
    copier.follow("worker-0.0", child)
    child.wait(time.monotonic() + 60.0)
    child.kill()
    copier.close(60.0)
    assert not copier.is_alive()
    assert os.read(theirs, 1000) == b"worker-0.0: hello\n"
    os.close(theirs)
    os.close(ours)


def test_a_reader_who_is_gone_or_does_not_read_holds_nobody_up(worker):
    theirs, ours = os.pipe()
    copier = WorkerOutput(ours)
    copier.follow("worker-0.0", worker)
    for _ in range(3):
        worker.print("b" * output._MOST_BYTES + "\n")
    copier.start()
    began = time.monotonic()
    copier.close(0.2)
    assert time.monotonic() - began < 20.0
    assert copier.is_alive()
    os.close(theirs)
    copier.join(60.0)
    assert not copier.is_alive()
    os.close(ours)


def test_a_log_that_grows_without_end_is_cut_though_nobody_copies_it(worker):
    keeper = WorkerOutput()
    keeper.follow("worker-0.0", worker)
    assert not keeper.look()
    worker.print("a line\n" * MOST_BYTES)
    assert keeper.look()
    assert worker.log.size < MOST_BYTES
    worker.code = 0
    keeper.look()


def test_a_copy_goes_on_after_a_cut_and_counts_what_it_missed(worker, copied):
    copier, copy = copied
    copier.follow("worker-0.0", worker)
    worker.print("first\n")
    assert copy() == "worker-0.0: first\n"
    worker.print("x" * 99 + "\n" + "a line\n" * MOST_BYTES + "last\n")
    shown = copy()
    missing = int(shown.split("(")[1].split()[0])
    assert missing == 100 + 7 * MOST_BYTES + 5 - output._MOST_BYTES
    assert shown.endswith("worker-0.0: last\n")
    worker.print("and on\n")
    assert copy() == "worker-0.0: and on\n"


def test_of_a_worker_that_prints_without_end_little_is_copied(worker, copied):
    copier, copy = copied
    copier.follow("worker-0.0", worker)
    size = 0
    for _ in range(100):
        worker.print("a line\n" * 20_000)
        size += len(copy())
    # Each line has the name of the worker besides.
    assert size < 5 * output._FREELY_BYTES
    worker.print("last words\n")
    worker.code = 1
    *_, last = copy().splitlines()
    assert last == "worker-0.0: last words"
