"""A worker or host that is lost is told at once, counted, and shown by `top`."""

import logging

import pytest

from clusterenv import ClusterEnv, Limits, LocalLauncher
from clusterenv.status.channel import fetch, runs
from clusterenv.tools.run_table import run_table
from clusterenv.tools.tables import as_text
from tests import inside
from tests.contract.policies import numpy_policy
from tests.environments import troubles
from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster, walks
from tests.environments.walks import Walk
from tests.integration.polling import kill, within

NUM_ENVS = 4
SLOT = 2
ACTIONS = actions_for(NUM_ENVS)
PATIENCE_S = 60.0
WAYS = {
    "segfault": (troubles.segfault, "killed by SIGSEGV"),
    "os._exit": (troubles.print_then_exit, "exit code 3"),
    "sys.exit": (troubles.system_exit, "exit code 4"),
}


@pytest.fixture(params=SHARED_MEMORY)
def transport(request):
    return request.param


@pytest.fixture
def told(caplog):
    """What was told so far."""
    caplog.set_level(logging.WARNING, "clusterenv")
    return lambda: [one.getMessage() for one in caplog.records if one.name == "clusterenv"]


def step(envs):
    envs.step(ACTIONS)


def rollout(envs):
    envs.rollout(numpy_policy(envs), 6)


def stream(envs):
    envs.publish(numpy_policy(envs))
    fragments = envs.stream(6)
    while SLOT not in next(fragments).slots:
        pass
    fragments.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", [step, rollout, stream])
def test_a_lost_worker_is_told_once_with_all_that_is_known(use, way, transport, told, tmp_path):
    trouble, reason = WAYS[way]
    trouble = troubles.OnlyOnce(str(tmp_path / "lost"), trouble)
    with cluster(walks(NUM_ENVS, SLOT, trouble=trouble, verb="step"), transport) as envs:
        envs.reset(seed=0)
        host = envs.workers[0].host
        within(PATIENCE_S, lambda: use(envs))
        (loss,) = envs.ledger.losses
    assert (loss.host, loss.worker, loss.reason) == (host, "worker-1.0", reason)
    assert (loss.slots, loss.slot) == ((2, 3), SLOT)
    (text,) = told()
    for known in (host, "worker-1.0 (pid ", reason, f"slot {SLOT}", "slots 2 to 3"):
        assert known in text
    if way != "sys.exit":
        assert "The end of the log of worker-1.0" in text


def test_a_worker_that_was_killed_may_have_needed_too_much_memory(transport, told):
    with cluster(walks(NUM_ENVS), transport) as envs:
        envs.reset(seed=0)
        kill(envs.call("pid")[SLOT])
        envs.step(ACTIONS)
    (text,) = told()
    assert "killed by SIGKILL" in text
    assert "memory" in text


def test_a_hung_worker_is_told_when_it_is_lost(told, tmp_path):
    trouble = troubles.OnlyOnce(str(tmp_path / "hung"), troubles.sleep_forever)
    makers = walks(NUM_ENVS, SLOT, trouble=trouble, verb="step")
    with cluster(makers, limits=Limits(step_timeout_s=1.0)) as envs:
        envs.reset(seed=0)
        within(PATIENCE_S, lambda: envs.step(ACTIONS))
    assert "sleep_forever" in told()[-1]
    assert "was lost" in told()[-1]


def test_a_lost_host_is_told_and_shown(told):
    with ClusterEnv([Walk] * 4, launcher=LocalLauncher(hosts=2), num_workers=2) as envs:
        envs.reset(seed=0)
        kill(inside.host_pid(envs, "host-1.0"))
        envs.rollout(numpy_policy(envs), 3)
        (loss,) = envs.ledger.losses
        assert (loss.host, loss.worker, loss.slots) == ("host-1.0", "", (2, 3))
        run = next(run for run in runs() if run.id == envs.run_id)
        shown = run_table(None, fetch(run))
    (text,) = told()
    assert text.startswith("host-1.0 (machine ")
    assert "SIGKILL" in text
    assert "slots 2 to 3" in text
    by_host = {row[0]: dict(zip(shown.headings, row, strict=True)) for row in shown.rows}
    assert by_host["host-1.1"]["losses"] == "1"
    assert by_host["host-0.0"]["losses"] == "0"
    assert "lost: killed by SIGKILL (once)" in as_text(shown)


def test_a_loss_is_printed_where_nobody_set_up_logging(capfd):
    with cluster(walks(NUM_ENVS)) as envs:
        envs.reset(seed=0)
        kill(envs.call("pid")[SLOT])
        # As without pytest, which has handlers of its own.
        root = logging.getLogger()
        handlers, root.handlers = root.handlers, []
        try:
            envs.step(ACTIONS)
        finally:
            root.handlers = handlers
    assert "worker-1.0" in capfd.readouterr().err
