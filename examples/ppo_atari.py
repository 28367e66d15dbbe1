"""PPO on Atari: EnvPool's or ALE's games and a CNN on the workers, the learner here.

python examples/ppo_atari.py                      # Pong, on this machine
python examples/ppo_atari.py --engine ale --game breakout
NODES=4 CPUS=16 python examples/ppo_atari.py --launcher slurm --num-envs 256

The learner uses a GPU if there is one; --policy-device cuda lets the workers use one as well.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from launching import LauncherName, make_launcher
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from clusterenv import AtariBackend, ClusterEnv, EnvPoolBackend, Rollout, TorchPolicy, gae
from clusterenv.distributions import Categorical
from clusterenv.profile import shares

CORES = len(os.sched_getaffinity(0))
SHOW_EVERY_S = 5.0


@dataclass
class Args:
    game: str = "pong"
    """the game, as ALE names it: pong, breakout, ms_pacman"""
    engine: Literal["envpool", "ale"] = "envpool"
    """what runs the games"""
    num_envs: int = 64 if CORES > 4 else 16
    """games on all workers together"""
    num_workers: int | None = None
    """worker processes, each with an engine; by default one per host"""
    num_threads: int = 0
    """threads of each engine; by default one per core of its machine"""
    launcher: LauncherName = "local"
    """where the workers run"""
    policy_device: str = "cpu"
    """where the policy acts on the workers: cpu, cuda or cuda:{worker}"""
    num_steps: int = 128
    """steps of each game per rollout"""
    total_steps: int = 10_000_000
    """steps of all games in all; four frames each"""
    target_return: float = float("inf")
    """stop earlier, once the last 50 episodes reach this mean return"""
    max_episode_steps: int = 27_000
    """longer episodes are truncated"""
    learning_rate: float = 2.5e-4
    """of Adam"""
    anneal_lr: bool = True
    """let the learning rate fall to 0"""
    update_epochs: int = 4
    """how often each rollout is gone through"""
    num_minibatches: int = 4
    """per epoch"""
    gamma: float = 0.99
    """discount per step"""
    gae_lambda: float = 0.95
    """of the generalised advantage estimate"""
    clip_coef: float = 0.1
    """how far the probability ratio may leave 1"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradients are cut to this norm"""
    eval_episodes: int = 20
    """episodes that the final policy is evaluated on"""
    seed: int = 1
    """of games, exploration, initial weights and minibatches"""
    out: Path = Path("runs/ppo_atari")
    """where the TensorBoard file goes"""


def layer(module: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


class Agent(nn.Module):
    """Actor and critic on the convolutions of the Nature paper: 84x84, four frames."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            layer(nn.Conv2d(4, 32, 8, stride=4)),
            nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            layer(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.actor = layer(nn.Linear(512, num_actions), gain=0.01)
        self.critic = layer(nn.Linear(512, 1), gain=1.0)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of actions, and the value."""
        hidden = self.body(frames.float() / 255)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def act(agent: Agent, frames: Tensor) -> tuple[Categorical, Tensor]:
    """What the policy does on the workers."""
    logits, value = agent(frames)
    return Categorical(logits), value


def make_envs(args: Args) -> ClusterEnv:
    threads = args.num_threads
    if args.engine == "envpool":
        task = "".join(word.capitalize() for word in args.game.split("_")) + "-v5"
        limit = {"max_episode_steps": args.max_episode_steps}
        backend: Any = EnvPoolBackend(task, num_threads=threads, reward_clip=True, **limit)
    else:
        limit = {"max_num_frames_per_episode": 4 * args.max_episode_steps}
        backend = AtariBackend(args.game, num_threads=threads, **limit)
    launcher = make_launcher(args.launcher)
    return ClusterEnv(backend, args.num_envs, args.num_workers, launcher=launcher)


class Show:
    """A line now and then, and CleanRL's tags in TensorBoard."""

    def __init__(self, args: Args) -> None:
        self.step, self._returns, self._writer = 0, [], SummaryWriter(str(args.out))
        self._started = self._shown = time.monotonic()
        rows = "\n".join(f"|{name}|{value}|" for name, value in asdict(args).items())
        self._writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")

    @property
    def mean_return(self) -> float:
        """Of the last 50 episodes."""
        return float(np.mean(self._returns)) if self._returns else float("nan")

    def updated(self, rollout: Rollout, profile: Any, scalars: dict[str, float]) -> None:
        """One rollout was collected and learnt from; where the time of that went."""
        self.step += rollout.rewards.size
        self._returns = [*self._returns, *rollout.episodes.returns.tolist()][-50:]
        speed, share = self.step / (time.monotonic() - self._started), shares(profile)
        parts = {
            "env": share["env"],
            "policy": share["inference"],
            "transfer": share["serialise"] + share["network"] + share["head"],
            "learner": share["learner"],
        }
        tags = {"charts/SPS": speed, "charts/episodic_return": self.mean_return}
        tags |= {f"losses/{name}": value for name, value in scalars.items()}
        tags |= {f"time/{name}": value for name, value in parts.items()}
        for tag, value in tags.items():
            self._writer.add_scalar(tag, value, self.step)
        if time.monotonic() - self._shown > SHOW_EVERY_S:
            self._shown = time.monotonic()
            spent = "  ".join(f"{name} {100 * value:.0f} %" for name, value in parts.items())
            line = f"{self.step:>10,} steps  {speed:>7,.0f}/s  return {self.mean_return:6.1f}"
            print(f"{line}  {spent}", flush=True)

    def close(self) -> None:
        self._writer.close()


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, args: Args
) -> dict[str, float]:
    """Learn from one rollout; what TensorBoard shows of it."""
    device = next(agent.parameters()).device
    advantages, returns = gae(rollout, args.gamma, args.gae_lambda)
    arrays = (
        rollout.observations[:-1],
        rollout.actions,
        rollout.outputs["log_prob"],
        advantages.astype(np.float32),
        returns.astype(np.float32),
    )
    flat = [torch.from_numpy(rollout.flatten(array)).to(device) for array in arrays]
    for _ in range(args.update_epochs):
        order = torch.randperm(rollout.rewards.size, device=device)
        for rows in order.tensor_split(args.num_minibatches):
            loss, scalars = loss_of(agent, *(tensor[rows] for tensor in flat), args)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
    return {name: float(value) for name, value in scalars.items()}


def loss_of(
    agent: Agent,
    frames: Tensor,
    actions: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    returns: Tensor,
    args: Args,
) -> tuple[Tensor, dict[str, Tensor]]:
    logits, value = agent(frames)
    log_probs = logits.log_softmax(-1)
    log_prob = log_probs.gather(1, actions.long()[:, None]).squeeze(1)
    ratio = (log_prob - behaviour).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
    value_loss = 0.5 * (value - returns).square().mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy
    with torch.no_grad():
        clipfrac = ((ratio - 1).abs() > args.clip_coef).float().mean()
    scalars = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    return loss, {**{name: one.detach() for name, one in scalars.items()}, "clipfrac": clipfrac}


def train(args: Args, envs: ClusterEnv, show: Show) -> TorchPolicy:
    """The learner: it never sees a game, only rollouts."""
    torch.manual_seed(args.seed)
    agent = Agent(int(envs.single_action_space.n))
    agent.to("cuda" if torch.cuda.is_available() else "cpu", memory_format=torch.channels_last)
    policy = TorchPolicy(agent, distribution=act, device=args.policy_device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)
    envs.reset(seed=args.seed)
    while show.step < args.total_steps and not show.mean_return >= args.target_return:
        if args.anneal_lr:
            left = 1 - show.step / args.total_steps
            optimizer.param_groups[0]["lr"] = left * args.learning_rate
        with envs.profile() as profile:
            rollout = envs.rollout(policy, args.num_steps)
            scalars = update(agent, optimizer, rollout, args)
        show.updated(rollout, profile.result, scalars)
    return policy


def main(args: Args) -> float:
    """Train, evaluate; the mean return of the evaluation."""
    show = Show(args)
    try:
        with make_envs(args) as envs:
            policy = train(args, envs, show)
            episodes = envs.evaluate(policy, args.eval_episodes, seed=args.seed + 1_000_000)
    finally:
        show.close()
    mean = float(episodes.returns.mean())
    print(f"{args.game}: mean return {mean:.1f} over {len(episodes.returns)} episodes")
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
