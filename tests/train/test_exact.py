"""What bitwise mode rests on: only kernels that repeat, threads that stay, models whose training a shard cannot see."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_exact import own_net
from helpers_train import final_weights, local_run, tiny_dataset, tiny_experiment
from torch import Tensor, nn

from raysweep.data.order import epoch_order, sample_keys
from raysweep.errors import ConfigError
from raysweep.settings import ModelConfig
from raysweep.train import checkpoint
from raysweep.train.exact import ShardedStep, check_bitwise, deterministic
from raysweep.train.runtime import LocalRuntime, Wishes

OWN = ModelConfig(factory="nets:make")


def settings() -> list[Any]:
    cudnn, memory = torch.backends.cudnn, torch.utils.deterministic
    return [
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.benchmark,
        cudnn.deterministic,
        memory.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.get_num_threads(),
    ]


def test_only_deterministic_kernels_run_and_afterwards_all_is_as_it_was() -> None:
    before = settings()
    with contextlib.suppress(KeyError), deterministic(torch.device("cpu")):
        torch.set_num_threads(before[-1] + 1)
        assert settings() == [True, False, False, True, False, before[-1] + 1]
        raise KeyError
    assert settings() == before


def test_the_workspace_of_cublas_is_set_for_the_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with deterministic(torch.device("cuda")):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with deterministic(torch.device("cuda")):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def recorded_threads(place: Path) -> int:
    return int(checkpoint.load(max(place.glob("ckpt-*.pt")))["progress"]["threads"])


def test_a_run_keeps_the_threads_that_it_was_begun_with(tmp_path: Path) -> None:
    before, seen = torch.get_num_threads(), set[int]()
    run = {"train__exactness": "bitwise", "train__epochs": 2}

    def note() -> Wishes:
        seen.add(torch.get_num_threads())
        return Wishes()

    dataset = tiny_dataset(8)
    local_run(tiny_experiment(**run), dataset, tmp_path / "default", wishes=note)
    assert (seen, recorded_threads(tmp_path / "default")) == ({1}, 1)
    seen.clear()
    local_run(tiny_experiment(**run, scale__cpus_per_worker=3), dataset, tmp_path / "three", wishes=note)
    with pytest.warns(RuntimeWarning, match="begun with 3 torch threads"):
        local_run(
            tiny_experiment(**{**run, "train__epochs": 3}, scale__cpus_per_worker=1), dataset, tmp_path / "three", wishes=note
        )
    assert (seen, recorded_threads(tmp_path / "three")) == ({3}, 3)
    local_run(tiny_experiment(), dataset, tmp_path / "ddp")
    assert recorded_threads(tmp_path / "ddp") == 0
    assert torch.get_num_threads() == before


def test_bitwise_learns_what_ddp_learns(tmp_path: Path) -> None:
    weights = {}
    for exactness in ("ddp", "bitwise"):
        experiment = tiny_experiment(
            train__exactness=exactness, data__noise=0.1, model__dropout=0.3, optim__name="sgd", optim__lr=0.1
        )
        _, rows = local_run(experiment, tiny_dataset(20), tmp_path / exactness)
        weights[exactness] = final_weights(tmp_path / exactness), rows[-1]["train_loss"], rows[-1]["grad_norm"]
    for name, value in weights["ddp"][0].items():
        assert torch.allclose(weights["bitwise"][0][name], value, atol=1e-6)
    assert weights["bitwise"][1:] == pytest.approx(weights["ddp"][1:], rel=1e-5)


@pytest.mark.parametrize("num_samples", [1, 5, 16, 19])
def test_shards_hold_each_sample_of_a_step_once_whatever_the_number_of_workers(tmp_path: Path, num_samples: int) -> None:
    experiment = tiny_experiment(train__exactness="bitwise", train__batch_size=16)
    order = epoch_order(0, 1, num_samples)
    keys = sample_keys(0, 1, order)
    cuts = []
    for world_size in (1, 3, 8):
        requests = []
        for rank in range(world_size):
            runtime = LocalRuntime(tmp_path)
            runtime.rank, runtime.world_size = rank, 1
            step = ShardedStep(nn.Linear(1, 1), experiment, runtime, 1)
            step.owned = range(8 * rank // world_size, 8 * (rank + 1) // world_size)
            parts = [step.part(order, keys, number) for number in range(math.ceil(num_samples / 16))]
            requests += [(n, r.samples.tolist(), r.keys.tolist()) for n, p in enumerate(parts) for r in p.requests]
            assert all(p.num_samples == sum(len(r.samples) for r in p.requests) for p in parts)
        cuts.append(sorted(requests))
    assert sorted(sample for _, samples, _ in cuts[0] for sample in samples) == sorted(order.tolist())
    assert all(key == [int(keys[order.tolist().index(s)]) for s in samples] for _, samples, key in cuts[0])
    assert cuts[0] == cuts[1] == cuts[2]


class Counting(nn.Module):
    """Keeps a running mean of its inputs, as quantisation and whitening layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros(()))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.level = 0.9 * self.level + 0.1 * x.mean().detach()
        return x * self.scale


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)), "batch normalisation in model.factory nets:make .* GroupNorm"),
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)), "batch normalisation"),
        (nn.Sequential(Counting()), r"changes the buffers 0\.level of model.factory nets:make"),
        (nn.utils.spectral_norm(nn.Conv2d(1, 3, 3)), "changes the buffers weight_u"),
    ],
)
def test_a_model_whose_training_depends_on_the_shards_of_a_worker_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_bitwise(OWN, model, (4, 6, 1))


def test_other_models_are_not_refused_and_draw_nothing() -> None:
    models = own_net(), nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4))
    state = torch.get_rng_state()
    for model in models:
        check_bitwise(OWN, model, (4, 6, 1))
    assert torch.equal(torch.get_rng_state(), state)
