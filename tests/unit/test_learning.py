"""What learners may use, against its definition, one episode at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.learning import decoupled_loss, gae, importance_weights, vtrace
from clusterenv.rollout import Episodes, Finals, Rollout


def make_rollout(rng, num_steps, num_envs, ends):
    """A rollout of random numbers; `ends[t, i]` is 0 (goes on), 1 (terminated), 2 (truncated)."""
    steps, columns = np.nonzero(ends)
    final_values = rng.normal(size=len(steps))
    empty = np.zeros(0)
    return Rollout(
        slots=np.arange(num_envs),
        versions=np.ones((num_steps, num_envs), np.int64),
        observations=np.zeros((num_steps + 1, num_envs)),
        actions=np.zeros((num_steps, num_envs)),
        rewards=rng.normal(size=(num_steps, num_envs)),
        terminated=np.asarray(ends) == 1,
        truncated=np.asarray(ends) == 2,
        outputs={"value": rng.normal(size=(num_steps, num_envs))},
        distribution={},
        last_values=rng.normal(size=num_envs),
        state=None,
        finals=Finals(steps, columns, np.zeros(len(steps)), final_values),
        episodes=Episodes(empty, empty, empty),
    )


def slow_gae(rollout, gamma, gae_lambda):
    """For each step the discounted sum of what surprises from there to the episode's end."""
    final_value = {
        (step, column): value
        for step, column, value in zip(
            rollout.finals.steps, rollout.finals.columns, rollout.finals.values, strict=True
        )
    }
    values, num_steps = rollout.outputs["value"], rollout.num_steps
    advantages = np.zeros_like(rollout.rewards)
    for column in range(rollout.rewards.shape[1]):
        for start in range(num_steps):
            weight = 1.0
            for t in range(start, num_steps):
                if rollout.terminated[t, column]:
                    worth_of_the_rest = 0.0
                elif rollout.truncated[t, column]:
                    worth_of_the_rest = final_value[t, column]
                elif t + 1 < num_steps:
                    worth_of_the_rest = values[t + 1, column]
                else:
                    worth_of_the_rest = rollout.last_values[column]
                surprise = (
                    rollout.rewards[t, column] + gamma * worth_of_the_rest - values[t, column]
                )
                advantages[start, column] += weight * surprise
                weight *= gamma * gae_lambda
                if rollout.terminated[t, column] or rollout.truncated[t, column]:
                    break
    return advantages


@given(
    seed=st.integers(0, 10**6),
    num_steps=st.integers(1, 12),
    num_envs=st.integers(1, 4),
    gamma=st.floats(0.0, 1.0),
    gae_lambda=st.floats(0.0, 1.0),
)
def test_advantages_are_what_the_definition_says(seed, num_steps, num_envs, gamma, gae_lambda):
    rng = np.random.default_rng(seed)
    ends = rng.choice(3, size=(num_steps, num_envs), p=[0.6, 0.2, 0.2])
    rollout = make_rollout(rng, num_steps, num_envs, ends)
    advantages, returns = gae(rollout, gamma, gae_lambda)
    assert np.allclose(advantages, slow_gae(rollout, gamma, gae_lambda))
    assert np.allclose(returns, advantages + rollout.outputs["value"])


def test_an_end_that_is_both_counts_as_terminated():
    rollout = make_rollout(np.random.default_rng(0), 3, 1, np.array([[0], [1], [0]]))
    rollout.truncated[1] = True
    advantages, _ = gae(rollout, 0.9, 0.8)
    assert np.allclose(advantages, slow_gae(rollout, 0.9, 0.8))


def test_a_truncated_episode_is_worth_more_than_a_terminated_one_by_its_final_value():
    terminated = make_rollout(np.random.default_rng(1), 4, 1, np.array([[0], [0], [0], [1]]))
    truncated = make_rollout(np.random.default_rng(1), 4, 1, np.array([[0], [0], [0], [2]]))
    difference = gae(truncated, 0.9, 1.0)[1] - gae(terminated, 0.9, 1.0)[1]
    final_value = truncated.finals.values[0]
    assert np.allclose(difference[:, 0], final_value * 0.9 ** np.arange(4, 0, -1))


def test_other_rewards_may_be_given():
    rollout = make_rollout(np.random.default_rng(2), 6, 2, np.zeros((6, 2)))
    scaled = gae(rollout, 0.9, 0.9, rewards=rollout.rewards * 0.1)
    rollout.rewards[...] *= 0.1
    assert np.allclose(scaled, gae(rollout, 0.9, 0.9))


def test_the_rollout_is_not_changed():
    rollout = make_rollout(np.random.default_rng(3), 6, 2, np.full((6, 2), 2))
    before = rollout.rewards.copy(), rollout.outputs["value"].copy()
    advantages, returns = gae(rollout, 0.9, 0.9)
    advantages[...] = returns[...] = 0.0
    assert np.array_equal(rollout.rewards, before[0])
    assert np.array_equal(rollout.outputs["value"], before[1])


def test_without_values_the_error_says_what_to_do():
    rollout = make_rollout(np.random.default_rng(4), 2, 2, np.zeros((2, 2)))
    rollout.outputs.clear()
    with pytest.raises(ValueError, match="give the policy a `value`"):
        gae(rollout, 0.9, 0.9)


def of_several_agents(num_agents):
    """A rollout whose values, unlike its rewards, have one column per agent."""
    rollout = make_rollout(np.random.default_rng(5), 4, 3, np.zeros((4, 3)))
    rollout.outputs["value"] = np.zeros((4, 3, num_agents))
    rollout.outputs["log_prob"] = np.zeros((4, 3))
    finals = replace(rollout.finals, values=np.zeros((0, num_agents)))
    return replace(rollout, last_values=np.zeros((3, num_agents)), finals=finals)


# Three agents in three envs: NumPy would broadcast the rewards without an error.
@pytest.mark.parametrize("num_agents", [2, 3])
@pytest.mark.parametrize(
    "estimate",
    [
        pytest.param(lambda rollout: gae(rollout, 0.9, 0.9), id="gae"),
        pytest.param(lambda rollout: vtrace(rollout, np.zeros((4, 3)), 0.9), id="vtrace"),
    ],
)
def test_values_of_several_agents_are_refused_with_what_to_do(estimate, num_agents):
    message = rf"values have shape \(4, 3, {num_agents}\), rewards \(4, 3\): split .*by_agent first"
    with pytest.raises(ValueError, match=message):
        estimate(of_several_agents(num_agents))


RNG = np.random.default_rng(11)


def test_importance_weights_are_cut():
    found = importance_weights(np.log([0.5, 0.1, 0.9]), np.log([0.25, 0.2, 0.1]), cap=1.5)
    assert found == pytest.approx([1.5, 0.5, 1.5])


def tensors(*rows):
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def test_the_decoupled_loss_is_ppos_own_if_nobody_is_behind():
    new, old, advantages = tensors([-0.1, -2.0, -0.5], [-1.0, -1.0, -0.6], [1.0, -2.0, 3.0])
    ratio = (new - old).exp()
    expected = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    assert decoupled_loss(new, old, old, advantages) == pytest.approx(float(expected))


def test_the_decoupled_loss_clips_to_the_proximal_policy_and_weighs_by_who_acted():
    new, proximal, behaviour, advantages = tensors(
        [-0.1, -1.0], [-0.15, -1.0], [-3.0, -1.2], [1.0, -1.0]
    )
    new.requires_grad_()
    loss = decoupled_loss(new, proximal, behaviour, advantages, clip=0.2, cap=2.0)
    first = 2.0 * np.exp(0.05)
    second = np.exp(0.2) * -1.0
    assert float(loss.detach()) == pytest.approx(-(first + second) / 2)
    loss.backward()
    # Far from who acted, but near to the proximal policy: it may still move.
    assert (new.grad != 0).all()


def slow_vtrace(rollout, rho, c, gamma):
    values, nexts = rollout.outputs["value"], rollout.next_values
    ended = rollout.terminated | rollout.truncated
    targets = np.empty_like(values)
    for column in range(values.shape[1]):
        for start in range(len(values)):
            total, weight = values[start, column], 1.0
            for t in range(start, len(values)):
                delta = rollout.rewards[t, column] + gamma * nexts[t, column] - values[t, column]
                total += weight * rho[t, column] * delta
                weight *= gamma * c[t, column]
                if ended[t, column]:
                    break
            targets[start, column] = total
    return targets


def test_vtrace_is_what_its_definition_says():
    rollout = make_rollout(RNG, 12, 3, RNG.integers(0, 12, (12, 3)) % 7 % 3)
    behaviour = RNG.normal(-1, 0.5, rollout.rewards.shape)
    now = behaviour + RNG.normal(0, 0.5, behaviour.shape)
    rollout.outputs["log_prob"] = behaviour
    targets, advantages = vtrace(rollout, now, 0.9, rho_cap=1.2, c_cap=0.8)
    rho, c = (importance_weights(now, behaviour, cap) for cap in (1.2, 0.8))
    np.testing.assert_allclose(targets, slow_vtrace(rollout, rho, c, 0.9))
    assert advantages.shape == targets.shape


def test_vtrace_on_policy_is_gae_with_lambda_one():
    rollout = make_rollout(RNG, 12, 3, RNG.integers(0, 12, (12, 3)) % 7 % 3)
    rollout.outputs["log_prob"] = np.zeros_like(rollout.rewards)
    targets, _ = vtrace(rollout, rollout.outputs["log_prob"], 0.9)
    np.testing.assert_allclose(targets, gae(rollout, 0.9, 1.0)[1])


def test_tensors_are_refused_with_what_to_do():
    rollout = make_rollout(np.random.default_rng(5), 4, 3, np.zeros((4, 3))).torch()
    with pytest.raises(TypeError, match=r"gae takes .* arrays: call it before rollout.torch\(\)"):
        gae(rollout, 0.9, 0.9)
    with pytest.raises(TypeError, match="vtrace takes"):
        vtrace(rollout, np.zeros((4, 3)), 0.9)


def test_minibatches_take_a_seed_or_a_generator():
    rollout = make_rollout(np.random.default_rng(5), 4, 3, np.zeros((4, 3)))
    batches = [batch.tolist() for batch in rollout.minibatches(5, 7)]
    assert batches == [b.tolist() for b in rollout.minibatches(5, np.random.default_rng(7))]
    assert [len(batch) for batch in batches] == [5, 5, 2]
    assert sorted(row for batch in batches for row in batch) == list(range(12))
