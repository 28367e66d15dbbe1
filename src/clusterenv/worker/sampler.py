"""Policy × envs → fragment: the hot path of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from clusterenv.policies.copy import PolicyCopy
from clusterenv.randomness import SlotRandom
from clusterenv.wire.codec import Array
from clusterenv.wire.spaces import join_leaves, leaves_of
from clusterenv.worker.rows import Outcome, fill, fill_flags
from clusterenv.worker.stepper import Stepper, UserCodeError


class Sampler:
    """Lets a policy copy act in the envs of a worker."""

    def __init__(
        self, stepper: Stepper, slots: Sequence[int], space: Space[Any], copy: PolicyCopy, seed: int
    ) -> None:
        self._stepper, self._slots, self._space, self._copy = stepper, slots, space, copy
        self._leaves = leaves_of(space)
        if not all(leaf.is_array for leaf in self._leaves):
            raise TypeError(f"a policy cannot act on {space}: parts of it are no arrays")
        self._rng = SlotRandom(seed, slots)
        self._step = 0

    def collect(self, current: Outcome, num_steps: int) -> tuple[dict[str, Array], Outcome]:
        """``num_steps`` steps from ``current`` on: named arrays, and where the envs are now."""
        count = len(self._slots)
        observations = [
            np.empty((num_steps + 1, count, *leaf.shape), leaf.dtype) for leaf in self._leaves
        ]
        rewards = np.empty((num_steps, count))
        terminated, truncated = np.empty((2, num_steps, count), np.bool_)
        acted_by_step, finals = [], []
        self._put(observations, 0, current)
        for t in range(num_steps):
            acted = self._act([leaf[t] for leaf in observations])
            current = self._stepper.step_for_rollout(self._slots, acted.actions)
            self._put(observations, t + 1, current)
            fill_flags(rewards[t], terminated[t], truncated[t], current)
            acted_by_step.append(acted)
            finals += [(t, s, i["final_obs"]) for s, i in current.infos if "final_obs" in i]
        arrays = {f"observations/{i}": array for i, array in enumerate(observations)}
        arrays |= {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        arrays["actions"] = np.stack([acted.actions for acted in acted_by_step])
        for name in acted_by_step[0].outputs:
            arrays[f"outputs/{name}"] = np.stack([acted.outputs[name] for acted in acted_by_step])
        return arrays | self._finals(finals), current

    def _act(self, leaves: list[Array]) -> Any:
        self._rng.go_to(self._step)
        self._step += 1
        try:
            return self._copy.policy.act(join_leaves(self._space, leaves), None, self._rng)
        except Exception as error:
            raise UserCodeError(None) from error

    def _put(self, observations: list[Array], t: int, outcome: Outcome) -> None:
        for leaf, array in zip(self._leaves, observations, strict=True):
            fill(array[t], outcome.column(leaf), leaf)

    def _finals(self, finals: list[tuple[int, int, Any]]) -> dict[str, Array]:
        arrays = {
            "finals/steps": np.array([t for t, _, _ in finals], np.int64),
            "finals/slots": np.array([slot for _, slot, _ in finals], np.int64),
        }
        for index, leaf in enumerate(self._leaves):
            column = np.empty((len(finals), *leaf.shape), leaf.dtype)
            if finals:
                fill(column, [leaf.of(observation) for _, _, observation in finals], leaf)
            arrays[f"finals/{index}"] = column
        return arrays
