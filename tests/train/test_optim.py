"""The learning rate as a function of the step, and the optimizer that gets it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from raysweep.settings import OptimConfig
from raysweep.train.optim import build, learning_rate, set_learning_rate

STEPS, EPOCHS = 10, 4  # 40 steps in all


def rate(step: int, steps_per_epoch: int = STEPS, epochs: int = EPOCHS, **settings: Any) -> float:
    return learning_rate(OptimConfig(lr=0.5, **settings), step, steps_per_epoch, epochs)


@pytest.mark.parametrize("step", [0, 1, 20, 39, 40, 1000])
def test_constant_is_constant(step: int) -> None:
    assert rate(step) == 0.5


@pytest.mark.parametrize(("step", "expected"), [(0, 0.05), (1, 0.10), (4, 0.25), (8, 0.45), (9, 0.5), (10, 0.5), (1000, 0.5)])
def test_warm_up_rises_linearly_from_its_first_step(step: int, expected: float) -> None:
    assert rate(step, warmup_steps=10) == pytest.approx(expected)


@pytest.mark.parametrize("min_lr", [0.0, 0.1])
def test_cosine_is_half_a_cosine_from_lr_to_min_lr(min_lr: float) -> None:
    assert rate(0, schedule="cosine", min_lr=min_lr) == 0.5
    assert rate(20, schedule="cosine", min_lr=min_lr) == pytest.approx((0.5 + min_lr) / 2)
    assert rate(40, schedule="cosine", min_lr=min_lr) == min_lr
    assert rate(1000, schedule="cosine", min_lr=min_lr) == min_lr
    for step in range(41):
        expected = min_lr + 0.5 * (0.5 - min_lr) * (1 + math.cos(math.pi * step / 40))
        assert rate(step, schedule="cosine", min_lr=min_lr) == pytest.approx(expected)


def test_cosine_begins_where_the_warm_up_ends() -> None:
    rates = [rate(step, schedule="cosine", warmup_steps=8) for step in range(50)]
    assert rates[:9] == pytest.approx([0.5 * (step + 1) / 8 for step in range(8)] + [0.5])
    assert rates[24] == pytest.approx(0.25), "half way from step 8 to step 40"
    assert rates[8:41] == sorted(rates[8:41], reverse=True)
    assert rates[40:] == [0.0] * 10


def test_schedule_epochs_and_not_the_budget_set_the_horizon() -> None:
    for step in (0, 7, 10, 19, 20, 35):
        shorter = rate(step, epochs=EPOCHS, schedule="cosine", schedule_epochs=2, min_lr=0.1)
        assert shorter == rate(step, epochs=2, schedule="cosine", min_lr=0.1)
        assert shorter == rate(step, epochs=400, schedule="cosine", schedule_epochs=2, min_lr=0.1)
    assert rate(10, schedule="cosine", schedule_epochs=2, min_lr=0.1) == pytest.approx(0.3)
    assert rate(20, schedule="cosine", schedule_epochs=2, min_lr=0.1) == 0.1
    assert rate(10, schedule="cosine", schedule_epochs=8) > rate(10, schedule="cosine")


@pytest.mark.parametrize("warmup_steps", [40, 41, 60])
def test_a_warm_up_as_long_as_the_schedule_leaves_min_lr(warmup_steps: int) -> None:
    assert rate(warmup_steps - 1, schedule="cosine", warmup_steps=warmup_steps, min_lr=0.1) == pytest.approx(0.5)
    assert rate(warmup_steps, schedule="cosine", warmup_steps=warmup_steps, min_lr=0.1) == 0.1


def model() -> nn.Module:
    frozen = nn.Conv2d(1, 2, 3)
    frozen.requires_grad_(False)
    return nn.Sequential(nn.Conv2d(1, 1, 3), frozen)


@pytest.mark.parametrize(
    ("config", "kind", "expected"),
    [
        (
            OptimConfig(name="sgd", lr=0.3, momentum=0.9, weight_decay=0.01),
            torch.optim.SGD,
            {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.01, "nesterov": False, "dampening": 0},
        ),
        (
            OptimConfig(name="adam", lr=0.3, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.02),
            torch.optim.Adam,
            {
                "lr": 0.3,
                "betas": (0.8, 0.9),
                "eps": 1e-5,
                "weight_decay": 0.02,
                "amsgrad": False,
                "decoupled_weight_decay": False,
            },
        ),
        (
            OptimConfig(name="adamw", lr=0.3, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.02),
            torch.optim.AdamW,
            {"lr": 0.3, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.02, "amsgrad": False},
        ),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_the_optimizer_has_the_settings_and_only_what_is_trained(
    config: OptimConfig, kind: type, expected: dict[str, Any]
) -> None:
    trained = model()
    optimizer = build(config, trained.parameters())
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert {name: group[name] for name in expected} == expected
    assert [id(p) for p in group["params"]] == [id(p) for p in trained[0].parameters()]


def test_defaults_are_torchs_own() -> None:
    ours, theirs = build(OptimConfig(), model().parameters()), torch.optim.Adam(model()[0].parameters())
    for name in ("lr", "betas", "eps", "weight_decay"):
        assert ours.param_groups[0][name] == theirs.param_groups[0][name]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_step_moves_what_is_trained_at_the_rate_that_was_set(name: str) -> None:
    trained = model()
    before = {key: value.clone() for key, value in trained.state_dict().items()}
    optimizer = build(OptimConfig(name=name, lr=1.0), trained.parameters())
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
    for parameter in trained[0].parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for key, value in trained.state_dict().items():
        # The first step of all three is lr times the gradient, or its sign, which is 1.
        torch.testing.assert_close(value, before[key] - (0.25 if key.startswith("0.") else 0.0))
