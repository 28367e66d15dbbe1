"""A long call that was interrupted is given up at the workers' next step."""

import contextlib
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import SyncVectorEnv

from tests.contract.policies import numpy_policy
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.environments import troubles
from tests.environments.walks import Troubled, Walk
from tests.equality import assert_same
from tests.integration.polling import eventually

NUM_ENVS = 2
# A minute's worth of steps that take 20 ms each.
NUM_STEPS = 3_000
QUICKLY_S = 20.0
LONG_CALLS = {
    "rollout": lambda envs, policy: envs.rollout(policy, NUM_STEPS, ahead=1),
    "stream": lambda envs, policy: next(envs.stream(NUM_STEPS)),
    "evaluate": lambda envs, policy: envs.evaluate(policy, NUM_ENVS),
}


@contextlib.contextmanager
def ctrl_c_once(path):
    """Ctrl-C is pressed once there is a file, which an env makes when it is stepped."""
    main = threading.main_thread().ident
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press():
        if eventually(path.exists, 60.0):
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("call", LONG_CALLS)
def test_after_ctrl_c_the_next_call_does_not_wait_for_the_last(call, transport, tmp_path):
    sign = tmp_path / "sign"
    slow = partial(Troubled, troubles.sleep_a_moment, sign=sign, length=NUM_STEPS)
    with cluster_env(transport, slow, NUM_ENVS, 2) as envs:
        oracle = SyncVectorEnv([Walk] * NUM_ENVS)
        policy = numpy_policy(envs)
        envs.reset(seed=0)
        envs.publish(policy)
        with ctrl_c_once(sign), pytest.raises(KeyboardInterrupt):
            LONG_CALLS[call](envs, policy)
        if call == "rollout":
            with pytest.raises(ResetNeeded, match=f"`reset`: the last `{call}` did not finish"):
                envs.step(np.zeros((NUM_ENVS, 2)))
        began = time.monotonic()
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        assert time.monotonic() - began < QUICKLY_S
        actions = np.full((NUM_ENVS, 2), 0.5)
        assert_same(envs.step(actions), oracle.step(actions))
        envs.reset(seed=2)
        assert envs.rollout(policy, 3).rewards.shape == (3, NUM_ENVS)
