"""Workers build their envs, and the host knows who has, who has not, and who never will."""

import re
import threading
from types import SimpleNamespace

import pytest

from clusterenv.errors import StartupError
from clusterenv.head.opening import _wait_until_ready
from clusterenv.host.building import CouldNotBuildError
from clusterenv.host.worker import WorkerState
from clusterenv.memory.messages import BuildEnvs, EnvsBuilt, EnvWarned
from clusterenv.protocol.replies import Raised
from tests.unit.paper_workers import Stage

RAISED = Raised(0, None, "builtins", "ValueError", b"", "no such level", "Traceback …")


@pytest.fixture
def make_stage():
    stages = []

    def make(*args, **kwargs):
        stages.append(Stage(*args, **kwargs))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


def hear(stage, building):
    stage.workers._next_check = 0.0
    building.hear()


def test_each_worker_is_told_to_build_its_share_of_the_slots(make_stage):
    stage = make_stage(num_workers=3, slots=range(10, 17))
    stage.build()
    stage.heard()
    assert [stage.worker(place).build for place in range(3)] == [
        BuildEnvs(slots, b"backend", "NextStep", True, deal=1)
        for slots in [(10, 11, 12), (13, 14), (15, 16)]
    ]


def test_more_workers_than_slots_have_nothing_to_do(make_stage):
    stage = make_stage(num_workers=4, slots=range(10, 12))
    building = stage.build()
    assert [worker.name for worker in building.late] == ["worker-0.0", "worker-1.0"]
    assert [worker.slots for worker in stage.workers] == [(10,), (11,), (), ()]


def test_it_is_done_when_all_have_built(make_stage):
    stage = make_stage()
    building = stage.build()
    stage.worker(1).say_built(b"second")
    hear(stage, building)
    assert not building.is_done
    assert [worker.name for worker in building.late] == ["worker-0.0"]
    stage.worker(0).say_built(b"first")
    hear(stage, building)
    assert building.is_done
    # In slot order, whoever was first.
    assert building.descriptions == [(2, b"first"), (2, b"second")]


def test_waiting_ends_as_soon_as_all_have_built(make_stage):
    stage = make_stage()
    building = stage.build()

    def build():
        for place in range(2):
            stage.worker(place).say_built()

    thread = threading.Thread(target=build)
    thread.start()
    building.wait(60.0, pytest.fail)
    thread.join()
    assert building.is_done


def test_waiting_for_who_does_not_build_ends(make_stage):
    building = make_stage().build()
    building.wait(0.01, pytest.fail)
    assert len(building.late) == 2


def test_what_was_built_for_an_earlier_deal_does_not_count(make_stage):
    stage = make_stage(num_workers=1)
    stage.build()
    stage.heard()
    building = stage.build()
    stage.worker(0).say(EnvsBuilt(b"old", deal=1))
    hear(stage, building)
    assert not building.is_done
    stage.worker(0).say_built(b"new")
    hear(stage, building)
    assert building.descriptions == [(4, b"new")]


def test_what_users_code_raises_is_kept_with_its_worker(make_stage):
    stage = make_stage()
    building = stage.build()
    stage.worker(1).say(RAISED)
    with pytest.raises(CouldNotBuildError, match="no such level") as caught:
        hear(stage, building)
    assert caught.value.raised == RAISED
    assert caught.value.where == "worker-1.0 (pid 4711)"


def test_a_worker_that_ends_meanwhile_ends_the_start_with_its_log(make_stage):
    stage = make_stage()
    building = stage.build()
    stage.worker(1).end, stage.worker(1).log = "exit code 1", "Segmentation fault\n"
    with pytest.raises(StartupError, match=r"worker-1\.0 .* was lost: exit code 1") as caught:
        hear(stage, building)
    assert "Segmentation fault" in str(caught.value)


def test_a_worker_that_has_no_slots_may_end(make_stage):
    stage = make_stage(num_workers=2, slots=range(1))
    building = stage.build()
    stage.worker(1).end = "exit code 1"
    hear(stage, building)
    stage.worker(0).say_built()
    hear(stage, building)
    assert building.is_done


def test_a_worker_that_says_what_is_no_message_ends_the_start(make_stage):
    stage = make_stage()
    building = stage.build()
    stage.worker(0).line.mailbox.to_host.push(b"no message")
    with pytest.raises(StartupError, match=r"worker-0\.0 .* it broke the protocol"):
        hear(stage, building)


def test_warnings_are_kept_with_their_worker(make_stage):
    stage = make_stage()
    building = stage.build()
    stage.worker(1).say(EnvWarned("DeprecationWarning", "old env"))
    hear(stage, building)
    assert building.take_warnings() == [("worker-1.0", "DeprecationWarning", "old env")]
    assert building.take_warnings() == []


# Workers as such.


def test_a_replacement_has_another_name_and_the_same_slots_and_budget(make_stage):
    stage = make_stage()
    stage.build()
    worker = stage.workers.all[1]
    successor = stage.workers.replace(worker, 0.0)
    assert successor.name == "worker-1.1"
    assert successor.slots == worker.slots
    assert successor.restarts is worker.restarts
    assert stage.workers.all[1] is successor
    assert (worker.state, successor.state) == (WorkerState.LOST, WorkerState.STARTED)
    assert stage.starter.started[1].is_killed


def test_the_names_of_all_workers_that_ever_were_differ(make_stage):
    stage = make_stage(num_workers=3)
    for _ in range(4):
        for worker in list(stage.workers):
            stage.workers.replace(worker, 0.0)
        assert list(stage.workers.start_due()) == []
    names = [worker.name for worker in stage.starter.started]
    assert len(set(names)) == len(names) == 15


def test_nothing_is_left_behind_when_a_worker_cannot_be_started(make_stage):
    class Failing:
        def __init__(self):
            self.started, self.is_closed = [], False

        def close(self):
            self.is_closed = True

        def start(self, name, start):
            if self.started:
                raise OSError("no more processes")
            self.started.append(stage.starter.start(name, start))
            return self.started[0]

        def end_strays(self, name=None):
            pass

        def is_debugging(self):
            return False

    from clusterenv.host.workers import Workers

    stage, failing = make_stage(num_workers=1), Failing()
    before = num_descriptors()
    with pytest.raises(OSError, match="no more processes"):
        Workers(3, failing, stage.workers.limits, may_spin=False)
    assert failing.started[0].is_killed
    assert failing.is_closed
    failing.started.clear()
    stage.starter.places.clear()
    stage.starter.started.clear()
    assert num_descriptors() == before


def num_descriptors():
    import gc
    import os

    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_closing_lets_those_that_are_ready_close_their_envs(make_stage):
    stage = make_stage().open()
    paper = [stage.worker(0), stage.worker(1)]
    stage.workers.all[1].state = WorkerState.BUILDING
    stage.workers.close(grace_s=1.0)
    assert [one.was_waited_for for one in paper] == [True, False]
    assert all(one.is_killed for one in paper)
    stage.workers.close = lambda grace_s: None


def test_workers_that_have_built_their_envs_but_never_become_ready_are_named(make_stage):
    stage = make_stage(num_workers=3).lay_out()
    stage.worker(0).say_laid_out()
    stage.events()
    session = SimpleNamespace(pump=lambda _: None, raise_errors=lambda: None)
    late = ", ".join(worker.whereabouts() for worker in stage.host.staff[1:])
    message = re.escape(
        f"1 of 3 workers became ready within startup_timeout_s=0; waiting for {late};"
    )
    with pytest.raises(StartupError, match=rf"{message} .*Limits\(startup_timeout_s=…\)"):
        _wait_until_ready(session, stage.host, 0.0)
