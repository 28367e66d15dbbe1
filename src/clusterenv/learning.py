"""Small functions that a learner may use; nothing else in the package knows about learning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.rollout import AnyFragment, Fragment, Rollout, check_values, map_structure

# torch's; this file does not import it.
Tensor = Any


def gae(
    rollout: Rollout, gamma: float, gae_lambda: float, rewards: Array | None = None
) -> tuple[Array, Array]:
    """Generalised advantage estimates and returns, [T, N] each.

    An episode that *terminated* is worth nothing after its end; one that was *truncated* is
    continued with the value of its true last observation.

    Args:
        rollout: With the output ``value`` (see :attr:`Rollout.next_values`).
        gamma: Discount per step.
        gae_lambda: How far to look before trusting the value function.
        rewards: Used in place of ``rollout.rewards``, e.g. scaled ones.

    Returns:
        ``advantages`` and ``returns = advantages + values``, in float64, as the rewards are.
    """
    rollout.refuse_tensors("gae")
    rewards = rollout.rewards if rewards is None else rewards
    next_values = rollout.next_values
    values = rollout.outputs["value"]
    check_values(values, rewards)
    deltas = rewards + gamma * next_values - values
    carries_on = ~(rollout.terminated | rollout.truncated)
    advantages = np.empty_like(deltas)
    running = np.zeros(deltas.shape[1])
    for t in reversed(range(len(deltas))):
        running = deltas[t] + gamma * gae_lambda * carries_on[t] * running
        advantages[t] = running
    return advantages, advantages + values


def with_values(rollout: AnyFragment, value: Callable[[Any], Array]) -> AnyFragment:
    """The rollout with values computed here: for a critic that stays at the head.

    Args:
        rollout: From a policy without a value function. (A critic with memory needs its state:
            let it act on the workers, as the ``value`` of the policy.)
        value: Observations (a row each, in the structure of the space) → one value per row.
    """
    rollout.refuse_tensors("with_values")
    steps, columns = rollout.rewards.shape
    rows = map_structure(lambda array: array.reshape(-1, *array.shape[2:]), rollout.observations)
    values = np.asarray(value(rows)).reshape(steps + 1, columns)
    finals = rollout.finals
    ended = value(finals.observations) if len(finals.steps) else values[0, :0]
    return replace(
        rollout,
        outputs={**rollout.outputs, "value": values[:-1]},
        last_values=values[-1],
        finals=replace(finals, values=np.asarray(ended).reshape(-1)),
    )


def importance_weights(log_prob: Array, behaviour_log_prob: Array, cap: float = 1.0) -> Array:
    """π / μ of each action, at most ``cap``."""
    return np.asarray(np.exp(np.minimum(log_prob - behaviour_log_prob, np.log(cap))))


def decoupled_loss(
    log_prob: Tensor,
    proximal_log_prob: Tensor,
    behaviour_log_prob: Tensor,
    advantages: Tensor,
    clip: float = 0.2,
    cap: float = 2.0,
) -> Tensor:
    """PPO's policy loss where workers act with weights that are some versions old.

    PPO clips the ratio to the policy that acted. If that policy is stale, the learner cannot
    leave its neighbourhood. Here the ratio is taken to the *proximal* policy, the learner's own
    at the start of the update, and importance weights correct for the policy that acted. If no
    host is behind, the two are the same, and so is the loss.

    Args:
        log_prob: Log-probabilities of the actions under the policy that is being learned. All
            arguments but the last two are torch tensors.
        proximal_log_prob: The same under the learner's policy before the first step of this update.
        behaviour_log_prob: The same, recorded when they acted: ``rollout.outputs["log_prob"]``.
        advantages: Advantages of the actions.
        clip: How far the ratio may leave 1.
        cap: The largest importance weight.
    """
    weights = (proximal_log_prob - behaviour_log_prob).exp().clamp(max=cap)
    ratio = (log_prob - proximal_log_prob).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -(weights * (ratio * advantages).minimum(clipped * advantages)).mean()


def vtrace(
    fragment: Fragment,
    log_prob: Array,
    gamma: float,
    rewards: Array | None = None,
    *,
    rho_cap: float = 1.0,
    c_cap: float = 1.0,
    trace: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace targets and advantages, for fragments of a stream, whose policy is slightly old.

    Args:
        fragment: With the values of the *learner's* critic: see :func:`with_values`.
        log_prob: Log-probabilities of the actions under the learner's policy, [T, n].
        gamma: Discount per step.
        rewards: Used in place of ``fragment.rewards``, e.g. scaled ones.
        rho_cap: Largest importance weight of a step's own error …
        c_cap: … and of what comes after it.
        trace: λ, below 1 for less variance.

    Returns:
        The targets for the critic, and the advantages for the policy gradient (weighted already),
        in float64.
    """
    fragment.refuse_tensors("vtrace")
    rewards = fragment.rewards if rewards is None else rewards
    behaviour, values = fragment.outputs["log_prob"], fragment.outputs["value"]
    check_values(values, rewards)
    rho = importance_weights(log_prob, behaviour, rho_cap)
    c = trace * importance_weights(log_prob, behaviour, c_cap)
    next_values = fragment.next_values
    deltas = rho * (rewards + gamma * next_values - values)
    carries_on = ~(fragment.terminated | fragment.truncated)
    corrections = np.empty_like(deltas)
    running = np.zeros(deltas.shape[1])
    for t in reversed(range(len(deltas))):
        running = deltas[t] + gamma * c[t] * carries_on[t] * running
        corrections[t] = running
    targets = values + corrections
    # The value of what a step leads to is its target, where the fragment has one.
    next_targets = next_values.copy()
    next_targets[:-1] = np.where(carries_on[:-1], targets[1:], next_values[:-1])
    return targets, rho * (rewards + gamma * next_targets - values)
