"""What a run costs beside its own training: raysweep.train on 2 workers at its defaults against a bare TorchTrainer.

Both train the same model on the same images on one running Ray; the bare trainer's controller polls every 0.25 s (Ray's
default is 2 s) and reports once an epoch. Overhead is the whole call's time less the time inside the epochs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

import ray.train
import ray.train.torch
import torch
from common import arguments, finish, plain_images, plain_model
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import raysweep
from raysweep.cluster.join import connected, environment
from raysweep.experiment import Experiment

EXPERIMENT = {"model": {"depth": 2}, "train": {"epochs": 4}, "scale": {"workers": 2}}


def bare_worker(config: dict[str, Any]) -> None:
    """Ray's documented training function: prepare_model, prepare_data_loader, one report an epoch."""
    experiment = Experiment.from_dict(config)
    images = plain_images(experiment)
    model = ray.train.torch.prepare_model(plain_model(experiment, images))
    loader = ray.train.torch.prepare_data_loader(
        DataLoader(TensorDataset(images), batch_size=experiment.train.batch_size // 2, shuffle=True)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=experiment.optim.lr)
    for epoch in range(experiment.train.epochs):
        began, total = time.perf_counter(), 0.0
        for (y,) in loader:
            loss = F.mse_loss(model(y + experiment.data.noise * torch.randn_like(y)), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
        ray.train.report({"epoch": epoch, "loss": total / len(loader), "seconds": time.perf_counter() - began})


class _Seconds(ray.train.UserCallback):  # type: ignore[misc]
    """Adds up the epochs' seconds; the controller lives in another process, so they go to a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        with open(self.path, "a") as file:
            file.write(f"{metrics[0]['seconds']}\n")


def bare(directory: str) -> tuple[float, float]:
    """Overhead and training seconds of the bare trainer."""
    began = time.perf_counter()
    seconds = f"{directory}/seconds"
    ray.train.torch.TorchTrainer(
        bare_worker,
        train_loop_config=EXPERIMENT,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(name="bare", storage_path=directory, callbacks=[_Seconds(seconds)]),
    ).fit()
    with open(seconds) as file:
        inside = sum(float(line) for line in file)
    return time.perf_counter() - began - inside, inside


def ours(directory: str) -> tuple[float, float]:
    """Overhead and training seconds of raysweep.train."""
    began = time.perf_counter()
    result = raysweep.train(EXPERIMENT, storage=directory)
    inside = float(result.rows["seconds"].sum())
    return time.perf_counter() - began - inside, inside


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--alternations", type=int, default=3)
    options = parser.parse_args()
    pairs = []
    with connected():
        for _ in range(options.alternations):
            with tempfile.TemporaryDirectory() as directory:
                mine = ours(directory)
                with environment(RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.25", RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="1"):
                    theirs = bare(directory)
            pairs.append((mine, theirs))
    numbers = {
        "ours_overhead_s": statistics.median(mine[0] for mine, _ in pairs),
        "bare_overhead_s": statistics.median(theirs[0] for _, theirs in pairs),
        "ours_training_s": statistics.median(mine[1] for mine, _ in pairs),
        "bare_training_s": statistics.median(theirs[1] for _, theirs in pairs),
        "overhead_ours_over_bare": statistics.median(mine[0] / theirs[0] for mine, theirs in pairs),
    }
    finish("start and stop of a run on 2 workers: raysweep.train against a bare TorchTrainer", numbers, options.json)


if __name__ == "__main__":
    main()
