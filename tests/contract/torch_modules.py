"""Small modules of every kind that may act, and what they were trained to be is of no matter."""

import torch
from torch import distributions as td
from torch import nn

from clusterenv import distributions


class Net(nn.Module):
    """A linear map of normalised observations, which `head` makes a distribution of."""

    def __init__(self, inputs, outputs, head, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.actor, self.critic = nn.Linear(inputs, outputs), nn.Linear(inputs, 1)
        self.head = head
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("epsilon", torch.tensor(0.25))

    def features(self, observations):
        return torch.tanh(observations.to(self.actor.weight.dtype) - self.mean)

    def forward(self, observations):
        return self.head(self, self.actor(self.features(observations)))

    def value(self, observations):
        return self.critic(self.features(observations))


def categorical(_, scores):
    return td.Categorical(logits=scores)


def probabilities(_, scores):
    return td.Categorical(probs=scores.softmax(-1))


def normal(_, scores):
    return td.Normal(scores, scores.new_full((1,), 0.5))


def independent_normal(_, scores):
    return td.Independent(td.Normal(scores, torch.full_like(scores, 0.5)), 1)


def squashed_normal(_, scores):
    base = td.Normal(scores, torch.full_like(scores, 0.5))
    return td.Independent(td.TransformedDistribution(base, td.TanhTransform()), 1)


def bernoulli(_, scores):
    return td.Bernoulli(logits=scores)


def independent_bernoulli(_, scores):
    return td.Independent(td.Bernoulli(logits=scores), 1)


def several(_, scores):
    return [td.Categorical(logits=part) for part in scores.split((3, 2, 4), dim=-1)]


def several_of_one_size(_, scores):
    return td.Independent(td.Categorical(logits=scores.unflatten(-1, (2, 3))), 1)


def epsilon_greedy(module, scores):
    return distributions.EpsilonGreedy(scores, module.epsilon.expand(len(scores)))


def distribution_of(module, observations):
    return module(observations)


def value_of(module, observations):
    return module.value(observations)


def both_of(module, observations):
    return module(observations), module.value(observations)


def log_prob_of(found, actions):
    """The log-prob by torch's own means, one per row."""
    if isinstance(found, list):
        columns = zip(found, actions.unbind(-1), strict=True)
        return sum(part.log_prob(column) for part, column in columns)
    if not isinstance(found, td.Distribution):
        return torch.from_numpy(_numpy(found).log_prob(actions.numpy()))
    log_prob = found.log_prob(actions.float() if actions.dtype is torch.int8 else actions)
    return log_prob.reshape(len(log_prob), -1).sum(-1)


def _numpy(found):
    return type(found)(**{name: field.numpy() for name, field in vars(found).items()})


class Memory(nn.Module):
    """A GRU cell: what it did before tells what it does next."""

    def __init__(self, inputs, actions, size=6):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.cell, self.head = nn.GRUCell(inputs, size), nn.Linear(size, actions + 1)

    def forward(self, observations, state):
        hidden = self.cell(torch.sin(observations.float()), state["hidden"])
        scores = 3 * self.head(hidden)
        following = {"hidden": hidden, "age": state["age"] + 1}
        return td.Categorical(logits=scores[:, :-1]), scores[:, -1], following


STATE_SHAPES = {"hidden": (6,), "age": ()}
