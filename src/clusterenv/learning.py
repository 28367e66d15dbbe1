"""Small functions that a learner may use; nothing else here knows about learning."""

from __future__ import annotations

import numpy as np

from clusterenv.rollout import Rollout
from clusterenv.wire.codec import Array


def gae(
    rollout: Rollout, gamma: float, gae_lambda: float, rewards: Array | None = None
) -> tuple[Array, Array]:
    """Generalised advantage estimates and returns, [T, N] each.

    An episode that *terminated* is worth nothing after its end; one that was *truncated* goes on
    with the value of its true last observation.

    Args:
        rollout: With the output ``value`` (see :attr:`Rollout.next_values`).
        gamma: Discount per step.
        gae_lambda: How far to look before trusting the value function.
        rewards: Instead of ``rollout.rewards``, e.g. scaled.

    Returns:
        ``advantages`` and ``returns = advantages + values``.
    """
    rewards = rollout.rewards if rewards is None else rewards
    next_values = rollout.next_values
    values = rollout.outputs["value"]
    deltas = rewards + gamma * next_values - values
    carries_on = ~(rollout.terminated | rollout.truncated)
    advantages = np.empty_like(deltas)
    running = np.zeros(deltas.shape[1])
    for t in reversed(range(len(deltas))):
        running = deltas[t] + gamma * gae_lambda * carries_on[t] * running
        advantages[t] = running
    return advantages, advantages + values
