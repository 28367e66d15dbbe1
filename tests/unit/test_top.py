"""Snapshots become tables; a run shows itself to its own user, and leaves nothing."""

import contextlib
import os
import queue
import socket
import sys
import threading
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from clusterenv.status.channel import Run, StatusServer, fetch, runs, runs_in
from clusterenv.status.run_status import HostSummary, RunStatus, WorkerSummary
from clusterenv.tools.run_choice import choose_run, command_of, describe, script_of
from clusterenv.tools.run_table import run_table
from clusterenv.tools.tables import as_text, short
from clusterenv.wire.messages import FromHead, FromHost


def worker(name="worker-0.0", state="ready", restarts=0):
    return WorkerSummary(name, 8, state, 2, restarts)


def host(name="host-0.0", workers=(), **changes):
    made = HostSummary(name, "here", 7, "ready", 4, 1000, 3, 0.012, 2, 0, tuple(workers))
    return msgspec.structs.replace(made, **changes)


def status(*hosts, uptime_s=10.0, **changes):
    made = RunStatus("abc123", 6, "here", uptime_s, 8, 5, hosts, {"first": 2}, {}, 0, 0, 0)
    return msgspec.structs.replace(made, **changes)


def row(table, number=0):
    return dict(zip(table.headings, table.rows[number], strict=True))


def names(table):
    return [line[0] for line in table.rows]


def test_rates_are_those_between_two_snapshots():
    table = run_table(status(host()), status(host(rows=3000), uptime_s=12.0))
    assert row(table)["steps/s"] == "1k"
    assert "1k steps/s" in table.title


def test_a_single_snapshot_gives_the_rate_of_the_whole_run():
    assert row(run_table(None, status(host())))["steps/s"] == "100"


def test_a_replacement_does_not_inherit_its_predecessors_steps():
    table = run_table(status(host("host-0.0")), status(host("host-0.1"), uptime_s=11.0))
    assert row(table)["steps/s"] == "0"


def test_the_lag_is_counted_in_versions():
    assert row(run_table(None, status(host(held=3))))["lag"] == "2"
    assert row(run_table(None, status(host(held=None))))["lag"] == "-"


def test_each_host_has_its_workers_below_it():
    hosts = [host(f"host-{i}.0", [worker(), worker("worker-1.0")]) for i in range(2)]
    table = run_table(None, status(*hosts))
    below = ["  worker-0.0", "  worker-1.0"]
    assert names(table) == ["host-0.0", *below, "host-1.0", *below]
    assert "2 hosts  4 workers  8 envs" in table.title
    assert row(table, 1)["pid"] == "8"


def test_losses_are_counted_by_host_and_named_by_reason():
    reasons = {"exit code 3": 1, "killed by SIGKILL": 7, "a": 1, "b": 1, "c": 1}
    table = run_table(None, status(host(losses=8), losses_by_reason=reasons))
    assert row(table)["losses"] == "8"
    (told,) = [note for note in table.notes if note.startswith("lost: ")]
    assert told.startswith("lost: killed by SIGKILL (7 times), exit code 3 (once), ")
    assert told.endswith(", other reasons (twice)")


def test_a_run_without_losses_does_not_speak_of_them():
    assert "lost" not in as_text(run_table(None, status(host())))


def test_a_host_that_has_not_come_has_no_machine():
    shown = row(run_table(None, status(host(machine="", pid=0, state="ordered"))))
    assert (shown["machine"], shown["pid"], shown["state"]) == ("-", "-", "ordered")


def test_of_many_hosts_those_that_need_a_look_are_shown():
    many = [host(f"host-{i}.0", [worker()], rows=1000 + i) for i in range(50)]
    many[30] = host("host-30.0", state="joining", rows=5000)
    table = run_table(None, status(*many), at_most=3)
    assert names(table) == ["host-30.0", "host-0.0", "host-1.0"]
    assert "47 more hosts, ready and faster, and 49 more workers" in table.notes[0]


def test_of_many_workers_those_that_need_a_look_are_shown():
    many = [worker(f"worker-{i}.0") for i in range(9)]
    many[5], many[7] = worker("worker-5.0", state="joining"), worker("worker-7.2", restarts=2)
    table = run_table(None, status(host(workers=many)), at_most=3)
    assert names(table) == ["host-0.0", "  worker-5.0", "  worker-7.2"]
    assert "… and 7 more workers" in table.notes


def test_a_table_is_plain_text_for_scripts():
    lines = as_text(run_table(None, status(host(workers=[worker()])))).splitlines()
    assert lines[0].startswith("run abc123")
    assert lines[1].split()[:3] == ["host", "machine", "pid"]
    assert lines[2].split()[:4] == ["host-0.0", "here", "7", "ready"]
    assert lines[3].split() == ["worker-0.0", "8", "ready", "2", "0"]
    assert [short(n) for n in (0, 12, 1234, 999_900, 5e12)] == ["0", "12", "1.23k", "1M", "5T"]


def test_weights_in_shared_memory_are_told_apart():
    assert "shared memory" not in run_table(None, status(host())).notes[-1]
    assert "5kB by shared memory" in run_table(None, status(host(), shared_bytes=5000)).notes[-1]


def test_the_page_explains_every_kind_of_message():
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
    kinds = {kind.__name__ for kind in (*get_args(FromHead), *get_args(FromHost))}
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()


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
        ([one, other], None, r"several runs.*`logs RUN`: abc123 \(77, a.py\); abd999 \(78, a.py\)"),
        ([one, other], "ab", "several runs"),
        ([one, other], "x", r"no run 'x'.*abc123 \(77, a.py\)"),
    ]:
        with pytest.raises(ValueError, match=said):
            choose_run(given, wanted, "logs", lambda run: f"{run.pid}, a.py")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["/usr/bin/python3", "/home/me/train.py", "--seed", "3"], "train.py --seed 3"),
        (["python", "examples/train.py"], "examples/train.py"),
        (["python", "-c", "import os\nos.abort()"], "-c import os os.abort()"),
        (["train", "--seed", "3"], "train --seed 3"),
        (["python3.12", "x" * 99], "x" * 59 + "…"),
        ([], ""),
    ],
)
def test_a_head_is_known_by_its_script(command, script):
    assert script_of(command) == script


def test_the_command_of_a_process_is_the_kernels_and_of_none_it_is_empty():
    assert command_of(os.getpid())[1:] == sys.orig_argv[1:]
    assert command_of(2**22 + 1) == []


@pytest.fixture
def served():
    """A server of one status, and its run."""
    run, shown = Run("unit" + os.urandom(4).hex(), os.getpid()), [status(host(workers=[worker()]))]
    server = StatusServer("clusterenv status", run, lambda: shown[0])
    server.start()
    yield run, shown, server
    server.close()


def test_a_status_arrives_as_it_is(served):
    run, shown, _ = served
    assert run in runs()
    assert fetch(run) == shown[0]
    assert fetch(run) == shown[0]


def test_a_run_is_described_by_what_its_user_knows_of_it(served):
    run, shown, server = served
    shown[0] = msgspec.structs.replace(shown[0], env="CartPole-v1")
    script = script_of(sys.orig_argv)
    assert describe(run) == f"pid {run.pid}, CartPole-v1, {script}"
    server.close()
    assert describe(run) == f"pid {run.pid}, {script}"


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


def test_a_run_knows_whether_somebody_looks(monkeypatch):
    monkeypatch.setattr("clusterenv.status.channel._WATCHED_S", 0.05)
    run, told = Run("unit" + os.urandom(4).hex(), os.getpid()), queue.Queue()
    server = StatusServer("clusterenv status", run, lambda: status(host()), told.put)
    server.start()
    assert told.empty()
    for _ in range(2):
        assert fetch(run) is not None
        while not told.get(timeout=20):
            pass
        while told.get(timeout=20):
            pass
    assert told.empty()
    server.close()
    assert not server.is_alive()


def test_a_name_that_somebody_else_has_is_no_trouble_for_the_run(served):
    run, _, _ = served
    second = StatusServer("clusterenv status", run, lambda: None)
    second.start()
    second.close()
    assert not second.is_alive()


@contextlib.contextmanager
def answering(run, data):
    """Somebody of this user who answers for a run with these bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(run.address)
        listener.listen(1)

        def answer():
            visitor, _ = listener.accept()
            with visitor, contextlib.suppress(OSError):
                visitor.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 99, b'{"run": "\xff"}', b"[" * 100_000, b" " * (1 << 26) + b"  "]
)
def test_what_is_no_status_is_no_run(data):
    run = Run("odd", os.getpid())
    with answering(run, data):
        assert fetch(run) is None


def test_sockets_with_odd_names_are_no_runs():
    user = os.geteuid()
    odd = [b"\0clusterenv/%d/odd/\xff\xfe" % user, f"\0clusterenv/{user}/odd/²".encode()]
    with contextlib.ExitStack() as stack:
        for name in odd:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(name)
        assert "odd" not in {run.id for run in runs()}
