"""Samples per second of raysweep's loop against a plain PyTorch loop: same model, batch, threads; alternating.

`ratio_vs_plain` is the median over the alternations of ours / plain.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import arguments, finish, plain_images, plain_model, plain_training

from raysweep.data.dataset import open_dataset
from raysweep.experiment import Experiment
from raysweep.train.loop import train
from raysweep.train.runtime import LocalRuntime


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--base-channels", type=int, default=32)
    parser.add_argument("--depth", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    experiment = Experiment.from_dict(
        {
            "model": {"depth": options.depth, "base_channels": options.base_channels},
            "train": {"epochs": options.epochs, "batch_size": 64},
        }
    )
    dataset, images = open_dataset(experiment.data), plain_images(experiment)
    pairs = []
    for number in range(options.alternations + 1):
        with tempfile.TemporaryDirectory() as directory:
            rows: list[dict[str, Any]] = []
            train(experiment, dataset, LocalRuntime(Path(directory), on_row=rows.append))
        ours = max(row["samples_per_second"] for row in rows)
        epochs = plain_training(experiment, images, plain_model(experiment, images))
        plain = max(len(images) / seconds for _, seconds in epochs)
        if number:  # the first pair only warms up
            pairs.append((ours, plain))
    numbers = {
        "ours_samples_per_second": statistics.median(ours for ours, _ in pairs),
        "plain_samples_per_second": statistics.median(plain for _, plain in pairs),
        "ratio_vs_plain": statistics.median(ours / plain for ours, plain in pairs),
        "ratio_lowest": min(ours / plain for ours, plain in pairs),
        "ratio_highest": max(ours / plain for ours, plain in pairs),
        "threads": options.threads,
    }
    finish("loop: raysweep against a plain PyTorch loop", numbers, options.json)


if __name__ == "__main__":
    main()
