"""The loop computes what a plain PyTorch loop computes, and the same on 1, 2 and 3 workers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_train import final_weights, gloo, local_run, plain_loop, tiny_dataset, tiny_experiment, train_cases

from raysweep.plugins import build_model


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("separate_target", [False, True])
def test_ten_steps_end_with_the_weights_of_a_plain_loop(
    tmp_path: Path, optimizer: str, reduction: str, separate_target: bool
) -> None:
    dataset = tiny_dataset(20, separate_target=separate_target)  # 3 steps an epoch, the last short
    lr = 1e-2 if reduction == "mean" else 1e-3
    overrides: dict[str, Any] = {"optim__name": optimizer, "optim__lr": lr, "train__reduction": reduction}
    # 10 steps: three epochs and one step; the run of four epochs is stopped at its tenth.
    experiment = tiny_experiment(train__epochs=4, **overrides)
    model = build_model(experiment.model, (8, 8, 1), (8, 8, 1), experiment.train.seed)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    expected = plain_loop(model, dataset, experiment, steps=12)
    local_run(experiment, dataset, tmp_path)
    ours = final_weights(tmp_path)
    assert largest_difference(ours, expected) < 1e-6
    assert largest_difference(ours, start) > 1e-4, "the weights must have moved, or equality says nothing"


WORLD_CASES = list(itertools.product([7, 8, 20], ["mean", "sum"]))


def world_cases() -> list[tuple[str, Any, Any]]:
    """Runs that every number of workers must end alike: sizes around and above the batch, both reductions, and all else
    that could follow from the rank: noise, dropout, accumulation, clipping, group normalisation."""
    cases = []
    for size, reduction in WORLD_CASES:
        lr = 1e-2 if reduction == "mean" else 1e-3
        cases.append((f"{size}-{reduction}", tiny_experiment(train__reduction=reduction, optim__lr=lr), tiny_dataset(size)))
    everything = tiny_experiment(
        data__noise=0.1, model__dropout=0.3, model__norm="group", train__micro_batch=2, optim__clip_norm=0.05, optim__lr=1e-2
    )
    cases.append(("everything", everything, tiny_dataset(20)))
    # A step with fewer samples than workers: some shares are empty.
    cases.append(("empty-share", tiny_experiment(train__batch_size=3, optim__lr=1e-2), tiny_dataset(4)))
    return cases


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    places = {}
    for world_size in (1, 2, 3):
        places[world_size] = tmp_path_factory.mktemp(f"world{world_size}")
        gloo(world_size, train_cases, world_cases(), places[world_size])
    return places


@pytest.mark.parametrize("name", [case[0] for case in world_cases()])
@pytest.mark.parametrize("world_size", [2, 3])
def test_weights_and_losses_do_not_depend_on_the_number_of_workers(runs: dict[int, Path], name: str, world_size: int) -> None:
    assert largest_difference(final_weights(runs[1] / name), final_weights(runs[world_size] / name)) < 1e-5
    one, several = (torch.load(runs[n] / name / "rows.pt") for n in (1, world_size))
    assert [row["world_size"] for row in several["rows"]] == [world_size] * 2
    for a, b in zip(one["rows"], several["rows"], strict=True):
        assert (a["epoch"], a["step"], a["lr"]) == (b["epoch"], b["step"], b["lr"])
        for metric in ("train_loss", "val_loss", "grad_norm"):
            assert b[metric] == pytest.approx(a[metric], rel=1e-4)


def test_the_checkpoint_of_two_workers_loads_in_a_plain_process(runs: dict[int, Path]) -> None:
    experiment = tiny_experiment()
    path = max((runs[2] / "20-mean").glob("ckpt-*.pt"))
    state = torch.load(path, weights_only=True)["model"]
    model = build_model(experiment.model, (8, 8, 1), (8, 8, 1), seed=99)
    model.load_state_dict(state, strict=True)


def test_validation_is_the_same_to_the_last_bit_for_the_same_weights(tmp_path: Path) -> None:
    """5 images, batch 2: uneven chunks; more workers than chunks for some."""
    dataset = tiny_dataset(2, num_val=5)
    case = ("val", tiny_experiment(train__batch_size=2, train__epochs=1, optim__lr=1e-30, data__noise=0.1), dataset)
    losses = []
    for world_size in (1, 2, 3, 5):
        gloo(world_size, train_cases, [case], tmp_path / str(world_size))
        losses.append(torch.load(tmp_path / str(world_size) / "val" / "rows.pt")["rows"][0]["val_loss"])
    assert losses == [losses[0]] * 4


def nan_on_rank_1(rank: int, experiment: Any, directory: Path) -> None:
    dataset = tiny_dataset(8)
    x = dataset.samples.x.astype("float32")
    x[dataset.train[-1]] = 1e30  # one sample whose squared error overflows: one rank sees it, all must stop
    broken = type(dataset)(type(dataset.samples)(x, x, None), dataset.train, dataset.val, "broken")
    train_cases(rank, [("nan", experiment, broken)], directory)


def test_a_loss_that_is_not_finite_on_one_rank_ends_all(tmp_path: Path) -> None:
    gloo(2, nan_on_rank_1, tiny_experiment(train__epochs=50), tmp_path)
    found = torch.load(tmp_path / "nan" / "rows.pt")
    assert found["status"] == "diverged"
    assert found["reason"]["step"] == 1
    assert len(found["rows"]) == 1
