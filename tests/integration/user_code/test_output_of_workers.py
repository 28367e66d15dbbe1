"""What envs print, log and warn about: a log per worker, and warnings at the head too."""

import re
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from clusterenv import Limits, StartupError
from clusterenv.bounded_log import MOST_BYTES
from clusterenv.launchers.local import LocalLauncher
from tests.environments import troubles
from tests.environments.printing import chatty
from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster, oracle_of, walks
from tests.environments.walks import Walk
from tests.equality import assert_same
from tests.integration.polling import eventually

NUM_ENVS = 4
SLOT = 2
ACTIONS = actions_for(NUM_ENVS)


class Shouting(Walk):
    """Warns of megabytes in each step."""

    def step(self, action):
        warnings.simplefilter("always")
        for _ in range(500):
            warnings.warn("slippery" * 1000, stacklevel=1)
        return super().step(action)


@pytest.fixture(params=SHARED_MEMORY)
def transport(request):
    return request.param


def speaking(trouble, transport="shared_memory", verb="step", at=None, **kwargs):
    makers = walks(NUM_ENVS, SLOT, trouble=trouble, verb=verb, at=at)
    return cluster(makers, transport, **kwargs)


@pytest.mark.parametrize(
    ("trouble", "category"),
    [
        (troubles.warn_user, UserWarning),
        (troubles.warn_runtime, RuntimeWarning),
        (troubles.warn_oddly, UserWarning),
        (troubles.warn_by_gymnasium, UserWarning),
    ],
)
def test_a_warning_in_a_step_is_a_warning_at_the_head(trouble, category):
    with speaking(trouble) as envs:
        envs.reset(seed=0)
        with pytest.warns(category, match="slippery") as caught:
            envs.step(ACTIONS)
        assert [record.category for record in caught] == [category]


def test_a_warning_says_which_worker_it_comes_from(transport):
    with speaking(troubles.warn_user, transport) as envs:
        envs.reset(seed=0)
        with pytest.warns(UserWarning, match=r"worker-1\.0.*slippery"):
            envs.step(ACTIONS)


def test_a_warning_while_an_env_is_made_is_a_warning_at_the_head(transport):
    with pytest.warns(UserWarning, match="slippery"):
        speaking(troubles.warn_user, transport, "make").close()


def test_a_warning_in_a_reset_is_a_warning_at_the_head():
    with (
        speaking(troubles.warn_user, verb="reset") as envs,
        pytest.warns(UserWarning, match="slippery"),
    ):
        envs.reset(seed=0)


def test_a_step_with_a_warning_gives_the_right_numbers(transport):
    oracle = oracle_of(NUM_ENVS)
    with speaking(troubles.warn_user, transport) as envs:
        assert_same(envs.reset(seed=0), oracle.reset(seed=0))
        with pytest.warns(UserWarning, match="slippery"):
            assert_same(envs.step(ACTIONS), oracle.step(ACTIONS))


def test_a_warning_that_is_an_error_at_the_head_leaves_the_run_usable(transport):
    oracle = oracle_of(NUM_ENVS)
    with speaking(troubles.warn_user, transport, at=1) as envs:
        envs.reset(seed=0)
        with warnings.catch_warnings(), pytest.raises(UserWarning, match="slippery"):
            warnings.simplefilter("error")
            envs.step(ACTIONS)
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        assert_same(envs.step(ACTIONS), oracle.step(ACTIONS))


@pytest.mark.parametrize("trouble", [troubles.warn_user, troubles.warn_and_raise])
def test_warnings_that_are_errors_on_all_workers_leave_the_run_usable(trouble):
    makers = walks(1, 0, trouble=trouble, at=1) * 2
    oracle = oracle_of(2)
    with cluster(makers) as envs:
        envs.reset(seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="slippery"):
                envs.step(actions_for(2))
            assert_same(envs.reset(seed=1), oracle.reset(seed=1))
            assert_same(envs.step(actions_for(2)), oracle.step(actions_for(2)))


def test_a_flood_of_warnings_does_not_keep_an_env_from_stepping():
    limits = Limits(step_timeout_s=1.0)
    with cluster([Shouting], num_workers=1, limits=limits) as envs:
        envs.reset(seed=0)
        envs.step_async(np.zeros((1, 2)))
        time.sleep(3.0)  # the user computes, and hears nothing
        with pytest.warns(UserWarning, match="slippery") as caught:
            envs.step_wait()
        assert len(caught) > 10
        with pytest.warns(UserWarning, match="slippery"):
            assert envs.step(np.zeros((1, 2)))[-1]["age"].tolist() == [2]


@pytest.mark.parametrize(
    ("trouble", "text"),
    [(troubles.print_a_line, "a step was made"), (troubles.log_a_line, "a step was logged")],
)
def test_what_an_env_prints_or_logs_is_in_its_workers_log(trouble, text, tmp_path):
    with speaking(trouble, launcher=LocalLauncher(log_dir=tmp_path)) as envs:
        envs.reset(seed=0)
        envs.step(ACTIONS)
    assert text in (tmp_path / "worker-1.0.log").read_text()
    assert text not in (tmp_path / "worker-0.0.log").read_text()


def test_what_an_env_prints_can_be_read_while_the_run_goes_on(tmp_path):
    with speaking(troubles.print_a_line, launcher=LocalLauncher(log_dir=tmp_path)) as envs:
        envs.reset(seed=0)
        envs.step(ACTIONS)
        log = tmp_path / "worker-1.0.log"
        assert eventually(lambda: "a step was made" in log.read_text(), 5.0)


def test_a_warning_is_in_the_log_as_well(tmp_path):
    with speaking(troubles.warn_user, launcher=LocalLauncher(log_dir=tmp_path)) as envs:
        envs.reset(seed=0)
        with pytest.warns(UserWarning, match="slippery"):
            envs.step(ACTIONS)
    assert "slippery" in (tmp_path / "worker-1.0.log").read_text()


def test_a_replacement_has_a_log_of_its_own(tmp_path):
    launcher = LocalLauncher(log_dir=tmp_path)
    with speaking(troubles.print_then_exit, at=1, launcher=launcher) as envs:
        envs.reset(seed=0)
        envs.step(ACTIONS)
        envs.step(ACTIONS)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["worker-0.0.log", "worker-1.0.log", "worker-1.1.log"]


def test_logs_are_kept_where_the_user_asked_for_them(tmp_path):
    folder = tmp_path / "deep" / "logs"
    cluster(walks(NUM_ENVS), launcher=LocalLauncher(log_dir=folder)).close()
    assert len(list(folder.iterdir())) == 2


# Logs with names, and how long they get.


def test_a_log_folder_has_a_file_for_each_worker(transport, tmp_path):
    with speaking(troubles.print_a_line, transport, log_dir=tmp_path / "logs") as envs:
        envs.reset(seed=0)
        envs.step(ACTIONS)
    # Hosts may share a file system.
    folder = tmp_path / "logs" / ("" if transport == "shared_memory" else "host-0.0")
    assert sorted(path.name for path in folder.iterdir()) == ["worker-0.0.log", "worker-1.0.log"]
    assert "a step was made" in (folder / "worker-1.0.log").read_text()
    assert "a step was made" not in (folder / "worker-0.0.log").read_text()


def test_a_log_folder_that_cannot_be_made_is_an_error_that_says_so(transport, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=r"log_dir='.*/file/logs.*' cannot be made"):
        speaking(troubles.print_a_line, transport, log_dir=tmp_path / "file" / "logs")


def test_what_is_no_path_is_refused_as_a_log_folder():
    with pytest.raises(TypeError, match="log_dir=True must be the path of a folder"):
        speaking(troubles.print_a_line, log_dir=True)


@pytest.mark.parametrize("by_child", [False, True], ids=["itself", "by a child process"])
def test_a_worker_that_prints_without_end_fills_no_disk(transport, by_child, tmp_path):
    """It prints 120 MB; its log stays short, and has its first and its last words."""
    makers = chatty(1, 100_000, by_child)
    with cluster(makers, transport, num_workers=1, log_dir=tmp_path) as envs:
        envs.reset(seed=0)
        log = next(tmp_path.rglob("worker-0.0.log"))
        for number in range(12):
            envs.step(actions_for(1, number))
        assert eventually(lambda: log.stat().st_size <= MOST_BYTES)
        text = log.read_text()
        assert text.startswith("." * 99 + "\n")
        assert re.search(r"bytes of output are left out here\] *\n", text)
        assert text.endswith("." * 99 + "\n")


def test_a_host_that_prints_without_end_fills_no_disk_either(tmp_path):
    launcher = LocalLauncher(hosts=1, log_dir=tmp_path)
    with cluster(chatty(1, 50_000), num_workers=1, launcher=launcher) as envs:
        envs.reset(seed=0)
        for number in range(10):
            envs.step(actions_for(1, number))
        # Each line has the name of the worker besides.
        assert (tmp_path / "host-0.0.log").stat().st_size < 2 * MOST_BYTES


def test_files_without_a_name_are_bounded_too():
    with cluster(chatty(1, 100_000), num_workers=1) as envs:
        envs.reset(seed=0)
        output = Path(f"/proc/{envs.workers[0].pid}/fd/1")
        for number in range(6):
            envs.step(actions_for(1, number))
        assert eventually(lambda: output.stat().st_size <= MOST_BYTES)


def test_the_thread_that_cuts_logs_ends_with_the_run():
    with cluster(walks(2)):
        assert "clusterenv output" in names_of_threads()
    assert "clusterenv output" not in names_of_threads()


def names_of_threads():
    return [thread.name for thread in threading.enumerate()]
