"""Of a log the beginning and the newest part are kept, however much is printed."""

import os
import sys
import threading
import time

import pytest

from clusterenv import bounded_log
from clusterenv.bounded_log import MOST_BYTES, BoundedLog
from clusterenv.children import ChildProcess
from clusterenv.tools.worker_logs import WorkerLog


@pytest.fixture(params=["named", "unnamed"])
def log(request, tmp_path):
    log = BoundedLog.open(tmp_path / "deep" / "log" if request.param == "named" else None)
    yield log
    log.close()


def fill(log, first=0, size=MOST_BYTES + 1, more="", at_once=10_000):
    """Print numbered lines until so many bytes more are there; the next number."""
    number, end = first, log.size + size
    while log.size < end:
        lines = [f"line {n}{more}\n" for n in range(number, number + at_once)]
        os.write(log.fileno(), "".join(lines).encode())
        number += len(lines)
    return number


def text_of(log):
    return log.read(0, log.size).decode()


def test_a_log_that_is_short_enough_stays_as_it_is(log):
    os.write(log.fileno(), b"x" * MOST_BYTES)
    assert log.trim() is None
    assert log.size == MOST_BYTES


def test_the_beginning_and_the_newest_part_stay_in_whole_lines(log):
    number = fill(log)
    assert log.trim() is not None
    assert log.size < MOST_BYTES
    first, _, newest = text_of(log).partition("[clusterenv: ")
    note, _, newest = newest.partition("\n")
    assert first.splitlines() == [f"line {n}" for n in range(first.count("\n"))]
    last = newest.splitlines()
    assert last == [f"line {n}" for n in range(number - len(last), number)]
    assert min(len(first), len(newest)) > bounded_log._FIRST_BYTES * 0.9
    lost = sum(len(f"line {n}\n") for n in range(first.count("\n"), number - len(last)))
    assert note.rstrip(" ") == f"{lost} bytes of output are left out here]"


def test_a_log_that_is_cut_again_and_again_stays_short_and_counts_all_that_is_missing(log):
    number, printed = 0, 0
    for _ in range(5):
        before = log.size
        number = fill(log, number)
        printed += log.size - before
        log.trim()
        assert log.size < MOST_BYTES
    text = text_of(log)
    assert text.count("[clusterenv: ") == 1
    note = next(line for line in text.splitlines() if line.startswith("[clusterenv: "))
    assert int(note.split()[1]) == printed - (len(text) - len(note) - 1)
    assert text.endswith(f"line {number - 1}\n")


def test_what_is_printed_after_a_cut_follows_the_cut(log):
    fill(log)
    log.trim()
    os.write(log.fileno(), b"and on\n")
    assert text_of(log).endswith("\nand on\n")


def test_a_reader_goes_on_where_it_was_or_is_told_what_it_missed(log):
    fill(log)
    before = text_of(log)
    end = log.size
    cut = log.trim()
    assert cut.moved(10) == (10, 0)
    assert cut.moved(end) == (log.size, 0)
    position, missed = cut.moved(end - 20)
    assert (log.read(position, 20).decode(), missed) == (before[-20:], 0)
    middle = (cut.start + cut.stop) // 2
    position, missed = cut.moved(middle)
    assert missed == cut.stop - middle
    assert log.read(position, 1000).decode() == before[cut.stop : cut.stop + 1000]


@pytest.fixture(params=["taken out", "copied"])
def way(request, monkeypatch):
    """The two ways to cut: not every file system can take bytes out of a file."""
    if request.param == "copied":
        monkeypatch.setattr(bounded_log.ctypes, "CDLL", lambda *_, **__: None)


@pytest.mark.usefixtures("way")
def test_who_follows_a_log_sees_every_line_whole_and_each_gap_once(log):
    reader = follow(log)
    number, seen, more = 0, [], " is long" * 100
    for size in [100, MOST_BYTES // 2, MOST_BYTES, 100, MOST_BYTES]:
        number = fill(log, number, size, more, 100)
        os.write(log.fileno(), b"begun ")
        seen += reader.read(to_the_end=False)
        log.trim()
        os.write(log.fileno(), b"and ended\n")
        number = fill(log, number, 100, more, 100)
        log.trim()
    seen += reader.read(to_the_end=False)
    told = [int(line.split()[1]) for line in seen if line.startswith("[clusterenv: ")]
    numbers = [int(line.split()[1]) for line in seen if line.startswith("line ")]
    assert sorted(set(numbers)) == numbers
    assert seen.count("begun and ended\n") == 5
    assert len(seen) == len(told) + len(numbers) + 5
    missing = sum(len(f"line {n}{more}\n") for n in set(range(number)) - set(numbers))
    assert sum(told) == missing


@pytest.mark.usefixtures("way")
def test_what_is_printed_while_a_log_is_cut_is_not_joined_by_its_readers(log):
    reader, stop = follow(log), threading.Event()
    seen = []

    def trim():
        while not stop.wait(0.001):
            log.trim()

    trimming = threading.Thread(target=trim)
    trimming.start()
    try:
        for _ in range(30):
            os.write(log.fileno(), b"a line of some length\n" * 40_000)
            seen += reader.read(to_the_end=False)
    finally:
        stop.set()
        trimming.join()
    lines = {line for line in seen if not line.startswith("[clusterenv: ")}
    assert lines == {"a line of some length\n"}


def follow(log):
    return WorkerLog(os.getpid(), "", log.fileno())


def test_a_line_without_an_end_is_cut_as_well(log):
    os.write(log.fileno(), b"x" * (3 * MOST_BYTES))
    log.trim()
    assert log.size < MOST_BYTES


def test_a_closed_log_is_silent_and_its_duplicate_is_not(log):
    os.write(log.fileno(), b"last words")
    other = log.duplicate()
    log.close()
    log.close()
    assert (log.is_closed, log.tail(100), log.trim()) == (True, b"", None)
    assert other.tail(5) == b"words"
    other.close()


def test_a_process_that_prints_without_end_never_waits_and_loses_no_last_words():
    script = "for n in range(400_000): print('a line of some length', n)\nprint('last words')"
    child = ChildProcess([sys.executable, "-c", script], b"", dict(os.environ))
    largest = 0
    deadline = time.monotonic() + 60.0
    while child.exit_code() is None and time.monotonic() < deadline:
        child.log.trim()
        largest = max(largest, child.log.size)
        time.sleep(0.001)
    child.log.trim()
    assert child.exit_code() == 0
    assert child.log_tail().endswith("last words\n")
    assert largest < 3 * MOST_BYTES
    child.kill()
