"""Adaptive policy synchronization: pulls when behaviour has drifted, and moves nothing else."""

from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch

from clusterenv import AdaptiveSync
from clusterenv.learning import with_values
from clusterenv.policies.torch import TorchPolicy
from clusterenv.sync import EVALUATION, PullRate
from tests import inside
from tests.contract.policies import distribution_of, numpy_policy, value_of
from tests.contract.torch_modules import STATE_SHAPES, Memory
from tests.contract.transports import SOCKETS, TRANSPORTS, cluster_env, hosts_of, weight_bytes
from tests.environments.counting import Count

NUM_ENVS = 4
WORKERS = 2
T = 8
NEVER = 1e9


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    return request.param


def adaptive(transport, threshold, max_lag=1000, rows=64, env="CartPole-v1", **kwargs):
    rule = AdaptiveSync(threshold, max_lag, rows=rows, spread=0.0)
    envs = cluster_env(transport, env, NUM_ENVS, WORKERS, **{"sync": rule, **kwargs})
    envs.reset(seed=3)
    return envs


def drift(policy, size):
    for array in policy.weights().values():
        array += size


def causes(envs):
    """Why each host pulled, but to evaluate; all hosts must have done so alike."""
    by_host = {host: [] for host in hosts_of(envs)}
    for pull in envs.ledger.pulls:
        if pull.cause != EVALUATION:
            by_host[pull.host].append(pull.cause)
    first, *others = by_host.values()
    assert all(other == first for other in others)
    return first


def test_unchanged_weights_are_never_pulled_again(transport):
    with adaptive(transport, 1e-6) as envs:
        policy = numpy_policy(envs)
        envs.rollout(policy, T)
        for _ in range(1000):
            envs.publish(policy)
        rollout = envs.rollout(policy, T)
        assert causes(envs) == ["first"]
        assert (rollout.versions == 1).all()


def test_a_skipped_pull_moves_no_weight_bytes(transport):
    with adaptive(transport, NEVER) as envs:
        policy = numpy_policy(envs)
        envs.rollout(policy, T)
        before = weight_bytes(envs)
        for _ in range(20):
            drift(policy, 0.5)
            assert (envs.rollout(policy, T).versions == 1).all()
        assert weight_bytes(envs) == before
        assert causes(envs) == ["first"]
        # On one machine no pull costs bytes on a socket: there is nothing to avoid.
        assert (envs.ledger.bytes_avoided > 0) == (transport in SOCKETS)


@pytest.mark.always_on_four_hosts
def test_what_drifts_beyond_the_threshold_is_pulled_at_once(transport):
    with adaptive(transport, 1e-4) as envs:
        policy = numpy_policy(envs)
        envs.rollout(policy, T)
        policy.weights()["actor"][0] += 20
        rollout = envs.rollout(policy, T)
        assert (rollout.versions == 2).all()
        assert causes(envs) == ["first", "threshold"]


def test_a_cap_on_the_lag_holds_whatever_the_divergence_says(transport):
    with adaptive(transport, NEVER, max_lag=3) as envs:
        policy = numpy_policy(envs)
        for _ in range(10):
            drift(policy, 1e-4)
            version = envs.publish(policy)
            assert version - envs.rollout(policy, T).versions.min() < 3
        assert causes(envs) == ["first", "lag", "lag", "lag"]


def test_the_measured_divergence_is_that_of_the_rows_that_were_collected():
    with adaptive("in-process", NEVER, rows=NUM_ENVS * T) as envs:
        policy = numpy_policy(envs)
        rollout = envs.rollout(policy, T)
        policy.weights()["actor"][0] += 0.3
        envs.publish(policy)
        (measured,) = envs.ledger.measurements
    space = envs.single_action_space
    rows = rollout.flatten(rollout.observations[:-1])
    newest = distribution_of(space, policy.weights(), rows)
    acted = newest.with_arrays(
        {name: rollout.flatten(array) for name, array in rollout.distribution.items()}
    )
    assert measured.host == "host-0.0"
    assert measured.divergence == pytest.approx(acted.kl(newest).mean(), rel=1e-6)
    assert 0 < measured.effective_sample_size < 1


def test_a_weight_that_acting_does_not_use_is_no_divergence():
    with adaptive("in-process", NEVER) as envs:
        policy = numpy_policy(envs)
        envs.rollout(policy, T)
        policy.weights()["critic"][...] += 1
        envs.publish(policy)
        (measured,) = envs.ledger.measurements
        assert (measured.divergence, measured.effective_sample_size) == (0.0, 1.0)


def test_steps_with_a_policy_are_measured_by_their_log_probs(transport):
    with adaptive(transport, 0.05) as envs:
        policy = numpy_policy(envs)
        for _ in range(20):
            *_, info = envs.step(policy)
        assert (info["version"] == 1).all()
        policy.weights()["critic"][...] += 1
        *_, info = envs.step(policy)
        assert (info["version"] == 1).all()
        policy.weights()["actor"][0] += 50
        *_, info = envs.step(policy)
        assert (info["version"] == 3).all()


def test_a_stream_pulls_what_has_drifted_and_stays_within_the_cap(transport):
    with adaptive(transport, 1e-3, max_lag=8) as envs:
        policy = numpy_policy(envs)
        version = envs.publish(policy)
        # By slot: the newest version when its next fragment was asked for.
        known = np.ones(NUM_ENVS, int)
        with closing(envs.stream(T, in_flight=1)) as stream:
            for fragment in islice(stream, 40):
                assert (known[fragment.slots] - fragment.versions.min(0) <= 8).all()
                known[fragment.slots] = version
                policy.weights()["actor"][0] += 0.05
                version = envs.publish(policy)
        pulls = envs.ledger.pulls
        assert "threshold" in {pull.cause for pull in pulls}
        assert len(pulls) < len(hosts_of(envs)) * version


def test_publishing_often_is_measured_rarely():
    with adaptive("in-process", NEVER) as envs:
        policy = numpy_policy(envs)
        envs.publish(policy)
        with closing(envs.stream(T)) as stream:
            for _ in islice(stream, 4):
                for _ in range(256):
                    policy.weights()["actor"][0] += 1e-3
                    envs.publish(policy)
        assert 4 < len(envs.ledger.measurements) <= 4 * 9


def test_recurrent_policies_are_unrolled_from_their_own_state():
    policy = TorchPolicy(Memory(3, 2), state_shapes=STATE_SHAPES)
    policy.module.register_buffer("unused", torch.zeros(1))
    with adaptive("in-process", NEVER, env=Count) as envs:
        for _ in range(3):
            envs.rollout(policy, T)
            policy.module.unused += 1
            envs.publish(policy)
        assert max(m.divergence for m in envs.ledger.measurements) < 1e-6
        with torch.no_grad():
            for parameter in policy.module.parameters():
                parameter += 0.3
        envs.rollout(policy, T)
        assert envs.ledger.measurements[-1].divergence > 1e-4


def test_another_policy_is_pulled_whatever_the_rule(transport):
    with adaptive(transport, NEVER) as envs:
        envs.rollout(numpy_policy(envs), T)
        other = numpy_policy(envs, seed=9)
        rollout = envs.rollout(other, T)
        expected = value_of(other.weights(), rollout.flatten(rollout.observations[:-1]))
        np.testing.assert_allclose(rollout.flatten(rollout.outputs["value"]), expected)


@pytest.mark.parametrize("encoding", ["raw", "bf16", "delta"])
def test_workers_act_with_the_very_weights_of_their_version(transport, encoding):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    policy = TorchPolicy(
        module, lambda m, x: torch.distributions.Categorical(logits=m(x), validate_args=False)
    )
    with adaptive(transport, NEVER, max_lag=1, encoding=encoding) as envs:
        sizes, is_encoded = [], not inside.shares_memory(envs)
        for _ in range(5):
            rollout = envs.rollout(policy, T)
            sizes.append(envs.ledger.pulls[-1].bytes)
            acting = TorchPolicy(torch.nn.Sequential(*module), policy._distribution)
            state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            if encoding != "raw":
                rounded = {name: t.bfloat16().float() for name, t in state.items()}
                module.load_state_dict(rounded)
            rows = rollout.flatten(rollout.observations[:-1])
            newest = acting.act(rows, None, None).distribution
            expected = newest.log_prob(rollout.flatten(rollout.actions))
            recorded = rollout.flatten(rollout.outputs["log_prob"])
            np.testing.assert_allclose(recorded, expected, atol=1e-5)
            module.load_state_dict(state)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter += 1e-4 * torch.randn_like(parameter)
    full = sum(tensor.numel() * 4 for tensor in module.state_dict().values())
    shares = {"raw": [1, 1], "bf16": [0.5, 0.5], "delta": [0.5, 0.3]}[encoding]
    if is_encoded:
        assert sizes[0] == shares[0] * full
        assert sizes[-1] <= shares[1] * full
    else:
        # Nothing went through a socket.
        assert sizes == [0] * 5


def test_a_critic_that_stays_at_the_head_costs_no_bytes_and_no_values():
    class Agent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)

        def forward(self, observations):
            return torch.distributions.Categorical(logits=self.actor(observations))

    agent = Agent()
    policy = TorchPolicy(agent, stays_at_head=("critic",))
    assert set(policy.weights()) == {"actor.weight", "actor.bias"}

    def value(observations):
        with torch.no_grad():
            return agent.critic(torch.from_numpy(observations)).squeeze(-1).numpy()

    with adaptive("in-process", 0.1) as envs:
        rollout = envs.rollout(policy, 60)
        assert weight_bytes(envs) == 4 * (4 * 2 + 2)
    with pytest.raises(ValueError, match="no value function"):
        _ = rollout.next_values
    valued = with_values(rollout, value)
    np.testing.assert_allclose(valued.outputs["value"][5], value(rollout.observations[5]))
    np.testing.assert_allclose(valued.last_values, value(rollout.observations[-1]))
    assert len(rollout.finals.steps)
    np.testing.assert_allclose(valued.finals.values, value(rollout.finals.observations))


def test_a_part_that_is_not_there_cannot_stay_at_the_head():
    with pytest.raises(ValueError, match=r"stays_at_head='crtic': .* are \['bias', 'weight'\]"):
        TorchPolicy(torch.nn.Linear(2, 2), stays_at_head=("crtic",))


def test_a_frozen_run_rings_the_alarm():
    with pytest.warns(UserWarning, match="max_lag"):
        rule = AdaptiveSync(NEVER, max_lag=None)
    with cluster_env("in-process", "CartPole-v1", NUM_ENVS, WORKERS, sync=rule) as envs:
        envs.reset(seed=0)
        policy = numpy_policy(envs)
        actor = policy.weights()["actor"]

        def learn_without_moving():
            for _ in range(30):
                envs.rollout(policy, T)
                actor[0] += 1e-9

        envs.rollout(policy, T)
        actor[0] += 0.5
        with pytest.warns(UserWarning, match="seems frozen"):
            learn_without_moving()


def test_a_budget_of_pulls_is_kept():
    rule = AdaptiveSync(1e-6, max_lag=1000, budget=PullRate(0.2), spread=0.0)
    with cluster_env("in-process", "CartPole-v1", NUM_ENVS, WORKERS, sync=rule) as envs:
        envs.reset(seed=0)
        policy = numpy_policy(envs)
        rng = np.random.default_rng(0)
        for _ in range(250):
            policy.weights()["actor"][...] += rng.normal(0, 0.03, (2, 4))
            envs.rollout(policy, 4)
        late = [pull for pull in envs.ledger.pulls if pull.version > 100]
        assert len(late) / 150 == pytest.approx(0.2, abs=0.05)
