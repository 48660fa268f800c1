"""The optimizer, and its learning rate as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from raysweep.settings import OptimConfig


def build(config: OptimConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of an experiment; fused, which takes one pass over the weights instead of one per operation."""
    trained = [p for p in parameters if p.requires_grad]
    if config.name == "sgd":
        return torch.optim.SGD(trained, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(trained, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True)


def learning_rate(config: OptimConfig, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The rate of global step `step` (from 0).

    Warm-up: linear from lr / warmup_steps to lr. cosine: from lr to min_lr at the end of schedule_epochs (or `epochs`),
    half a cosine (Loshchilov and Hutter, 2017, eq. 5, without restarts); min_lr from there on.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    last = steps_per_epoch * (config.schedule_epochs or epochs)
    if step >= last:
        return config.min_lr
    done = (step - config.warmup_steps) / (last - config.warmup_steps)
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * done))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give all of an optimizer's parameters this rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
