"""The lives of slots whose workers are replaced: every row is one that an env really lived."""

from tests import inside
from tests.contract.replay import Life, leaves, pick


class Followed:
    """Checks each rollout of a ClusterEnv that was reset with `seed`, in the order they came."""

    def __init__(self, envs, make, seed):
        self._envs, self._make, self._seed = envs, make, seed
        self._lives = [Life(make(), seed + slot) for slot in range(envs.num_envs)]
        self._incarnations = [0] * envs.num_envs
        self.rows = 0
        self.restarts = 0

    def check(self, rollout):
        """Fail unless each column goes on where its slot was, or starts over in a replacement."""
        assert rollout.slots.tolist() == list(range(self._envs.num_envs))
        for slot in range(self._envs.num_envs):
            if not self._goes_on(rollout, slot):
                self._start_over(rollout, slot)
            self._lives[slot].assert_lived(rollout, slot)
        self.rows += rollout.rewards.size

    def _goes_on(self, rollout, slot):
        first = pick(rollout.observations, 0, slot)
        expected = self._lives[slot].observation
        pairs = zip(leaves(first), leaves(expected), strict=True)
        return all((left == right.astype(left.dtype)).all() for left, right in pairs)

    def _start_over(self, rollout, slot):
        newest = inside.times_restarted(self._envs, slot)
        for incarnation in range(self._incarnations[slot] + 1, newest + 1):
            life = Life(self._make(), inside.restart_seed(self._seed, slot, incarnation))
            self._lives[slot], self._incarnations[slot] = life, incarnation
            if self._goes_on(rollout, slot):
                self.restarts += 1
                return
        raise AssertionError(f"slot {slot} neither went on nor started over under a replacement")
