"""What the head's own copy of a policy returns: the standard that each host's answers must meet.

If hosts were compared with each other, the first to answer would decide what is right.
"""

from __future__ import annotations

import logging
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import Space

from clusterenv.arrays import Array
from clusterenv.head.publisher import Publisher
from clusterenv.plain.spaces import join_leaves, leaves_of
from clusterenv.policies import recurrent
from clusterenv.policies.base import Acted, Policy
from clusterenv.protocol.fragments import Kinds
from clusterenv.randomness import SlotRandom

_log = logging.getLogger("clusterenv")
_MOST_TRIES = 8
_KEPT = 16

Observe = Callable[[], list[Array]]
"""Returns some observations, one row each, by leaf."""


class OwnPolicies:
    """Lets each policy act once at the head. Used by the user's thread.

    Args:
        publisher: Has the policies.
        observation_space: That of one env.
        action_space: That of one env.
    """

    def __init__(
        self, publisher: Publisher, observation_space: Space[Any], action_space: Space[Any]
    ) -> None:
        self._publisher = publisher
        self._observation_space = observation_space
        self._leaves, self._action_leaves = leaves_of(observation_space), leaves_of(action_space)
        # By policy, in order of arrival; None if it cannot act here.
        self._kinds: dict[int, Kinds | None] = {}
        self._tries: dict[int, int] = {}

    def knows(self, policy_id: int) -> bool:
        """Whether this policy has acted here."""
        return self._kinds.get(policy_id) is not None

    def kinds_of(self, policy_id: int, observe: Observe) -> Kinds | None:
        """Shape and dtype of a row of each array this policy makes; None if it cannot act here.

        It acts on what ``observe`` returns or, if it raises, on zeros, or on samples of the space.
        """
        if policy_id not in self._kinds:
            found = self._try(policy_id, observe)
            self._tries[policy_id] = self._tries.get(policy_id, 0) + 1
            if found is None and self._tries[policy_id] < _MOST_TRIES:
                return None
            self._keep(policy_id, found)
        return self._kinds[policy_id]

    def _keep(self, policy_id: int, found: Kinds | None) -> None:
        self._kinds[policy_id] = found
        self._tries.pop(policy_id, None)
        if len(self._kinds) > _KEPT:
            del self._kinds[next(iter(self._kinds))]

    def _try(self, policy_id: int, observe: Observe) -> Kinds | None:
        introduced = self._publisher.introduced(policy_id)
        if introduced is None or not all(leaf.is_array for leaf in self._leaves):
            return None
        with _undisturbed():
            for given in (observe, self._zeros, self._samples):
                try:
                    # A fresh copy each time: the last one may have stopped halfway.
                    return self._acts_on(pickle.loads(introduced.policy), given())
                except Exception as error:  # the user's code, on what may be nonsense
                    _log.debug("policy %d does not act at the head: %r", policy_id, error)
        return None

    def _acts_on(self, policy: Policy, leaves: list[Array]) -> Kinds:
        count = len(leaves[0])
        observations = join_leaves(self._observation_space, [leaf.copy() for leaf in leaves])
        acted = policy.act(observations, None, SlotRandom(0, range(count)))
        return {name: (array.shape[1:], array.dtype) for name, array in self._named(acted, count)}

    def _named(self, acted: Acted, count: int) -> Iterator[tuple[str, Array]]:
        """All arrays that it made, under their names in a fragment."""
        for index, leaf in enumerate(self._action_leaves):
            yield f"actions/{index}", np.asarray(leaf.of(acted.actions))
        distribution = {} if acted.distribution is None else acted.distribution.arrays()
        for prefix, arrays in (("outputs", acted.outputs), ("distribution", distribution)):
            for name, array in arrays.items():
                yield f"{prefix}/{name}", np.asarray(array)
        yield from recurrent.named_arrays(acted.state, acted.state).items()
        if "value" in acted.outputs:
            values = np.asarray(acted.outputs["value"])
            yield from (("last_values", values), ("finals/values", values))

    def _zeros(self) -> list[Array]:
        return [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in self._leaves]

    def _samples(self) -> list[Array]:
        sample = self._observation_space.sample()
        return [np.asarray(leaf.of(sample), leaf.dtype)[None] for leaf in self._leaves]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave no trace: restore the random states, and suppress warnings."""
    numbers, numpys = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    torchs = None if torch is None else torch.get_rng_state()
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(numbers)
        np.random.set_state(numpys)
        if torch is not None:
            torch.set_rng_state(torchs)
