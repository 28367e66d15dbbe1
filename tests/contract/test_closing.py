"""`close`, and calls that do not come back in time."""

from functools import partial
from multiprocessing import TimeoutError as CallTimeoutError

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.contract.transports import TRANSPORTS, and_on_four_hosts, cluster_env
from tests.environments.faults import GateEnv
from tests.equality import assert_same

START = {
    "reset": lambda envs: envs.reset_async(),
    "step": lambda envs: envs.step_async(np.zeros(3, np.int64)),
    "call": lambda envs: envs.call_async("knock"),
}
GATED_METHOD = {"reset": "reset", "step": "step", "call": "knock"}


@pytest.fixture
def gate(tmp_path):
    """Path of the file that lets gated envs go on; opened at the end of the test."""
    path = tmp_path / "gate"
    yield path
    path.touch()


def gated(transport, gate, verb):
    """Three envs on two workers whose `verb` waits for the gate, with `verb` under way."""
    envs = cluster_env(transport, partial(GateEnv, str(gate), GATED_METHOD[verb]), 3, 2)
    if verb == "step":
        envs.reset(seed=0)
    START[verb](envs)
    return envs


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("verb", START)
def test_waiting_too_long_is_a_timeout(transport, verb, gate):
    envs = gated(transport, gate, verb)
    message = f"The call to `{verb}_wait` has timed out after 0.05 second"
    with pytest.raises(CallTimeoutError, match=message):
        getattr(envs, f"{verb}_wait")(timeout=0.05)
    gate.touch()
    envs.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("verb", START)
def test_a_late_answer_is_not_taken_for_a_newer_one(transport, verb, gate):
    oracle = SyncVectorEnv([partial(GateEnv, str(gate), "nothing")] * 3)
    with gated(transport, gate, verb) as envs:
        with pytest.raises(CallTimeoutError):
            getattr(envs, f"{verb}_wait")(timeout=0.05)
        gate.touch()
        assert_same(envs.reset(seed=7), oracle.reset(seed=7))
        actions = np.zeros(3, np.int64)
        assert_same(envs.step(actions), oracle.step(actions))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_may_be_called_again(transport):
    envs = cluster_env(transport, "CartPole-v1", 3, 2)
    envs.reset()
    assert not envs.closed
    envs.close()
    assert envs.closed
    envs.close()
    envs.close(timeout=1, terminate=True)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_with_block_closes(transport):
    with cluster_env(transport, "CartPole-v1", 3, 2) as envs:
        envs.reset()
    assert envs.closed


@pytest.mark.parametrize("kwargs", [{"timeout": 0.05}, {"terminate": True}], ids=str)
@pytest.mark.parametrize(
    ("transport", "verb"),
    and_on_four_hosts([("shared_memory", "step"), ("tcp", "reset"), ("shared_memory", "call")]),
)
def test_close_does_not_wait_for_a_pending_call_beyond_its_limit(transport, verb, kwargs, gate):
    envs = gated(transport, gate, verb)
    message = f"Calling `close` while waiting for a pending call to `{verb}` to complete."
    with pytest.warns(UserWarning, match=message):
        envs.close(**kwargs)
    assert envs.closed


@pytest.mark.always_on_four_hosts
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_waits_for_a_pending_call_that_ends(transport, gate):
    envs = gated(transport, gate, "step")
    gate.touch()
    with pytest.warns(UserWarning, match="a pending call to `step` to complete"):
        envs.close()
    assert envs.closed
