"""What envs print, log and warn about: a log per worker, and warnings at the head too."""

import time
import warnings

import numpy as np
import pytest

from clusterenv import Limits
from clusterenv.launchers.local import LocalLauncher
from tests.environments import troubles
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
