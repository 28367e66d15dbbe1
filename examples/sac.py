"""SAC for continuous control through `stream`: workers play on while the learner trains.

python examples/sac.py                                      # Pendulum-v1, 15 k steps
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from launching import LauncherName, make_launcher
from replay import Replay
from torch import Tensor, nn
from torch.distributions import Normal

from clusterenv import AdaptiveSync, ClusterEnv, EveryVersion
from clusterenv.distributions import SquashedGaussian
from clusterenv.logging import Progress, TensorBoardLog
from clusterenv.sync.exports import table


@dataclass
class Args:
    env_id: str = "Pendulum-v1"
    """the Gymnasium id; a continuous, bounded action space"""
    num_envs: int = 4
    """environments on all workers together"""
    num_workers: int | None = None
    """worker processes; by default one per core"""
    launcher: LauncherName = "local"
    """where the workers run"""
    threshold: float = 0.0
    """workers pull weights when their policy has diverged this far from the newest; 0: always"""
    max_lag: int = 256
    """… and in any case when they are this many versions behind"""
    num_steps: int = 8
    """steps of each environment per fragment"""
    total_steps: int = 15_000
    """environment steps in all"""
    policy_lr: float = 1e-3
    """of the actor's Adam, and of the temperature's"""
    q_lr: float = 1e-3
    """of the critics' Adam"""
    buffer_size: int = 200_000
    """transitions that the replay buffer holds"""
    batch_size: int = 128
    """transitions per gradient step"""
    learning_starts: int = 1_000
    """steps before the first gradient step"""
    steps_per_update: float = 2.0
    """environment steps per gradient step"""
    gamma: float = 0.99
    """discount per step"""
    tau: float = 0.005
    """share of the critics that moves into their targets per gradient step"""
    hidden: int = 128
    """width of the two hidden layers"""
    eval_episodes: int = 20
    """episodes that the final policy is evaluated on"""
    seed: int = 1
    """of envs, exploration, initial weights and replay"""
    out: Path = Path("runs/sac")
    """where the TensorBoard file goes"""


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


class Actor(nn.Module):
    """The only network that travels: the critics stay with the learner."""

    def __init__(self, envs: ClusterEnv, hidden: int) -> None:
        super().__init__()
        actions = envs.single_action_space
        self.net = mlp(
            int(np.prod(envs.single_observation_space.shape)), hidden, 2 * actions.shape[0]
        )
        self.register_buffer("low", torch.from_numpy(actions.low))
        self.register_buffer("high", torch.from_numpy(actions.high))

    def forward(self, observations: Tensor) -> SquashedGaussian:
        """What the workers draw actions from."""
        mean, log_std = self.net(observations).chunk(2, dim=-1)
        return SquashedGaussian(mean, log_std.clamp(-5, 2), self.low, self.high)

    def sample(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Actions that gradients flow through, and their log-probabilities."""
        squashed = self(observations)
        normal = Normal(squashed.mean, squashed.log_std.exp(), validate_args=False)
        before = normal.rsample()
        half = (self.high - self.low) / 2
        # log(1 - tanh(x)²), without its rounding error for large x.
        log_slope = 2 * (np.log(2) - before - nn.functional.softplus(-2 * before))
        log_prob = (normal.log_prob(before) - log_slope - half.log()).sum(-1)
        return self.low + (before.tanh() + 1) * half, log_prob


class Critics(nn.Module):
    """Two estimates of an action's value; the smaller one is believed."""

    def __init__(self, envs: ClusterEnv, hidden: int) -> None:
        super().__init__()
        inputs = (
            int(np.prod(envs.single_observation_space.shape)) + envs.single_action_space.shape[0]
        )
        self.first, self.second = mlp(inputs, hidden, 1), mlp(inputs, hidden, 1)

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([observations, actions], dim=-1)
        return self.first(both).squeeze(-1), self.second(both).squeeze(-1)


class Learner:
    def __init__(self, actor: Actor, envs: ClusterEnv, args: Args) -> None:
        self.actor, self._args = actor, args
        self._critics = Critics(envs, args.hidden)
        self._targets = copy.deepcopy(self._critics).requires_grad_(False)
        self._log_alpha = torch.zeros((), requires_grad=True)
        self._wanted_entropy = -float(envs.single_action_space.shape[0])
        self._critic_optimizer = torch.optim.Adam(self._critics.parameters(), lr=args.q_lr)
        self._actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.policy_lr)
        self._alpha_optimizer = torch.optim.Adam([self._log_alpha], lr=args.policy_lr)

    def update(self, batch: list[Tensor]) -> dict[str, Tensor]:
        """One gradient step of critics, actor and temperature."""
        observations, actions, rewards, terminated, next_observations = batch
        alpha = self._log_alpha.exp().detach()
        with torch.no_grad():
            next_actions, next_log_probs = self.actor.sample(next_observations)
            future = torch.min(*self._targets(next_observations, next_actions))
            future = future - alpha * next_log_probs
            wanted = rewards + self._args.gamma * future * ~terminated
        first, second = self._critics(observations, actions)
        critic_loss = (first - wanted).square().mean() + (second - wanted).square().mean()
        _descend(self._critic_optimizer, critic_loss)

        own_actions, log_probs = self.actor.sample(observations)
        value = torch.min(*self._critics(observations, own_actions))
        actor_loss = (alpha * log_probs - value).mean()
        _descend(self._actor_optimizer, actor_loss)

        excess = log_probs.detach() + self._wanted_entropy
        _descend(self._alpha_optimizer, -(self._log_alpha * excess).mean())
        self._follow()
        return {
            "qf_loss": critic_loss.detach(),
            "qf_values": first.detach().mean(),
            "actor_loss": actor_loss.detach(),
            "entropy": -log_probs.detach().mean(),
            "alpha": alpha,
        }

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the target critics a little towards the critics."""
        targets, critics = list(self._targets.parameters()), list(self._critics.parameters())
        torch._foreach_lerp_(targets, critics, self._args.tau)


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(args: Args, envs: ClusterEnv, progress: Progress) -> Actor:
    # Networks this small are faster on one thread than on several.
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    actor = Actor(envs, args.hidden)
    learner, replay = Learner(actor, envs, args), Replay(args.buffer_size, args.seed)
    envs.reset(seed=args.seed)
    version, owed_updates = envs.publish(actor), 0.0
    for fragment in envs.stream(args.num_steps):
        replay.add(fragment)
        progress.collected(fragment, version)
        if progress.step >= args.total_steps:
            break
        if len(replay) < args.learning_starts:
            continue
        owed_updates += fragment.rewards.size / args.steps_per_update
        while owed_updates >= 1:
            scalars = learner.update(replay.sample(args.batch_size))
            owed_updates -= 1
        progress.learned(**{name: float(value) for name, value in scalars.items()})
        version = envs.publish(actor)
    return actor


def main(args: Args) -> float:
    """Train, evaluate; the mean return of the evaluation."""
    log = TensorBoardLog(args.out)
    with (
        ClusterEnv(
            args.env_id,
            args.num_envs,
            args.num_workers,
            launcher=make_launcher(args.launcher),
            sync=AdaptiveSync.for_off_policy(args.threshold, max_lag=args.max_lag)
            if args.threshold
            else EveryVersion(),
        ) as envs,
        Progress(args.total_steps, "SAC", logs=[log], hyperparameters=args) as progress,
    ):
        actor = train(args, envs, progress)
        episodes = envs.evaluate(actor, args.eval_episodes, seed=args.seed + 1_000_000)
        synced = table(envs.ledger)
    (args.out / "sync.txt").write_text(synced + "\n")
    mean = float(episodes.returns.mean())
    print(f"{args.env_id}: mean return {mean:.1f} over {len(episodes.returns)} episodes")
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
