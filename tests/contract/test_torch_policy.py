"""Any torch module acts on the workers as it would at the head."""

from functools import partial

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium.spaces import MultiDiscrete
from torch import nn

from clusterenv.policies.torch import TorchPolicy
from tests.contract import torch_modules as modules
from tests.contract.replay import Lives
from tests.contract.torch_modules import Net
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.environments.catalogue import ENVS
from tests.environments.counting import Count

NUM_ENVS = 4
SEED = 5
TWO_OF_THREE = partial(Count, action_space=MultiDiscrete([3, 3]))

# (env, inputs, outputs) for each way to make a distribution of scores.
KINDS = {
    "categorical": (ENVS["short CartPole"], 4, 2),
    "probabilities": (ENVS["short CartPole"], 4, 2),
    "epsilon_greedy": (ENVS["short CartPole"], 4, 2),
    "normal": (ENVS["Pendulum"], 3, 1),
    "independent_normal": (ENVS["Pendulum"], 3, 1),
    "squashed_normal": (ENVS["Pendulum"], 3, 1),
    "bernoulli": (ENVS["binary actions"], 3, 4),
    "independent_bernoulli": (ENVS["binary actions"], 3, 4),
    "several": (ENVS["several discrete actions"], 3, 9),
    "several_of_one_size": (TWO_OF_THREE, 3, 6),
}


def net(kind, seed=0):
    _, inputs, outputs = KINDS[kind]
    return Net(inputs, outputs, getattr(modules, kind), seed)


def assert_acted(module, rollout, atol=1e-5):
    """Fail unless the log-probs are those that the module gives here, in one pass."""
    with torch.no_grad():
        for t in range(rollout.num_steps):
            found = module(torch.from_numpy(rollout.observations[t]))
            expected = modules.log_prob_of(found, torch.from_numpy(rollout.actions[t]))
            recorded = rollout.outputs["log_prob"][t]
            assert np.allclose(recorded, expected.float().numpy(), atol=atol), f"step {t}"


@pytest.fixture(scope="module")
def cartpoles():
    with cluster_env("in-process", ENVS["short CartPole"], NUM_ENVS, 2) as envs:
        yield envs


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_that_returns_a_distribution_acts(kind):
    make, *_ = KINDS[kind]
    module, lives = net(kind), Lives(make, NUM_ENVS, SEED)
    with cluster_env("in-process", make, NUM_ENVS, 2) as envs:
        envs.reset(seed=SEED)
        for _ in range(2):
            rollout = envs.rollout(module, 8)
            lives.assert_lived(rollout)
            assert_acted(module, rollout)
            assert np.unique(rollout.actions).size > 1
        assert rollout.actions.dtype == envs.single_action_space.dtype


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_with_a_value_acts_and_its_values_come_back(kind):
    make, *_ = KINDS[kind]
    module = net(kind)
    with cluster_env("in-process", make, NUM_ENVS, 2) as envs:
        rollout = envs.rollout(TorchPolicy(module, value=modules.value_of), 14)
    assert_acted(module, rollout)
    assert_values(module, rollout)


def assert_values(module, rollout):
    with torch.no_grad():
        observations = torch.from_numpy(rollout.observations)
        values = module.value(observations).squeeze(-1).float().numpy()
        finals = module.value(torch.from_numpy(rollout.finals.observations)).squeeze(-1)
    assert np.allclose(rollout.outputs["value"], values[:-1], atol=1e-5)
    assert np.allclose(rollout.last_values, values[-1], atol=1e-5)
    assert np.allclose(rollout.finals.values, finals.float().numpy(), atol=1e-5)
    assert len(finals) > 0


FUNCTIONS = {
    "two functions": (modules.distribution_of, modules.value_of),
    "one function for both": (modules.both_of, None),
    "lambdas": (lambda m, o: m(o), lambda m, o: m.value(o)),
}


@pytest.mark.parametrize("functions", FUNCTIONS)
def test_distribution_and_value_may_be_functions(cartpoles, functions):
    module = net("categorical")
    rollout = cartpoles.rollout(TorchPolicy(module, *FUNCTIONS[functions]), 14)
    assert_acted(module, rollout)
    assert_values(module, rollout)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_training_steps_reach_the_workers(transport):
    module = net("categorical")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    with cluster_env(transport, ENVS["short CartPole"], NUM_ENVS, 2) as envs:
        for version in range(1, 5):
            rollout = envs.rollout(module, 6)
            assert (rollout.versions == version).all()
            assert_acted(module, rollout)
            loss = module(torch.from_numpy(rollout.observations[0])).logits[:, 0].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize(("name", "value"), [("mean", 0.7), ("epsilon", 0.9)])
def test_buffers_are_weights(cartpoles, name, value):
    module = net("epsilon_greedy")
    cartpoles.reset(seed=SEED)
    before = cartpoles.rollout(module, 5)
    getattr(module, name).fill_(value)
    after = cartpoles.rollout(module, 30)
    assert (after.versions == before.versions[0, 0] + 1).all()
    assert_acted(module, after)


def test_workers_act_with_one_thread_and_without_gradients():
    def facts(_, observations):
        threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
        return torch.full((len(observations),), 10.0 * threads + grad)

    with cluster_env("tcp", ENVS["short CartPole"], 2, 1) as envs:
        rollout = envs.rollout(TorchPolicy(net("categorical"), value=facts), 2)
    assert (rollout.outputs["value"] == 10.0).all()


WRAPPERS = {
    "compiled": torch.compile,
    "data parallel": nn.DataParallel,
    "compiled in data parallel": lambda module: nn.DataParallel(torch.compile(module)),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_modules_are_looked_through(cartpoles, wrapper):
    module = net("categorical")
    wrapped = WRAPPERS[wrapper](module)
    for policy in (wrapped, TorchPolicy(wrapped, modules.distribution_of)):
        assert_acted(module, cartpoles.rollout(policy, 4))
        with torch.no_grad():
            module.actor.bias += 0.5
        assert_acted(module, cartpoles.rollout(policy, 4))


def test_distributed_data_parallel_is_looked_through(cartpoles):
    module = net("categorical")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        wrapped = nn.parallel.DistributedDataParallel(module)
        assert_acted(module, cartpoles.rollout(wrapped, 4))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_weights_of_other_dtypes_arrive_exactly(cartpoles, dtype):
    module = net("categorical").to(dtype)
    for _ in range(2):
        # One row at a time, as the smallest kernels may round otherwise.
        assert_acted(module, cartpoles.rollout(module, 5), atol=2e-2)
        with torch.no_grad():
            module.actor.weight += 0.25


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_values_of_other_dtypes_come_back(cartpoles, dtype):
    module = net("categorical").to(dtype)
    rollout = cartpoles.rollout(TorchPolicy(module, value=modules.value_of), 3)
    with torch.no_grad():
        expected = module.value(torch.from_numpy(rollout.observations[:-1])).squeeze(-1)
    assert np.allclose(rollout.outputs["value"], expected.float().numpy(), atol=2e-2)


def test_a_module_without_parameters_acts(cartpoles):
    rollout = cartpoles.rollout(Uniform(), 50)
    assert np.allclose(rollout.outputs["log_prob"], np.log(0.5))
    assert 0.3 < rollout.actions.mean() < 0.7


class Uniform(nn.Module):
    def forward(self, observations):
        return torch.distributions.Categorical(logits=torch.zeros(len(observations), 2))


class Normalised(Net):
    """Follows its observations' mean while it trains, as many learners have it."""

    def features(self, observations):
        if self.training:
            self.mean += 0.1 * (observations.mean(0) - self.mean)
        return super().features(observations)


def test_a_copy_on_a_worker_does_not_train(cartpoles):
    """Its weights would no longer be those of the version that it names."""
    module = Normalised(4, 2, modules.categorical)
    rollouts = [cartpoles.rollout(module, 6) for _ in range(2)]
    module.eval()
    for rollout in rollouts:
        assert_acted(module, rollout)


def test_the_same_module_passed_again_is_no_new_version(cartpoles):
    module = net("categorical")
    first = cartpoles.rollout(module, 3)
    assert np.array_equal(cartpoles.rollout(module, 3).versions, first.versions)
    cartpoles.reset(seed=0)
    cartpoles.step(module)
    cartpoles.reset(seed=0)
    assert np.array_equal(cartpoles.rollout(module, 3).versions, first.versions)


@pytest.mark.parametrize("functions", [(modules.both_of, None), (None, modules.value_of)])
def test_a_value_that_needs_what_stays_at_the_head_is_an_error_and_not_stale(cartpoles, functions):
    policy = TorchPolicy(net("categorical"), *functions, stays_at_head=("critic",))
    text = r"value is NaN\. If it needs critic, .*with_values"
    with pytest.raises(ValueError, match=text) as told:
        cartpoles.rollout(policy, 4)
    assert "by the policy" in told.value.__notes__[-1]
    # At the head nothing is missing.
    assert not np.isnan(policy.act(np.zeros((2, 4), np.float32), None, None).outputs["value"]).any()


def of_actor(module, observations):
    return torch.distributions.Categorical(logits=module["actor"](observations))


def test_what_stays_at_the_head_costs_no_bytes():
    module = torch.nn.ModuleDict(
        {"actor": torch.nn.Linear(4, 2), "critic": torch.nn.Linear(1000, 100)}
    )
    module["critic"].register_buffer("count", torch.zeros(1000, dtype=torch.int64))
    whole, acting = (
        len(cloudpickle.dumps(TorchPolicy(module, of_actor, stays_at_head=parts)))
        for parts in ((), ("critic",))
    )
    assert whole > 400_000
    assert acting < 10_000


def test_weights_that_are_shared_with_what_acts_travel():
    module = torch.nn.ModuleDict({"actor": torch.nn.Linear(4, 2), "critic": torch.nn.Linear(4, 2)})
    module["critic"].weight = module["actor"].weight
    policy = TorchPolicy(module, of_actor, stays_at_head=("critic",))
    copy = cloudpickle.loads(cloudpickle.dumps(policy))
    assert torch.equal(copy.module["actor"].weight, module["actor"].weight)
    assert copy.module["critic"].bias.isnan().all()


def lstm_of(module, observations, state):
    return module(observations), (state["hidden"], state["cell"])


def test_a_recurrent_state_of_another_form_is_told(cartpoles):
    shapes = {"hidden": (3,), "cell": (3,)}
    policy = TorchPolicy(net("categorical"), lstm_of, state_shapes=shapes)
    with pytest.raises(TypeError, match=r"with hidden, cell as in state_shapes; .* a tuple"):
        cartpoles.rollout(policy, 4)


class Remembers(torch.nn.Linear):
    def forward(self, observations, state):
        return super().forward(observations), state


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"module": Remembers(4, 2)}, r"forward is called with \(observations\), .*needs state_sh"),
        (
            {"module": torch.nn.Linear(4, 2), "state_shapes": {"hidden": (2,)}},
            r"with \(observations, state\), but takes \(input: .*without state_shapes=",
        ),
        (
            {"module": torch.nn.Linear(4, 2), "distribution": lambda module: module},
            r"distribution is called with \(module, observations\), but takes \(module\)",
        ),
        (
            {"module": torch.nn.Linear(4, 2), "value": lambda *, module: module},
            r"value is called with \(module, observations\)",
        ),
        ({"module": Remembers(4, 2), "state_shapes": (2,)}, r"state_shapes=\(2,\): pass a dict"),
        (
            {"module": Remembers(4, 2), "state_shapes": {"hidden": [(2,), (3,)]}},
            r"state_shapes\['hidden'\]=\[\(2,\), \(3,\)\]: pass the shape of one slot",
        ),
    ],
)
def test_functions_and_shapes_that_do_not_fit_are_told_at_once(arguments, text):
    with pytest.raises(TypeError, match=text):
        TorchPolicy(**arguments)


def test_one_number_is_a_shape(cartpoles):
    policy = TorchPolicy(
        net("categorical"),
        lambda module, observations, state: (module(observations), state),
        state_shapes={"hidden": 3},
    )
    assert cartpoles.rollout(policy, 4).state["hidden"].shape == (NUM_ENVS, 3)
