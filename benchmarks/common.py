"""What the benchmarks share: a plain PyTorch loop as a user would write it, a table, and the JSON file."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from raysweep.data.dataset import open_dataset
from raysweep.experiment import Experiment
from raysweep.plugins import build_model


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the option that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write one flat object of numbers")
    return parser


def finish(title: str, numbers: dict[str, float], json_file: Path | None) -> None:
    """Print the numbers as a table, and write them where --json says."""
    table = Table(title=title)
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in numbers.items():
        table.add_row(name, f"{value:.4g}")
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(numbers, indent=2) + "\n")


def plain_images(experiment: Experiment) -> torch.Tensor:
    """The training images as the tensor that a user would make: float32 [N, C, H, W], 0 to 1, contiguous."""
    dataset = open_dataset(experiment.data)
    return torch.from_numpy(dataset.samples.x[dataset.train]).permute(0, 3, 1, 2).contiguous().float() / 255


def plain_model(experiment: Experiment, images: torch.Tensor) -> nn.Module:
    """The same model as raysweep's, in torch's default memory format."""
    _, channels, height, width = images.shape
    return build_model(experiment.model, (height, width, channels), (height, width, channels), experiment.train.seed)


def plain_training(experiment: Experiment, images: torch.Tensor, model: nn.Module) -> list[tuple[float, float]]:
    """A plain denoising loop; for each epoch its mean loss and its seconds."""
    loader: DataLoader[Any] = DataLoader(TensorDataset(images), batch_size=experiment.train.batch_size, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=experiment.optim.lr)
    epochs = []
    for _ in range(experiment.train.epochs):
        began, total = time.perf_counter(), 0.0
        for (y,) in loader:
            x = y + experiment.data.noise * torch.randn_like(y) if experiment.data.noise else y
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(y)
        epochs.append((total / len(images), time.perf_counter() - began))
    return epochs
