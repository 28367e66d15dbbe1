"""A rollout's arrays as tensors: the same numbers in the same structures, and no needless copy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from clusterenv.rollout import Episodes, Finals, Fragment, Rollout
from tests.contract.replay import arrays_of, leaves

T, N = 4, 3


def rollout(kind=Rollout):
    """Two episodes have ended: one terminated at (1, 0), one was truncated at (2, 2)."""
    rng = np.random.default_rng(0)
    steps, columns = np.array([1, 2]), np.array([0, 2])
    terminated, truncated = np.zeros((2, T, N), bool)
    terminated[1, 0] = truncated[2, 2] = True
    return kind(
        slots=np.arange(N),
        versions=np.ones((T, N), np.int64),
        observations={"image": rng.integers(0, 256, (T + 1, N, 2, 2), np.uint8), "text": words()},
        actions=(rng.normal(size=(T, N)), rng.integers(0, 2, (T, N))),
        rewards=rng.normal(size=(T, N)),
        terminated=terminated,
        truncated=truncated,
        outputs={"value": rng.normal(size=(T, N)).astype(np.float32)},
        distribution={},
        last_values=rng.normal(size=N).astype(np.float32),
        state=None,
        finals=Finals(
            steps,
            columns,
            {"image": np.full((2, 2, 2), 9, np.uint8), "text": words()[0, :2]},
            np.array([5.0, 6.0], np.float32),
        ),
        episodes=Episodes(columns, np.array([1.0, 2.0]), np.array([2, 3])),
    )


def words():
    return np.full((T + 1, N), "word", object)


@pytest.mark.parametrize("kind", [Rollout, Fragment])
def test_on_the_cpu_tensors_are_the_arrays_memory(kind):
    arrays = rollout(kind)
    tensors = arrays.torch()
    assert type(tensors) is kind
    for name, array in arrays_of(replace_words(arrays)).items():
        tensor = dict(named_tensors(tensors))[name]
        assert isinstance(tensor, torch.Tensor), name
        assert tensor.data_ptr() == array.__array_interface__["data"][0], name
    arrays.rewards[1, 2] = 77.0
    assert tensors.rewards[1, 2] == 77.0


def replace_words(fragment):
    """Without what PyTorch has no dtype for."""
    finals = replace(fragment.finals, observations=fragment.finals.observations["image"])
    return replace(fragment, observations=fragment.observations["image"], finals=finals)


def named_tensors(fragment):
    fragment = replace_words(fragment)
    named = {**vars(fragment), **vars(fragment.finals), **vars(fragment.episodes)}
    named["finals.observations"] = fragment.finals.observations
    named["observations"] = fragment.observations
    named["episodes.slots"], named["slots"] = fragment.episodes.slots, fragment.slots
    return [
        (f"{name}/{index}", leaf)
        for name, tree in named.items()
        for index, leaf in enumerate(leaves(tree))
    ]


def test_structures_stay_and_text_stays_an_array():
    tensors = rollout().torch()
    assert sorted(tensors.observations) == ["image", "text"]
    assert tensors.observations["text"].dtype == object
    assert [tensor.dtype for tensor in tensors.actions] == [torch.float64, torch.int64]
    assert tensors.state is None
    assert tensors.terminated.dtype is torch.bool
    assert "torch.uint8" in repr(replace(tensors, observations=tensors.observations["image"]))


def test_what_is_computed_from_tensors_is_what_is_computed_from_arrays():
    arrays = replace_words(rollout())
    tensors = arrays.torch()
    assert torch.equal(tensors.next_observations, torch.from_numpy(arrays.next_observations))
    assert torch.equal(tensors.next_values, torch.from_numpy(arrays.next_values))
    assert tensors.next_values[1, 0] == 0.0
    assert tensors.next_values[2, 2] == 6.0
    flat = tensors.flatten(tensors.rewards)
    rows = next(tensors.minibatches(5, np.random.default_rng(1)))
    same = next(arrays.minibatches(5, np.random.default_rng(1)))
    assert np.array_equal(flat[rows].numpy(), arrays.flatten(arrays.rewards)[same])


def test_elsewhere_tensors_are_on_that_device():
    tensors = replace_words(rollout()).torch("meta")
    assert tensors.rewards.device.type == tensors.finals.values.device.type == "meta"


def test_a_gpu_gets_them_out_of_pinned_memory_while_the_caller_goes_on(monkeypatch):
    calls = []

    def pin(tensor):
        calls.append("pinned")
        return tensor

    def to(tensor, device, non_blocking=False):
        calls.append((device.type, device.index, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    replace_words(rollout()).torch("cuda:1")
    assert calls[:2] == ["pinned", ("cuda", 1, True)]
    assert len(set(calls)) == 2
