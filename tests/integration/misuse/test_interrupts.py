"""Ctrl-C at any moment, again and again, costs neither a worker nor a host."""

import pytest

from tests.environments.vectors import SHARED_MEMORY
from tests.integration.heads import HeadScript

FUZZ = """
import random, threading

envs = ClusterEnv([Walk] * 4, num_workers=2, shared_memory={shared_memory})
oracle = SyncVectorEnv([Walk] * 4)
before = [(worker.pid, worker.host) for worker in envs.workers]
chance, turn = random.Random(7), threading.Semaphore(0)

def press():
    while turn.acquire() and not done:
        time.sleep(chance.uniform(0.0, 3e-3))
        os.kill(os.getpid(), signal.SIGINT)

done, count = [], 0
presser = threading.Thread(target=press, daemon=True)
presser.start()
until = time.monotonic() + 3.0
while time.monotonic() < until:
    try:
        turn.release()
        envs.reset(seed=1)
        while True:
            envs.step(np.zeros((4, 2)))
    except KeyboardInterrupt:
        count += 1
done.append(True)
turn.release()
presser.join()
assert_same(envs.reset(seed=1), oracle.reset(seed=1))
check(envs, oracle, 5)
assert before == [(worker.pid, worker.host) for worker in envs.workers], envs.workers
envs.close()
say("interrupted", count)
"""


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_ctrl_c_at_any_moment_costs_nobody(transport, tmp_path):
    source = FUZZ.format(shared_memory=transport == "shared_memory")
    with HeadScript(tmp_path, source) as head:
        assert head.wait() == 0, head.report()
        assert int(head.output.split()[-1]) > 20
