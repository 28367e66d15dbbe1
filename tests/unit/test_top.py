"""Snapshots become tables; a run shows itself to its own user, and leaves nothing."""

import contextlib
import os
import threading

import msgspec
import pytest

from clusterenv.cli.run_table import choose_run, run_table
from clusterenv.cli.tables import as_text, short
from clusterenv.wire.status import Status, WorkerStatus
from clusterenv.wire.status_channel import Run, StatusServer, fetch, runs, runs_in


def worker(name="worker-0.0", **changes):
    status = WorkerStatus(name, "here", 7, "ready", 4, 1000, 0, 3, 0.012, 2)
    return msgspec.structs.replace(status, **changes)


def status(*workers, uptime_s=10.0, **changes):
    made = Status("abc123", 6, "here", "tcp://h:1", uptime_s, 8, 5, workers, {"first": 2}, {}, 0, 0)
    return msgspec.structs.replace(made, **changes)


def row(table, number=0):
    return dict(zip(table.headings, table.rows[number], strict=True))


def test_rates_are_those_between_two_snapshots():
    table = run_table(status(worker()), status(worker(rows=3000), uptime_s=12.0))
    assert row(table)["steps/s"] == "1k"
    assert "1k steps/s" in table.title


def test_a_single_snapshot_gives_the_rate_of_the_whole_run():
    assert row(run_table(None, status(worker())))["steps/s"] == "100"


def test_a_replacement_does_not_inherit_its_predecessors_steps():
    table = run_table(status(worker("worker-0.0")), status(worker("worker-0.1"), uptime_s=11.0))
    assert row(table)["steps/s"] == "0"


def test_the_lag_is_counted_in_versions():
    assert row(run_table(None, status(worker(held=3))))["lag"] == "2"
    assert row(run_table(None, status(worker(held=None))))["lag"] == "-"


def test_of_many_workers_those_that_need_a_look_are_shown():
    many = [worker(f"worker-{i}.0", rows=1000 + i) for i in range(50)]
    many[30] = worker("worker-30.0", state="joining", rows=5000)
    table = run_table(None, status(*many), at_most=3)
    assert [line[0] for line in table.rows] == ["worker-30.0", "worker-0.0", "worker-1.0"]
    assert "47 more workers" in table.notes[0]


def test_a_table_is_plain_text_for_scripts():
    lines = as_text(run_table(None, status(worker()))).splitlines()
    assert lines[0].startswith("run abc123")
    assert lines[1].split()[:3] == ["worker", "host", "pid"]
    assert lines[2].split()[:4] == ["worker-0.0", "here", "7", "ready"]
    assert [short(n) for n in (0, 12, 1234, 999_900, 5e12)] == ["0", "12", "1.23k", "1M", "5T"]


def test_runs_are_found_in_the_kernels_list():
    table = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0000: 00000002 00000000 00010000 0001 01 1 @clusterenv/42/abc123/77\n"
        "0000: 00000003 00000000 00000000 0001 03 2 @clusterenv/42/abc123/77\n"
        "0000: 00000002 00000000 00010000 0001 01 3 @clusterenv/43/other/78\n"
        "0000: 00000002 00000000 00010000 0001 01 4 /run/clusterenv/42/abc/79\n"
        "0000: 00000002 00000000 00000000 0002 01 5\n"
    )
    assert runs_in(table, 42) == [Run("abc123", 77)]


def test_a_run_is_chosen_by_id_beginning_or_pid():
    one, other = Run("abc123", 77), Run("abd999", 78)
    assert choose_run([one], None) == one
    assert choose_run([one, other], "abd") == other
    assert choose_run([one, other], "77") == one
    for given, wanted, said in [
        ([], None, "no run of yours"),
        ([one, other], None, "several runs.*abc123.*abd999"),
        ([one, other], "ab", "several runs"),
        ([one, other], "x", "no run 'x'.*abc123"),
    ]:
        with pytest.raises(ValueError, match=said):
            choose_run(given, wanted)


@pytest.fixture
def served():
    """A server of one status, and its run."""
    run, shown = Run("unit" + os.urandom(4).hex(), os.getpid()), [status(worker())]
    server = StatusServer("clusterenv status", run, lambda: shown[0])
    server.start()
    yield run, shown, server
    server.close()


def test_a_status_arrives_as_it_is(served):
    run, shown, _ = served
    assert run in runs()
    assert fetch(run) == shown[0]
    assert fetch(run) == shown[0]


def test_a_closed_run_is_not_found_and_its_thread_ends(served):
    run, _, server = served
    copy = os.dup(server._listener.fileno())  # as a forked child would have it
    server.close()
    assert not server.is_alive()
    assert fetch(run) is None
    os.close(copy)
    assert run not in runs()


def test_a_snapshot_that_fails_once_is_taken_again(served):
    run, shown, server = served
    answers = [RuntimeError("dictionary changed size"), KeyError("gone")]

    def take():
        if answers:
            raise answers.pop()
        return shown[0]

    server._snapshot = take
    assert fetch(run) == shown[0]


def test_a_visitor_who_talks_or_hangs_up_does_no_harm(served):
    import socket

    run, shown, _ = served
    for words in (b"", b"GET / HTTP/1.1\r\n" * 1000):
        with socket.socket(socket.AF_UNIX) as visitor:
            visitor.connect(run.address)
            # The server does not listen, and may hang up before all is said.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                visitor.sendall(words)
    assert fetch(run) == shown[0]
    assert threading.active_count() < 50


def test_a_name_that_somebody_else_has_is_no_trouble_for_the_run(served):
    run, _, _ = served
    second = StatusServer("clusterenv status", run, lambda: None)
    second.start()
    second.close()
    assert not second.is_alive()
