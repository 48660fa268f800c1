"""A small data set, a plain PyTorch loop as a user would write it, and runs on several gloo processes."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

from raysweep.data.dataset import Dataset
from raysweep.data.order import epoch_order, step_slice
from raysweep.data.samples import Samples
from raysweep.experiment import Experiment
from raysweep.train.loop import train
from raysweep.train.progress import Outcome
from raysweep.train.runtime import LocalRuntime, ProcessGroupRuntime, Row


def tiny_dataset(num_train: int, num_val: int = 5, size: int = 8, separate_target: bool = False) -> Dataset:
    """Smooth random images [N, size, size, 1], uint8."""
    rng = np.random.default_rng(7)
    coarse = rng.integers(0, 256, (num_train + num_val, size // 4, size // 4, 1), dtype=np.uint8)
    x = np.repeat(np.repeat(coarse, 4, axis=1), 4, axis=2)
    y = 255 - x if separate_target else x
    indices = np.arange(num_train + num_val)
    return Dataset(Samples(x, y, None), indices[:num_train], indices[num_train:], "tiny")


def tiny_experiment(**overrides: Any) -> Experiment:
    """Depth 1, 4 channels, no noise; dotted keys with `__` for the dot."""
    base = Experiment.from_dict(
        {"model": {"depth": 1, "base_channels": 4}, "data": {"source": "digits"}, "train": {"epochs": 2, "batch_size": 8}}
    )
    return base.with_overrides({key.replace("__", "."): value for key, value in overrides.items()})


def local_run(experiment: Experiment, dataset: Dataset, directory: Path, **options: Any) -> tuple[Outcome, list[Row]]:
    """A run in this process."""
    rows: list[Row] = []
    outcome = train(experiment, dataset, LocalRuntime(directory, on_row=rows.append, **options))
    return outcome, rows


def final_weights(directory: Path) -> dict[str, torch.Tensor]:
    """The weights of the newest checkpoint."""
    newest = max(directory.glob("ckpt-*.pt"))
    weights: dict[str, torch.Tensor] = torch.load(newest, weights_only=True)["model"]
    return weights


def plain_loop(model: nn.Module, dataset: Dataset, experiment: Experiment, steps: int) -> dict[str, torch.Tensor]:
    """The loop that a user writes without raysweep: one process, contiguous images, torch's optimizer as it comes."""
    config = experiment.optim
    optimizer: torch.optim.Optimizer
    if config.name == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    else:
        kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
        optimizer = kind(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    x = torch.from_numpy(dataset.samples.x).permute(0, 3, 1, 2).contiguous().float() / 255
    y = torch.from_numpy(dataset.samples.y).permute(0, 3, 1, 2).contiguous().float() / 255
    done, epoch = 0, 1
    while done < steps:
        order = dataset.train[epoch_order(experiment.train.seed, epoch, len(dataset.train))]
        for step in range(-(-len(order) // experiment.train.batch_size)):
            batch = step_slice(order, step, experiment.train.batch_size)
            optimizer.zero_grad()
            output = model(x[batch])
            loss = F.mse_loss(output, y[batch])
            if experiment.train.reduction == "sum":
                loss = ((output - y[batch]) ** 2).sum() / y[0].numel()
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
        epoch += 1
    return model.state_dict()


def _gloo_worker(
    rank: int, world_size: int, meeting: str, job: Callable[[int, Any, Path], None], argument: Any, directory: Path
) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    try:
        job(rank, argument, directory)
    finally:
        torch.distributed.destroy_process_group()


def gloo(world_size: int, job: Callable[[int, Any, Path], None], argument: Any, directory: Path) -> None:
    """Run `job(rank, argument, directory)` on `world_size` processes joined by gloo; any failure fails the test."""
    # Imported once, by the server that all these processes are forked from.
    multiprocessing.set_forkserver_preload(["raysweep.train.loop", "torch.nn.parallel.distributed"])
    # They meet in a file: a port that was free a moment ago may be somebody else's.
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(
            _gloo_worker,
            args=(world_size, (Path(folder) / "meeting").as_uri(), job, argument, directory),
            nprocs=world_size,
            join=True,
            start_method="forkserver",
        )


def train_cases(rank: int, cases: list[tuple[str, Experiment, Dataset]], directory: Path) -> None:
    """A gloo job: several runs, each in its own directory, with rows and outcome left as a file."""
    for name, experiment, dataset in cases:
        rows: list[Row] = []
        (directory / name).mkdir(parents=True, exist_ok=True)
        outcome = train(experiment, dataset, ProcessGroupRuntime(directory / name, on_row=rows.append))
        if rank == 0:
            torch.save({"rows": rows, "status": outcome.status, "reason": outcome.reason}, directory / name / "rows.pt")
