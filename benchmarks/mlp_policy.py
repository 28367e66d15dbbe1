"""The actor of ``examples/ppo.py`` without torch: a worker starts in a fraction of the time.

The arrays are those of the module itself: what the learner changes, the next publish sends.
"""

from typing import Any

import numpy as np

from clusterenv import NumpyPolicy
from clusterenv.distributions import Categorical


def distribution_of(weights: dict[str, Any], observations: Any) -> Categorical:
    """Two layers of tanh and one without."""
    values = np.asarray(observations, np.float32)
    for layer in (0, 2, 4):
        values = values @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        values = np.tanh(values) if layer < 4 else values
    return Categorical(values)


def mlp_policy(actor: Any) -> NumpyPolicy:
    """A policy of the arrays of a torch module."""
    arrays = {name: tensor.detach().numpy() for name, tensor in actor.named_parameters()}
    return NumpyPolicy(distribution_of, arrays)
