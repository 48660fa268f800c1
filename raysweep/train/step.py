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
from raysweep.train.runtime import Runtime

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
    """Forward and backward of a worker's part of a step, by DDP where there are several workers.

    Attributes:
        lanes: sums of squared errors that a step returns: one, to which every worker adds.
        owned: the lanes that this worker goes on from after a restart.
        autocast: the mixed-precision context.

    Args:
        model: the model in training mode, not wrapped.
        experiment: batch, reduction, precision, seed.
        runtime: wraps the model, and knows this worker's rank and device.
        values: values of one expected image, H * W * C.
    """

    lanes = 1

    def __init__(self, model: nn.Module, experiment: Experiment, runtime: Runtime, values: int) -> None:
        self._raw, self._model = model, runtime.wrap(model)
        self._config, self._runtime, self._values = experiment.train, runtime, values
        self.owned = range(1) if runtime.rank == 0 else range(0)
        self.autocast = autocast(experiment, runtime.device)

    def part(self, order: Indices, keys: Indices, step: int) -> Part:
        """This worker's micro batches of one step of the epoch; arguments as of part()."""
        return part(order, keys, step, self._config, self._runtime.rank, self._runtime.world_size)

    def backward(self, batches: Iterator[Batch], plan: Part, global_samples: int, epoch: int, step: int) -> Tensor:
        """Take the part's batches, and leave the step's gradient in the parameters.

        Args:
            batches: gives the part's micro batches next.
            plan: the part.
            global_samples: samples of the whole step, over all workers.
            epoch: the epoch, from 1.
            step: the step inside the epoch, from 0.

        Returns:
            This worker's sums of squared errors, float64 [lanes].

        Raises:
            ValueError: the output has not the target's shape.
        """
        scale = self._runtime.world_size * loss_scale(self._config, self._values, global_samples)
        counts = plan.num_samples > 0
        # For random layers of the user's own; SampleDropout has its keys.
        torch.manual_seed(step_seed(self._config.seed, epoch, step, self._runtime.rank))
        total = torch.zeros(1, dtype=torch.float64, device=self._runtime.device)
        for number in range(len(plan.requests)):
            is_last = number == len(plan.requests) - 1
            with contextlib.nullcontext() if is_last else self._local_only():
                error = forward_error(self._model, self._raw, next(batches), self.autocast)
                (error * (scale if counts else 0.0)).backward()  # type: ignore[no-untyped-call]
            if counts:
                total += error.detach().double()
        return total

    def _local_only(self) -> contextlib.AbstractContextManager[None]:
        model = self._model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


def loss_scale(config: TrainConfig, values: int, global_samples: int) -> float:
    """What a sum of squared errors is multiplied by: 1 / values, and for the reduction `mean` also 1 / global_samples."""
    return 1.0 / (values * (global_samples if config.reduction == "mean" else 1))


def forward_error(model: nn.Module, raw: nn.Module, batch: Batch, precision: torch.autocast) -> Tensor:
    """The sum of squared errors of one batch, float32 scalar.

    Raises:
        ValueError: the output has not the target's shape.
    """
    set_sample_keys(raw, batch.keys)
    with precision:
        output = model(batch.x)
    return squared_error(output, batch.y)


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


def step_seed(seed: int, epoch: int, step: int, part: int) -> int:
    """A seed for the random layers of a user's model, of a rank or a shard: the same again after a restart."""
    return int(np.random.SeedSequence([seed, epoch, step, part]).generate_state(1, np.uint64)[0]) & _MASK


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    """The 2-norm of all gradients together, a scalar."""
    norms = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def clip(parameters: list[nn.Parameter], norm: Tensor, max_norm: float) -> None:
    """Scale all gradients so that their norm is at most `max_norm`."""
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], scale)
