"""Exact validation: the same loss to the last bit on any number of workers, and the baselines it is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from raysweep.data.dataset import Dataset
from raysweep.data.loader import Batch, Loader, Request
from raysweep.data.order import sample_keys
from raysweep.experiment import Experiment
from raysweep.space import significant
from raysweep.train.step import squared_error

_MIN_CHUNKS = 16  # so that up to 16 workers share the validation evenly
_EPOCH = 0  # training counts from 1: validation noise is that of an epoch of its own


def chunks(dataset: Dataset, experiment: Experiment) -> list[Request]:
    """The validation samples cut into requests, the same ones whatever the number of workers."""
    size = max(1, min(experiment.train.batch_size, -(-len(dataset.val) // _MIN_CHUNKS)))
    parts = [dataset.val[i : i + size] for i in range(0, len(dataset.val), size)]
    return [Request(samples, sample_keys(experiment.data.seed, _EPOCH, samples)) for samples in parts]


def validation_loss(
    model: nn.Module,
    dataset: Dataset,
    loader: Loader,
    experiment: Experiment,
    reduce: Callable[[Sequence[float]], list[float]],
    rank: int,
    world_size: int,
    autocast: torch.autocast,
) -> float:
    """Mean squared error over all values of all validation images.

    Each chunk is computed whole by one worker, and the chunks' sums are added in one order: no rounding depends on the
    number of workers. The model is left in training mode.
    """
    requests = chunks(dataset, experiment)
    mine = range(rank, len(requests), world_size)
    sums = [0.0] * len(requests)
    model.eval()
    with torch.no_grad():
        for number, batch in zip(mine, loader.batches(requests[i] for i in mine), strict=True):
            with autocast:
                output = model(batch.x)
            squared_error(output[:0], batch.y[:0])  # refuses a wrong shape
            sums[number] = float(((output.float() - batch.y).double() ** 2).sum())
    model.train()
    return math.fsum(reduce(sums)) / (len(dataset.val) * int(np.prod(dataset.samples.y.shape[1:])))


def psnr(loss: float) -> float:
    """Peak signal-to-noise ratio in dB of a mean squared error, for pixels that range over 1: -10 log10(loss).

    To 7 digits, as the journal keeps it: where it is the objective, a sweep that goes on must decide by the same values.
    """
    return significant(-10 * math.log10(loss), 7) if loss > 0 and math.isfinite(loss) else math.nan


def _val_batches(dataset: Dataset, experiment: Experiment) -> Iterator[Batch]:
    loader = Loader(dataset.samples, experiment.data.noise, torch.device("cpu"))
    return loader.batches(chunks(dataset, experiment))


def mean_target(dataset: Dataset, experiment: Experiment) -> torch.Tensor:
    """The mean of the training targets, float64 [C, H, W]."""
    loader = Loader(dataset.samples, 0.0, torch.device("cpu"))
    size = max(1, experiment.train.batch_size)
    parts = [dataset.train[i : i + size] for i in range(0, len(dataset.train), size)]
    total = sum(batch.y.double().sum(0) for batch in loader.batches(Request(p, p) for p in parts))
    return torch.as_tensor(total) / len(dataset.train)


def facts(dataset: Dataset, experiment: Experiment) -> dict[str, Any]:
    """What the journal and the report say about the images.

    The baselines are losses of two models that learn nothing: `baseline_mean_image` answers with the mean training
    target, `baseline_input` with X itself (None where X and Y differ in shape).
    """
    samples = dataset.samples
    x_shape, y_shape = [int(n) for n in samples.x.shape[1:]], [int(n) for n in samples.y.shape[1:]]
    mean, same_shape = mean_target(dataset, experiment), x_shape == y_shape
    mean_error, input_error = [], []
    for batch in _val_batches(dataset, experiment):
        y = batch.y.double()
        mean_error.append(float(((mean - y) ** 2).sum()))
        if same_shape:
            input_error.append(float(((batch.x.double() - y) ** 2).sum()))
    values = len(dataset.val) * int(np.prod(y_shape))
    return {
        "source": experiment.data.source,
        "fingerprint": dataset.fingerprint,
        "num_train": len(dataset.train),
        "num_val": len(dataset.val),
        "x_shape": x_shape,
        "y_shape": y_shape,
        "dtype": str(samples.x.dtype),
        "noise": experiment.data.noise,
        "baseline_mean_image": math.fsum(mean_error) / values,
        "baseline_input": math.fsum(input_error) / values if same_shape else None,
    }


def example_images(model: nn.Module, dataset: Dataset, experiment: Experiment, count: int = 6) -> dict[str, np.ndarray[Any, Any]]:
    """Validation images, spread evenly, through a model on the CPU: x, y and output, each float32 [K, H, W, C]."""
    samples = dataset.val[np.linspace(0, len(dataset.val) - 1, min(count, len(dataset.val))).round().astype(np.int64)]
    loader = Loader(dataset.samples, experiment.data.noise, torch.device("cpu"))
    (batch,) = loader.batches([Request(samples, sample_keys(experiment.data.seed, _EPOCH, samples))])
    was_training = model.training
    with torch.no_grad():
        output = model.eval()(batch.x).float()
    model.train(was_training)
    return {name: image.permute(0, 2, 3, 1).numpy() for name, image in (("x", batch.x), ("y", batch.y), ("output", output))}
