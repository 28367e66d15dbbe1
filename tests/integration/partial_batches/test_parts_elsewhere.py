"""Partial batches on hosts behind sockets, whose workers answer for one part after the other."""

from clusterenv import ClusterEnv, LocalLauncher
from tests import inside
from tests.environments.vectors import actions_for, oracle_of, walks
from tests.equality import assert_same

NUM_ENVS = 4


def test_answers_that_come_at_once_are_not_lost():
    """Walks say something in every step, and are done before the host looks."""
    launcher = LocalLauncher(hosts=2)
    with ClusterEnv(walks(NUM_ENVS), num_workers=2, launcher=launcher, batch_size=2) as envs:
        inside.pretend_batches_take(envs, 2.0)
        envs.async_reset(seed=1)
        oracle, steps = oracle_of(NUM_ENVS), [0] * NUM_ENVS
        oracle.reset(seed=1)
        expected = [oracle.step(actions_for(NUM_ENVS, number)) for number in range(500)]
        for _ in range(400):
            observations, rewards, *_, infos = envs.recv()
            slots = infos["env_id"]
            for row, slot in enumerate(slots.tolist()):
                if steps[slot]:
                    right = expected[steps[slot] - 1]
                    assert_same(observations[row], right[0][slot])
                    assert_same(rewards[row], right[1][slot])
            actions = [actions_for(NUM_ENVS, steps[slot])[slot] for slot in slots.tolist()]
            for slot in slots.tolist():
                steps[slot] += 1
            envs.send(actions, slots)
