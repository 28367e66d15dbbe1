"""An engine as those written in C++ are: arrays in, arrays out, and its own ways to reset."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Engine(VectorEnv):
    """Each env observes (a number drawn at reset, its age, its last action).

    Args:
        seeds: One per env, which it takes only when it is made.
        mode: When it resets. It is the same engine in each.
        answers: What a masked reset returns: the "rows" that were reset, as EnvPool, or "all" rows
            and infos, as ALE. Or it "ignores" the mask.
        dtype: Of the observations, whatever the space says.
    """

    single_observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    single_action_space = Discrete(4)

    def __init__(self, seeds, mode=AutoresetMode.NEXT_STEP, answers="rows", dtype=np.float32):
        self.num_envs = count = len(seeds)
        self.metadata = {"autoreset_mode": mode}
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self.mode, self.answers, self.dtype = mode, answers, dtype
        self.rngs = [np.random.default_rng(seed) for seed in seeds]
        self.state = np.zeros((count, 3))
        self.ended = np.zeros(count, bool)
        self.speed = 1

    def _reset_rows(self, rows):
        for row in rows:
            self.state[row] = self.rngs[row].integers(1, 1 << 20), 0, 0
        self.ended[rows] = False

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask")
        if mask is None or self.answers == "ignores":
            mask = np.ones(self.num_envs, bool)
        rows = np.flatnonzero(mask)
        self._reset_rows(rows)
        told = rows if self.answers == "rows" else np.arange(self.num_envs)
        return self._observations()[told], self._infos(told)

    def step(self, actions):
        fillers = np.flatnonzero(self.ended & (self.mode is AutoresetMode.NEXT_STEP))
        self.state[:, 1] += self.speed
        self.state[:, 2] = actions
        rewards = (self.state[:, 0] / 8 + actions).astype(np.float32)
        terminated = self.state[:, 1] > 2 + self.state[:, 0] % 4
        truncated = ~terminated & (self.state[:, 1] > 4)
        for flags in (rewards, terminated, truncated):
            flags[fillers] = 0
        self._reset_rows(fillers)
        self.ended = terminated | truncated
        final = self._observations()
        everybody = np.arange(self.num_envs)
        if self.mode is AutoresetMode.SAME_STEP and self.ended.any():
            ended = np.flatnonzero(self.ended)
            self._reset_rows(ended)
            infos = {**self._infos(everybody), "final_obs": final}
            return self._observations(), rewards, terminated, truncated, infos
        return final, rewards, terminated, truncated, self._infos(everybody)

    def _observations(self):
        return self.state.astype(self.dtype)

    def _infos(self, rows):
        rows = rows.astype(np.int32)
        age = self.state[rows, 1].astype(np.int32)
        return {"env_id": rows, "age": age, "players": {"env_id": rows.copy()}}

    def render(self):
        return tuple(np.full((2, 2), row, np.uint8) for row in range(self.num_envs))

    def twice(self, number):
        return 2 * number

    @property
    def marks(self):
        return self.state[:, 0]


class EngineBatches:
    """Hands out envs in the order in which they were sent something; one of them ``never``."""

    batch_size = 2

    def __init__(self, num_envs, never):
        self.sent, self.never, self.ages = [], never, np.zeros(num_envs, np.int32)

    @property
    def num_under_way(self):
        return len(self.sent)

    @property
    def is_full(self):
        return len(self.sent) >= self.batch_size

    def reset(self, envs):
        self.sent += [env for env in envs.tolist() if env != self.never]

    def send(self, actions, envs):
        self.ages[envs] += 1
        self.reset(envs)

    def receive(self):
        envs = np.array(self.sent[: self.batch_size])
        del self.sent[: self.batch_size]
        no = np.zeros(len(envs), bool)
        observations = np.zeros((len(envs), 3), np.float32)
        return envs, observations, no.astype(np.float32), no, no, {"age": self.ages[envs]}


class BatchEngine(Engine):
    """Can hand out the envs that are ready first."""

    batches = None
    never = None

    def begin_batches(self, seeds, envs):
        if self.batches is None or len(envs) == self.num_envs:
            self.batches = EngineBatches(self.num_envs, self.never)
        self.batches.reset(envs)
        return self.batches


class BatchBackend:
    """Builds such engines, one of whose envs is ``never`` ready."""

    def __init__(self, never=None):
        self.never = never

    def build(self, slots):
        engine = BatchEngine(list(slots))
        engine.never = self.never
        return engine

    def for_slots(self, slots):
        return self

    def in_batches_of(self, batch_size):
        return self
