"""Who makes no progress is told once, with its stack; without a sign of life it is lost."""

import ctypes
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from clusterenv.host.plan import WorkerLimits
from clusterenv.host.slowness import find_frozen, find_stuck, may_be_in_env, stack_in
from clusterenv.host.worker import Asked
from clusterenv.memory.pulse import STACKS_FOLLOW, Pulse
from clusterenv.protocol.requests import Act, Call, Collect, Evaluate, Newest, Reset, Step

LIMITS = WorkerLimits(
    startup_timeout_s=1000.0, step_timeout_s=300.0, restart_timeout_s=60.0,
    max_restarts_per_minute=3, slow_warning_s=30.0,
)  # fmt: skip
NEWEST = Newest(1, 1)
STACKS = f"""{STACKS_FOLLOW} 30 s
Current thread 0x1 (most recent call first):
  File "/x/clusterenv/worker/lifeline.py", line 3 in run

Thread 0x2 (most recent call first):
  File "/home/me/env.py", line 7 in step
  File "/x/clusterenv/worker/stepper.py", line 164 in _run_and_land
  File "/x/clusterenv/worker/loop.py", line 4 in run
"""
IMPORTS = """\
  File "/y/torch/__init__.py", line 9 in <module>
  File "<frozen importlib._bootstrap>", line 1176 in _find_and_load
"""
UNPICKLES = '  File "/x/clusterenv/worker/acting.py", line 160 in _take_policy\n'
ACTS = """\
  File "/home/me/policy.py", line 7 in forward
  File "/x/clusterenv/worker/sampler.py", line 133 in _ask
"""


class PaperWorker(SimpleNamespace):
    """One that was asked for a request at second 0, and beats as the test says."""

    def __init__(self, *requests, is_ready=True, log="", slot=None):
        super().__init__(
            name="worker-1.0",
            asked={n: Asked(request, (0,), 0.0) for n, request in enumerate(requests)},
            is_ready=is_ready,
            is_busy=bool(requests) or not is_ready,
            started_at=0.0,
            current_slot=slot,
            num_stacks=0,
            is_told_slow=False,
            pulse=Pulse(memoryview(bytearray(8 * Pulse.SIZE)).cast("q")),
            running=SimpleNamespace(log_tail=lambda: log),
            whereabouts=lambda: "worker-1.0 (pid 7)",
        )


def told(now, *workers):
    return [stuck.text for stuck in find_stuck(workers, LIMITS, now)]


def frozen(now, *workers):
    return [reason for _, reason in find_frozen(workers, LIMITS, now)]


def test_who_shows_its_stacks_is_told_once_with_slot_and_stack():
    worker = PaperWorker(Step(1, (0,)), log=STACKS, slot=3)
    worker.pulse.beat(31.0, 0.5, 1)
    (text,) = told(31.5, worker)
    assert text == (
        "worker-1.0 (pid 7) has made no progress for 31 s in a step, in the env of slot 3; it "
        "counts as lost after step_timeout_s=300\nIts stack, the last call first:\n"
        'Thread 0x2 (most recent call first):\n  File "/home/me/env.py", line 7 in step'
    )
    worker.pulse.beat(100.0, 0.5, 1)
    assert told(100.5, worker) == []


def stacks(main):
    """What the log has of a main thread with these lines."""
    before, _, _ = STACKS.partition('  File "/home')
    return before + main


@pytest.mark.parametrize("main", [IMPORTS + UNPICKLES, IMPORTS + "  ...\n", UNPICKLES, ACTS])
def test_whose_stack_is_not_in_an_env_is_told_without_a_slot(main):
    worker = PaperWorker(Collect(1, (0,), 5, NEWEST), log=stacks(main), slot=3)
    worker.pulse.beat(31.0, 0.5, 1)
    assert "in a fragment; it counts" in told(31.5, worker)[0]


def test_who_may_be_in_an_env_is_told_with_its_slot():
    in_env = '  File "/home/me/env.py", line 7 in step\n'
    stepper = '  File "/x/clusterenv/worker/stepper.py", line 164 in _run\n'
    assert may_be_in_env(stacks(IMPORTS + in_env + stepper + UNPICKLES))
    assert may_be_in_env(stacks(in_env * 100 + "  ...\n"))
    assert may_be_in_env("printed\n")


def test_who_showed_its_stacks_and_is_at_something_else_by_now_is_not_told():
    worker = PaperWorker(Step(2, (0,)), log=STACKS, slot=3)
    worker.pulse.beat(99.0, 98.5, 1)
    assert told(99.5, worker) == []
    worker.pulse.beat(130.0, 98.5, 2)
    assert len(told(130.5, worker)) == 1


def test_of_several_the_first_is_told_and_the_others_are_counted():
    workers = [PaperWorker(Step(1, (0,))) for _ in range(3)]
    for worker in workers:
        worker.pulse.beat(31.0, 0.5, 1)
    (text,) = told(31.5, *workers)
    assert "(nor have 2 more workers)" in text


def test_who_went_on_meanwhile_is_not_told():
    worker = PaperWorker(Step(1, (0,)))
    worker.pulse.beat(31.0, None, 1)
    assert told(31.5, worker) == []


@pytest.mark.parametrize(
    ("request_", "doing"),
    [
        (Step(1, (0,)), "in a step;"),
        (Act(1, (0,), NEWEST), "in a step;"),
        (Reset(1, (0,), 42), "in a reset;"),
        (Collect(1, (0,), 5, NEWEST), "in a fragment;"),
        (Evaluate(1, (0,), (1,), 7, True, NEWEST), "in an evaluation;"),
        (Call(1, (0,), "render", b""), "in a call;"),
    ],
)
def test_what_it_does_is_told(request_, doing):
    worker = PaperWorker(request_)
    worker.pulse.beat(31.0, 0.5, 1)
    assert doing in told(31.5, worker)[0]


def test_who_builds_its_envs_has_longer():
    worker = PaperWorker(is_ready=False)
    worker.pulse.beat(31.0, 0.5, 1)
    assert "in building its envs; it counts as lost after startup_timeout_s=1000" in told(
        31.5, worker
    )[0]  # fmt: skip


def test_who_gives_no_sign_of_life_is_told_once():
    worker = PaperWorker(Collect(1, (0,), 5, NEWEST))
    worker.pulse.beat(1.0, None, 0)
    assert told(32.0, worker) == []
    assert len(told(33.0, worker)) == 1
    assert told(34.0, worker) == []


def test_who_has_nothing_to_do_is_not_told():
    worker = PaperWorker()
    worker.pulse.beat(1.0, None, 0)
    assert told(1e6, worker) == []
    assert told(1e6, PaperWorker()) == []


def test_a_thread_gives_no_signs_of_life_and_is_told_by_what_it_was_asked():
    assert told(31.0, PaperWorker(Step(1, (0,)))) == []
    assert len(told(32.0, PaperWorker(Step(1, (0,))))) == 1
    # Nobody knows how many steps it has made.
    assert told(1e6, PaperWorker(Collect(1, (0,), 5, NEWEST))) == []


# Lost.


def test_who_gives_no_sign_of_life_for_too_long_is_lost_whatever_it_does():
    worker = PaperWorker(Evaluate(1, (0,), (1,), 7, True, NEWEST))
    worker.pulse.beat(10.0, 9.0, 0)
    assert frozen(311.0, worker) == []
    assert frozen(313.0, worker) == ["no sign of life within step_timeout_s=300"]


def test_who_never_gave_a_sign_of_life_is_left_to_others():
    assert frozen(1e6, PaperWorker(Step(1, (0,)))) == []


def test_who_has_nothing_to_do_is_not_lost():
    worker = PaperWorker()
    worker.pulse.beat(1.0, None, 0)
    assert frozen(1e6, worker) == []


# Stacks.


def test_the_last_stacks_of_a_log_are_found():
    older = f"{STACKS_FOLLOW} 1 s\nThread 0x2:\n  File older\n\nprinted\n"
    assert stack_in(older + STACKS).endswith("line 7 in step")
    assert "older" not in stack_in(older + STACKS)


def test_the_stacks_of_code_that_holds_the_gil_are_found():
    log = "Timeout (0:00:30)!\nThread 0x2 (most recent call first):\n  File env.py\n"
    assert stack_in(log).endswith("File env.py")


@pytest.mark.parametrize("log", ["", "printed\n", STACKS_FOLLOW])
def test_a_log_may_have_no_stacks(log):
    assert stack_in(log) == ""


def test_endless_stacks_are_cut():
    deep = "\n".join(f"  File env.py, line {n} in again" for n in range(999))
    assert len(stack_in(f"{STACKS_FOLLOW} 1 s\nThread 0x2:\n{deep}").splitlines()) == 20


# The timer of the kernel's.

HOLDS_THE_GIL = """
import ctypes
from clusterenv.worker.kill_timer import KillTimer
timer = KillTimer()
timer.put_off(1000.0)
timer.put_off({seconds})
ctypes.PyDLL(None).sleep({sleep})
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "timer_create"), reason="no such timers")
@pytest.mark.parametrize(("seconds", "sleep", "code"), [(0.3, 60, -signal.SIGKILL), (60.0, 1, 0)])
def test_a_process_that_holds_the_gil_is_ended_unless_that_is_put_off(seconds, sleep, code):
    script = HOLDS_THE_GIL.format(seconds=seconds, sleep=sleep)
    assert (
        subprocess.run([sys.executable, "-c", script], timeout=50, check=False).returncode == code
    )
