"""PPO, with the policy acting on the workers: a whole [T, N] rollout comes back per call.

python examples/ppo.py                                      # LunarLander-v3, 1 M steps
python examples/ppo.py --ahead                              # collect the next rollout meanwhile
python examples/ppo.py --env-id Pendulum-v1 --total-steps 300_000 --gamma 0.9 \\
    --learning-rate 1e-3 --num-envs 16 --num-minibatches 8
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from launching import LauncherName, make_launcher
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from clusterenv import (
    AdaptiveSync,
    ClusterEnv,
    EveryNth,
    Rollout,
    SyncRule,
    TorchPolicy,
    decoupled_loss,
    gae,
    with_values,
)
from clusterenv.logging import Progress, TensorBoardLog


@dataclass
class Args:
    env_id: str = "LunarLander-v3"
    """the Gymnasium id; a discrete or a continuous action space"""
    num_envs: int = 64
    """environments on all workers together"""
    num_workers: int | None = None
    """worker processes; by default one per core"""
    launcher: LauncherName = "local"
    """where the workers run"""
    threshold: float = 0.1
    """workers pull weights when their policy has diverged this far from the newest; 0: do not"""
    max_lag: int = 16
    """… and in any case when they are this many versions behind"""
    decoupled: bool = True
    """correct for workers that act with older weights; else plain PPO, which cannot leave them"""
    ahead: bool = False
    """collect the next rollout while learning from this one; needs the decoupled loss"""
    encoding: Literal["raw", "bf16", "delta"] = "delta"
    """how weights travel"""
    num_steps: int = 128
    """steps of each environment per rollout"""
    total_steps: int = 1_000_000
    """environment steps in all"""
    target_return: float = float("inf")
    """stop earlier, once the last 100 episodes reach this mean return"""
    learning_rate: float = 5e-4
    """of Adam"""
    anneal_lr: bool = True
    """let the learning rate fall to 0"""
    update_epochs: int = 6
    """how often each rollout is gone through"""
    num_minibatches: int = 32
    """per epoch"""
    gamma: float = 0.999
    """discount per step"""
    gae_lambda: float = 0.95
    """of the generalised advantage estimate"""
    clip_coef: float = 0.2
    """how far the probability ratio may leave 1"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradients are cut to this norm"""
    reward_scale: float = 0.1
    """rewards are multiplied by this before learning"""
    hidden: int = 64
    """width of the two hidden layers"""
    eval_episodes: int = 20
    """episodes that the final policy is evaluated on"""
    seed: int = 1
    """of envs, exploration, initial weights and minibatches"""
    out: Path = Path("runs/ppo")
    """where the TensorBoard file goes"""


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        layer(inputs, hidden),
        nn.Tanh(),
        layer(hidden, hidden),
        nn.Tanh(),
        layer(hidden, outputs, gain),
    )


class Agent(nn.Module):
    """Actor and critic. Only the actor's weights travel: values are computed at the head."""

    def __init__(self, envs: ClusterEnv, hidden: int) -> None:
        super().__init__()
        observations, actions = envs.single_observation_space, envs.single_action_space
        inputs = int(np.prod(observations.shape))
        self.discrete = isinstance(actions, gym.spaces.Discrete)
        outputs = int(actions.n) if self.discrete else int(np.prod(actions.shape))
        self.actor = mlp(inputs, hidden, outputs, gain=0.01)
        self.critic = mlp(inputs, hidden, 1, gain=1.0)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.zeros(outputs))
        # Buffers are weights too: the workers normalise as the learner does.
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("std", torch.ones(inputs))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def normalise(self, observations: Tensor) -> Tensor:
        return ((observations.flatten(1).float() - self.mean) / self.std).clamp(-10, 10)

    def forward(self, observations: Tensor) -> Distribution:
        if self.discrete:
            logits = self.actor(self.normalise(observations))
            return Categorical(logits=logits, validate_args=False)
        mean = self.actor(self.normalise(observations))
        std = self.log_std.exp().expand_as(mean)
        return Independent(Normal(mean, std, validate_args=False), 1, validate_args=False)

    def value(self, observations: Tensor) -> Tensor:
        return self.critic(self.normalise(observations)).squeeze(-1)

    @torch.no_grad()
    def value_of(self, observations: np.ndarray) -> np.ndarray:
        return self.value(torch.from_numpy(observations)).numpy()

    @torch.no_grad()
    def log_prob_of(self, observations: Tensor, actions: Tensor) -> Tensor:
        return self(observations).log_prob(actions)

    @torch.no_grad()
    def learn_normalisation(self, observations: Tensor) -> None:
        """Take these observations into the running mean and standard deviation."""
        batch = observations.flatten(1).float()
        share = len(batch) / (self.count + len(batch))
        difference = batch.mean(0) - self.mean
        variance = (1 - share) * (self.std**2 + share * difference**2) + share * batch.var(0)
        self.mean += share.float() * difference
        self.std.copy_(variance.clamp(min=1e-8).sqrt())
        self.count += len(batch)


def clip_actions(env: gym.Env) -> gym.Env:
    return gym.wrappers.ClipAction(env) if isinstance(env.action_space, gym.spaces.Box) else env


def sync_rule(args: Args) -> SyncRule:
    """Adaptive policy synchronization, or a fixed period where the threshold is 0."""
    if args.threshold == 0:
        return EveryNth(args.max_lag)
    return AdaptiveSync.for_ppo(
        args.threshold, clip=args.clip_coef, decoupled=args.decoupled, max_lag=args.max_lag
    )


def make_envs(args: Args) -> ClusterEnv:
    return ClusterEnv(
        args.env_id,
        args.num_envs,
        args.num_workers,
        launcher=make_launcher(args.launcher),
        sync=sync_rule(args),
        encoding=args.encoding,
        wrappers=(clip_actions,),
    )


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, args: Args
) -> dict[str, float]:
    """Learn from one rollout; what TensorBoard shows of it."""
    rollout = with_values(rollout, agent.value_of)
    advantages, returns = gae(
        rollout, args.gamma, args.gae_lambda, rollout.rewards * args.reward_scale
    )
    arrays = (
        rollout.observations[:-1],
        rollout.actions,
        rollout.outputs["log_prob"],
        advantages.astype(np.float32),
        returns.astype(np.float32),
    )
    flat = [torch.from_numpy(rollout.flatten(array)) for array in arrays]
    # Workers may have acted with an older policy than this one, which the loss starts from.
    flat.append(agent.log_prob_of(flat[0], flat[1]) if args.decoupled else flat[2])
    parameters = list(agent.parameters())
    for _ in range(args.update_epochs):
        for rows in torch.randperm(rollout.rewards.size).tensor_split(args.num_minibatches):
            loss, scalars = loss_of(agent, *(tensor[rows] for tensor in flat), args)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)
            optimizer.step()
    if not agent.discrete:
        agent.learn_normalisation(flat[0])
    values = rollout.outputs["value"]
    scalars["explained_variance"] = 1 - np.var(returns - values) / np.var(returns)
    return {name: float(value) for name, value in scalars.items()}


def loss_of(
    agent: Agent,
    observations: Tensor,
    actions: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    returns: Tensor,
    proximal: Tensor,
    args: Args,
) -> tuple[Tensor, dict[str, Tensor]]:
    distribution = agent(observations)
    log_prob = distribution.log_prob(actions)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = decoupled_loss(log_prob, proximal, behaviour, advantages, args.clip_coef)
    value_loss = 0.5 * (agent.value(observations) - returns).square().mean()
    entropy = distribution.entropy().mean()
    loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy
    with torch.no_grad():
        log_ratio = log_prob - proximal
        ratio = log_ratio.exp()
        approx_kl = (ratio - 1 - log_ratio).mean()
        clipfrac = ((ratio - 1).abs() > args.clip_coef).float().mean()
    scalars = {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "approx_kl": approx_kl,
        "clipfrac": clipfrac,
    }
    return loss, scalars


def train(
    args: Args, envs: ClusterEnv, progress: Progress, make_agent: type[Agent] = Agent
) -> TorchPolicy:
    """The learner: it never sees an environment, only rollouts."""
    if args.ahead and not args.decoupled:
        raise ValueError("--ahead collects with older weights: it needs --decoupled")
    # Networks this small are faster on one thread than on several.
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    agent = make_agent(envs, args.hidden)
    policy = TorchPolicy(agent, stays_at_head=("critic",))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)
    envs.reset(seed=args.seed)
    while progress.step < args.total_steps and not progress.has_reached(args.target_return):
        version = envs.publish(policy)
        # Nobody would look at what is collected ahead of the last one.
        is_last = progress.step + args.num_envs * args.num_steps >= args.total_steps
        rollout = envs.rollout(policy, args.num_steps, ahead=int(args.ahead and not is_last))
        progress.collected(rollout, version)
        if args.anneal_lr:
            left = 1 - (progress.step - rollout.rewards.size) / args.total_steps
            optimizer.param_groups[0]["lr"] = left * args.learning_rate
        scalars = update(agent, optimizer, rollout, args)
        progress.learned(learning_rate=optimizer.param_groups[0]["lr"], **scalars)
        progress.synced(envs.ledger)
    return policy


def main(args: Args) -> float:
    """Train, evaluate; the mean return of the evaluation."""
    log = TensorBoardLog(args.out)
    with (
        make_envs(args) as envs,
        Progress(args.total_steps, "PPO", logs=[log], hyperparameters=args) as progress,
    ):
        policy = train(args, envs, progress)
        episodes = envs.evaluate(policy, args.eval_episodes, seed=args.seed + 1_000_000)
    mean = float(episodes.returns.mean())
    print(f"{args.env_id}: mean return {mean:.1f} over {len(episodes.returns)} episodes")
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
