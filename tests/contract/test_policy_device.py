"""Where the copies of a torch policy act."""

import numpy as np
import pytest
import torch

from clusterenv.policies.torch import TorchPolicy, device_of_worker
from tests.contract.test_torch_policy import assert_acted, net
from tests.contract.transports import cluster_env
from tests.environments.catalogue import ENVS

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture(scope="module")
def envs():
    with cluster_env("shared_memory", ENVS["short CartPole"], 2, 1) as envs:
        yield envs


def test_copies_act_on_the_device_that_was_asked_for(envs):
    envs.reset(seed=1)
    expected = envs.rollout(TorchPolicy(net("categorical")), 5)
    envs.reset(seed=1)
    rollout = envs.rollout(TorchPolicy(net("categorical"), device="cpu"), 5)
    np.testing.assert_array_equal(rollout.actions, expected.actions)
    assert_acted(net("categorical"), rollout)


@no_gpu
def test_a_worker_without_a_gpu_says_so_and_what_to_do(envs):
    envs.reset(seed=1)
    message = r"device='cuda:\{worker\}'\): worker 0 finds 0 GPUs with torch .*leave out device="
    with pytest.raises(Exception, match=message):
        envs.rollout(TorchPolicy(net("categorical"), device="cuda:{worker}"), 5)
    envs.reset(seed=1)
    assert envs.rollout(TorchPolicy(net("categorical")), 5).rewards.shape == (5, 2)


@pytest.mark.parametrize("device", ["gpu", "cuda:{host}", "cuda:{worker", "", 3])
def test_a_device_that_torch_does_not_know_is_refused(device):
    with pytest.raises(ValueError, match="is unknown to torch: pass 'cpu', 'cuda'"):
        TorchPolicy(net("categorical"), device=device)


def test_a_device_without_numbers_is_refused():
    with pytest.raises(ValueError, match="'meta' has no numbers"):
        TorchPolicy(net("categorical"), device="meta")


@pytest.mark.parametrize(
    ("device", "worker", "expected"),
    [
        ("cuda:{worker}", 5, "cuda:1"),
        ("cuda", 1, "cuda"),
        ("cuda:1", 0, "cuda:1"),
        ("cpu", 3, "cpu"),
    ],
)
def test_workers_are_dealt_the_gpus_of_their_host(device, worker, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of_worker(device, worker) == torch.device(expected)


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RuntimeError, match="worker 0 finds 2 GPUs"):
        device_of_worker("cuda:7", 0)
