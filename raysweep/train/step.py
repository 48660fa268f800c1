"""One step: this worker's share of the global batch forward and backward, exact for any number of workers.

The loss of a step is the global sum over the global count; DDP averages gradients over the workers, so each
back-propagates world_size * local sum / global count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from raysweep.data.loader import Batch, Request
from raysweep.data.order import share, step_slice
from raysweep.data.samples import Indices
from raysweep.experiment import Experiment
from raysweep.models import set_sample_keys
from raysweep.settings import TrainConfig

_MASK = 2**63 - 1


@dataclass(frozen=True)
class Part:
    """What one worker does of one step: micro batches, and how many of their samples count."""

    requests: list[Request]
    num_samples: int


def part(order: Indices, keys: Indices, step: int, config: TrainConfig, rank: int, world_size: int) -> Part:
    """A worker's micro batches of one step of the epoch.

    A worker whose share is empty still has to take part in the exchange of gradients: it gets the step's first
    sample, which counts nothing.

    Args:
        order: the epoch's samples in order, int64 [N].
        keys: their keys, int64 [N].
        step: the step inside the epoch, from 0.
        config: the global batch and the micro batch.
        rank: the worker's number.
        world_size: number of workers.
    """
    batch = step_slice(order, step, config.batch_size)
    mine = share(batch, rank, world_size)
    shown, its_keys = mine, share(step_slice(keys, step, config.batch_size), rank, world_size)
    if not len(mine):
        shown, its_keys = batch[:1], keys[step * config.batch_size :][:1]
    size = config.micro_batch or len(shown)
    requests = [Request(shown[i : i + size], its_keys[i : i + size]) for i in range(0, len(shown), size)]
    return Part(requests, len(mine))


class GradientStep:
    """Forward and backward of a worker's part of a step.

    Args:
        model: the wrapped model, in training mode.
        experiment: reduction and precision.
        world_size: number of workers.
        values: values of one expected image, H * W * C.
        device: where the model is.
    """

    def __init__(self, model: nn.Module, experiment: Experiment, world_size: int, values: int, device: torch.device) -> None:
        self.model = model
        self._raw = model.module if isinstance(model, DistributedDataParallel) else model
        self._mean = experiment.train.reduction == "mean"
        self._world_size = world_size
        self._values = values
        self._device = device
        self.autocast = autocast(experiment, device)

    def backward(self, batches: Iterator[Batch], plan: Part, global_samples: int, seed: int) -> Tensor:
        """Take the part's batches, leave their gradient in the parameters, and return this worker's sum of squared errors.

        Args:
            batches: gives the part's micro batches next.
            plan: the part.
            global_samples: samples of the whole step, over all workers.
            seed: for random layers of the user's own; SampleDropout has its keys.

        Raises:
            ValueError: the output has not the target's shape.
        """
        scale = self._world_size / (self._values * (global_samples if self._mean else 1))
        counts = plan.num_samples > 0
        torch.manual_seed(seed)
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for number in range(len(plan.requests)):
            batch = next(batches)
            set_sample_keys(self._raw, batch.keys)
            is_last = number == len(plan.requests) - 1
            with contextlib.nullcontext() if is_last else self._local_only():
                with self.autocast:
                    output = self.model(batch.x)
                error = squared_error(output, batch.y)
                (error * (scale if counts else 0.0)).backward()  # type: ignore[no-untyped-call]
            if counts:
                total += error.detach().double()
        return total

    def _local_only(self) -> contextlib.AbstractContextManager[None]:
        model = self.model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


def autocast(experiment: Experiment, device: torch.device) -> torch.autocast:
    """The mixed-precision context of an experiment; `auto`: bf16 on a GPU that has it, else off."""
    wanted = experiment.train.precision
    enabled = wanted == "bf16" or (wanted == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The sum of squared errors, float32 scalar.

    Raises:
        ValueError: the shapes differ; torch would broadcast them with no more than a warning.
    """
    if output.shape != target.shape:
        raise ValueError(f"the model's output {list(output.shape)} must have the target's shape {list(target.shape)}")
    return F.mse_loss(output.float(), target, reduction="sum")


def step_seed(seed: int, epoch: int, step: int, rank: int) -> int:
    """A seed for the random layers of a user's model: the same again after a restart."""
    return int(np.random.SeedSequence([seed, epoch, step, rank]).generate_state(1, np.uint64)[0]) & _MASK


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    """The 2-norm of all gradients together, a scalar."""
    norms = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def clip(parameters: list[nn.Parameter], norm: Tensor, max_norm: float) -> None:
    """Scale all gradients so that their norm is at most `max_norm`."""
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], scale)
