"""DQN through `stream`: workers play without waiting, the learner trains on what has come.

python examples/dqn.py                                      # CartPole-v1, 50 k steps
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

from clusterenv import AdaptiveSync, ClusterEnv, EveryVersion
from clusterenv.distributions import EpsilonGreedy
from clusterenv.logging import Progress, TensorBoardLog
from clusterenv.sync.exports import table


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    """the Gymnasium id; a discrete action space"""
    num_envs: int = 8
    """environments on all workers together"""
    num_workers: int | None = None
    """worker processes; by default one per core"""
    launcher: LauncherName = "local"
    """where the workers run"""
    threshold: float = 0.0
    """workers pull weights when their policy has diverged this far from the newest; 0: always"""
    max_lag: int = 256
    """… and in any case when they are this many versions behind"""
    num_steps: int = 16
    """steps of each environment per fragment"""
    total_steps: int = 50_000
    """environment steps in all"""
    learning_rate: float = 2e-3
    """of Adam"""
    buffer_size: int = 50_000
    """transitions that the replay buffer holds"""
    batch_size: int = 128
    """transitions per gradient step"""
    learning_starts: int = 1_000
    """steps before the first gradient step"""
    steps_per_update: float = 4.0
    """environment steps per gradient step"""
    gamma: float = 0.99
    """discount per step"""
    target_every: int = 50
    """gradient steps between copies into the target network"""
    start_epsilon: float = 1.0
    """share of random actions at first …"""
    end_epsilon: float = 0.04
    """… and at last"""
    exploration_fraction: float = 0.2
    """part of the run in which it falls"""
    hidden: int = 128
    """width of the two hidden layers"""
    eval_episodes: int = 20
    """episodes that the final policy is evaluated on"""
    seed: int = 1
    """of envs, exploration, initial weights and replay"""
    out: Path = Path("runs/dqn")
    """where the TensorBoard file goes"""


class QNetwork(nn.Module):
    """The value of each action. On the workers it acts ε-greedily."""

    def __init__(self, envs: ClusterEnv, hidden: int) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        outputs = int(envs.single_action_space.n)
        self.values = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, outputs),
        )
        # A buffer is published with the weights, so that the workers explore as the learner says.
        self.register_buffer("epsilon", torch.ones(()))

    def forward(self, observations: Tensor) -> EpsilonGreedy:
        values = self.values(observations.flatten(1).float())
        return EpsilonGreedy(values, self.epsilon.expand(len(values)))


class Learner:
    def __init__(self, network: QNetwork, args: Args) -> None:
        self.network, self._args = network, args
        self._target = copy.deepcopy(network)
        self._optimizer = torch.optim.Adam(network.parameters(), lr=args.learning_rate)
        self._updates = 0

    def update(self, batch: list[Tensor]) -> dict[str, Tensor]:
        """One gradient step."""
        observations, actions, rewards, terminated, next_observations = batch
        with torch.no_grad():
            # Double DQN: the network chooses, the target network judges.
            best = self.network.values(next_observations).argmax(1, keepdim=True)
            future = self._target.values(next_observations).gather(1, best).squeeze(1)
            wanted = rewards + self._args.gamma * future * ~terminated
        values = self.network.values(observations).gather(1, actions[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(values, wanted)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._updates += 1
        if self._updates % self._args.target_every == 0:
            self._target.load_state_dict(self.network.state_dict())
        return {"td_loss": loss.detach(), "q_values": values.detach().mean()}


def epsilon_at(step: int, args: Args) -> float:
    done = min(1.0, step / (args.exploration_fraction * args.total_steps))
    return args.start_epsilon + done * (args.end_epsilon - args.start_epsilon)


def train(args: Args, envs: ClusterEnv, progress: Progress) -> QNetwork:
    # Networks this small are faster on one thread than on several.
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    network = QNetwork(envs, args.hidden)
    learner, replay = Learner(network, args), Replay(args.buffer_size, args.seed)
    envs.reset(seed=args.seed)
    version, owed_updates = envs.publish(network), 0.0
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
        network.epsilon.fill_(epsilon_at(progress.step, args))
        version = envs.publish(network)
    return network


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
        Progress(args.total_steps, "DQN", logs=[log], hyperparameters=args) as progress,
    ):
        network = train(args, envs, progress)
        episodes = envs.evaluate(network, args.eval_episodes, seed=args.seed + 1_000_000)
        synced = table(envs.ledger)
    (args.out / "sync.txt").write_text(synced + "\n")
    mean = float(episodes.returns.mean())
    print(f"{args.env_id}: mean return {mean:.1f} over {len(episodes.returns)} episodes")
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
