"""The engines of ``engine_throughput.py``: each alone in this process, and as a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

HIDDEN, SEED = 64, 1
STEP, RECV, ROLLOUT = "step", "recv", "rollout"


class EnvPool:
    """EnvPool's threads, in Gymnasium's form."""

    name, package = "EnvPool", "envpool"
    ways = (STEP, RECV, ROLLOUT)

    def backend(self, env: str, threads: int) -> Any:
        """For the workers."""
        from clusterenv import EnvPoolBackend

        return EnvPoolBackend(env, num_threads=threads)

    def alone(self, env: str, num_envs: int, threads: int, batch_size: int = 0) -> Any:
        """The engine itself, with nothing around it."""
        import envpool

        return envpool.make(
            env,
            env_type="gymnasium",
            num_envs=num_envs,
            batch_size=batch_size,
            num_threads=threads,
            seed=SEED,
        )

    def policy(self, observations: Any, actions: Any) -> Any:
        """What acts in a rollout."""
        return small_policy(observations, actions)


class Ale:
    """The Arcade Learning Environment's own vectorised games."""

    name, package = "ALE", "ale-py"
    ways = (STEP, ROLLOUT)

    def backend(self, env: str, threads: int) -> Any:
        """For the workers."""
        from clusterenv import AtariBackend

        return AtariBackend(env, num_threads=threads)

    def alone(self, env: str, num_envs: int, threads: int) -> Any:
        """The engine itself, with nothing around it."""
        from ale_py.vector_env import AtariVectorEnv

        return AtariVectorEnv(env, num_envs, num_threads=threads)

    def policy(self, observations: Any, actions: Any) -> Any:
        """What acts in a rollout."""
        return small_policy(observations, actions)


class Jax:
    """Pure functions, vmapped and jitted; XLA has threads of its own."""

    name, package = "JAX", "jax"
    ways = (STEP, ROLLOUT)

    def backend(self, env: str, threads: int) -> Any:
        """For the workers."""
        import engine_jax

        from clusterenv import JaxBackend

        return JaxBackend(getattr(engine_jax, env)())

    def alone(self, env: str, num_envs: int, threads: int) -> Any:
        """The same functions in this process."""
        import engine_jax

        return engine_jax.Alone(getattr(engine_jax, env)(), num_envs, SEED)

    def policy(self, observations: Any, actions: Any) -> Any:
        """What acts in a rollout."""
        import engine_jax

        return engine_jax.policy_for(observations, actions)


ENGINES: dict[str, EnvPool | Ale | Jax] = {"envpool": EnvPool(), "ale": Ale(), "jax": Jax()}


@dataclass(frozen=True)
class Cell:
    """So many envs of an engine."""

    kind: str
    env: str
    num_envs: int

    @classmethod
    def parse(cls, text: str) -> Cell:
        """``env:envs`` is EnvPool's; others are ``ale/env:envs`` and ``jax/env:envs``."""
        kind, _, name = text.rpartition("/")
        env, _, num_envs = name.partition(":")
        if (kind or "envpool") not in ENGINES or not num_envs.isdigit():
            raise ValueError(f"{text!r} is no cell: write CartPole-v1:1024 or ale/pong:32")
        return cls(kind or "envpool", env, int(num_envs))

    @property
    def engine(self) -> EnvPool | Ale | Jax:
        """That which runs them."""
        return ENGINES[self.kind]

    @property
    def batch_size(self) -> int:
        """Of a partial batch."""
        return self.num_envs // 4


def fragment_steps(observations: Any) -> int:
    """The length of a rollout."""
    return 8 if len(observations.shape) == 3 else 32


def small_policy(observations: Any, actions: Any) -> Any:
    """A CNN by torch for images, and an MLP by NumPy for the rest."""
    from clusterenv.tools.bench_policy import bench_policy

    if len(observations.shape) != 3:
        return bench_policy(observations, actions, HIDDEN)
    import networks
    import torch

    from clusterenv import TorchPolicy

    torch.manual_seed(SEED)
    net = networks.small_cnn(observations.shape, int(actions.n))
    return TorchPolicy(net, distribution=logits_of)


def logits_of(net: Any, observations: Any) -> Any:
    """The actor alone."""
    from clusterenv.distributions import Categorical

    return Categorical(net.logits(observations))


def some_actions(space: Any, num_envs: int) -> list[Any]:
    """A few batches of random actions."""
    space.seed(SEED)
    return [np.stack([space.sample() for _ in range(num_envs)]) for _ in range(8)]
