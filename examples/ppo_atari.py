"""PPO on Atari: EnvPool's or ALE's games and a CNN on the workers, the learner here.

python examples/ppo_atari.py --minutes 15         # Pong, on this machine
python examples/ppo_atari.py --engine ale --game breakout
NODES=4 CPUS=16 python examples/ppo_atari.py --launcher slurm --num-envs 256

The learner uses a GPU if there is one; --policy-device cuda lets the workers use one as well.
Without a GPU, the network is a smaller one and rollouts are shorter: what counts then is how many
images per second the learner takes.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from launching import LauncherName, make_launcher
from torch import Tensor, nn

from clusterenv import AtariBackend, ClusterEnv, EnvPoolBackend, Rollout, TorchPolicy, gae
from clusterenv.distributions import Categorical
from clusterenv.logging import TensorBoardLog
from clusterenv.profile import shares

CORES = len(os.sched_getaffinity(0))
HAS_GPU = torch.cuda.is_available()
SHOW_EVERY_S = 5.0
RECENT_EPISODES = 20


@dataclass
class Args:
    game: str = "pong"
    """the game, as ALE names it: pong, breakout, ms_pacman"""
    engine: Literal["envpool", "ale"] = "envpool"
    """what runs the games"""
    network: Literal["nature", "small"] = "nature" if HAS_GPU else "small"
    """1.7 million weights; or 0.7 million, which a CPU learns faster"""
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
    num_steps: int = 128 if HAS_GPU else 64
    """steps of each game per rollout"""
    total_steps: int = 10_000_000
    """steps of all games in all; four frames each"""
    minutes: float = float("inf")
    """stop earlier, after so many minutes of training"""
    target_return: float = float("inf")
    """stop earlier, once the last 20 episodes reach this mean return"""
    max_episode_steps: int = 27_000
    """longer episodes are truncated"""
    learning_rate: float = 2.5e-4
    """of Adam"""
    anneal_lr: bool = True
    """let the learning rate fall to 0"""
    update_epochs: int = 4
    """how often each rollout is gone through"""
    minibatch_size: int = 1024 if HAS_GPU else 256
    """steps per gradient, or a few more where a rollout is no multiple of that"""
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


def nature_body() -> list[nn.Module]:
    """The convolutions of the Nature paper: 84x84, four frames."""
    convolutions = [
        layer(nn.Conv2d(4, 32, 8, stride=4)),
        layer(nn.Conv2d(32, 64, 4, stride=2)),
        layer(nn.Conv2d(64, 64, 3, stride=1)),
    ]
    return [*convolutions, nn.Flatten(), layer(nn.Linear(64 * 7 * 7, 512))]


def small_body() -> list[nn.Module]:
    """Those of the first DQN paper."""
    convolutions = [layer(nn.Conv2d(4, 16, 8, stride=4)), layer(nn.Conv2d(16, 32, 4, stride=2))]
    return [*convolutions, nn.Flatten(), layer(nn.Linear(32 * 9 * 9, 256))]


class Agent(nn.Module):
    """Actor and critic on the same features."""

    def __init__(self, num_actions: int, network: str) -> None:
        super().__init__()
        modules = nature_body() if network == "nature" else small_body()
        with_relus = [
            (one,) if isinstance(one, nn.Flatten) else (one, nn.ReLU()) for one in modules
        ]
        self.body = nn.Sequential(*(module for pair in with_relus for module in pair))
        features = modules[-1].out_features
        self.actor = layer(nn.Linear(features, num_actions), gain=0.01)
        self.critic = layer(nn.Linear(features, 1), gain=1.0)

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
        backend: Any = EnvPoolBackend(task, num_threads=threads, reward_clip=False, **limit)
    else:
        limit = {"max_num_frames_per_episode": 4 * args.max_episode_steps}
        backend = AtariBackend(args.game, num_threads=threads, reward_clipping=False, **limit)
    launcher = make_launcher(args.launcher)
    return ClusterEnv(backend, args.num_envs, args.num_workers, launcher=launcher)


class Show:
    """A line now and then, CleanRL's tags in TensorBoard, and the same numbers as rows."""

    def __init__(self, args: Args) -> None:
        self.step, self._returns, self._log = 0, [], TensorBoardLog(args.out)
        self.rows: list[dict[str, float]] = []
        self._started = self._shown = time.monotonic()
        self._log.open(asdict(args), first_step=0)

    @property
    def seconds(self) -> float:
        """Since the training began."""
        return time.monotonic() - self._started

    @property
    def mean_return(self) -> float:
        """Of the most recent episodes."""
        return float(np.mean(self._returns)) if self._returns else float("nan")

    def updated(self, rollout: Rollout, profile: Any, scalars: dict[str, float]) -> None:
        """One rollout was collected and learnt from; where the time of that went."""
        self.step += rollout.rewards.size
        returns = [*self._returns, *rollout.episodes.returns.tolist()]
        self._returns = returns[-RECENT_EPISODES:]
        parts = shares_of(profile)
        tags = {"charts/SPS": self.step / self.seconds}
        if self._returns:
            tags["charts/episodic_return"] = self.mean_return
        tags |= {f"losses/{name}": value for name, value in scalars.items()}
        tags |= {f"time/{name}": value for name, value in parts.items()}
        self._log.scalars(self.step, tags)
        self.rows.append({"step": self.step, "seconds": self.seconds, **tags})
        if time.monotonic() - self._shown > SHOW_EVERY_S:
            self._shown = time.monotonic()
            self._print(parts)

    def _print(self, parts: dict[str, float]) -> None:
        spent = "  ".join(f"{name} {100 * value:.0f} %" for name, value in parts.items())
        speed = self.step / self.seconds
        line = f"{self.step:>10,} steps  {speed:>7,.0f}/s  return {self.mean_return:6.1f}"
        print(f"{line}  {spent}", flush=True)

    def close(self) -> None:
        self._log.close(failed=False)


def shares_of(profile: Any) -> dict[str, float]:
    """Where an average worker's time went; ``learner``: it waited for that."""
    share = shares(profile)
    return {
        "env": share["env"],
        "policy": share["inference"],
        "transfer": share["serialise"] + share["network"] + share["head"],
        "learner": share["learner"],
        "other": share["wait"] + share["other"],
    }


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, args: Args
) -> dict[str, float]:
    """Learn from one rollout; what TensorBoard shows of it."""
    device = next(agent.parameters()).device
    # Clipped here, so that the curves show the scores of the games.
    rewards = np.clip(rollout.rewards, -1, 1)
    advantages, returns = gae(rollout, args.gamma, args.gae_lambda, rewards)
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
        for rows in order.tensor_split(max(1, len(order) // args.minibatch_size)):
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
    agent = Agent(int(envs.single_action_space.n), args.network)
    agent.to("cuda" if HAS_GPU else "cpu", memory_format=torch.channels_last)
    policy = TorchPolicy(agent, distribution=act, device=args.policy_device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)
    envs.reset(seed=args.seed)
    while show.step < args.total_steps and not is_done(args, show):
        if args.anneal_lr:
            left = 1 - show.step / args.total_steps
            optimizer.param_groups[0]["lr"] = left * args.learning_rate
        with envs.profile() as profile:
            rollout = envs.rollout(policy, args.num_steps)
            scalars = update(agent, optimizer, rollout, args)
        show.updated(rollout, profile.result, scalars)
    return policy


def is_done(args: Args, show: Show) -> bool:
    """Whether it is time to stop before all steps are taken."""
    return show.mean_return >= args.target_return or show.seconds >= 60 * args.minutes


def run(args: Args) -> tuple[list[dict[str, float]], float]:
    """Train, evaluate; a row per update, and the mean return of the evaluation."""
    with make_envs(args) as envs, closing(Show(args)) as show:
        policy = train(args, envs, show)
        episodes = envs.evaluate(policy, args.eval_episodes, seed=args.seed + 1_000_000)
    mean = float(episodes.returns.mean())
    print(f"{args.game}: mean return {mean:.1f} over {len(episodes.returns)} episodes")
    return show.rows, mean


def main(args: Args) -> float:
    """The mean return of the evaluation."""
    _, mean = run(args)
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
