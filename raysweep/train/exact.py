"""Bitwise mode: one step whose gradient has the same bits on any number of workers, and kernels that give them again.

A step of DDP, equal up to rounding, is in step.py; the order in which gradients are summed in tree.py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.utils.deterministic
from torch import Tensor, nn

from raysweep.data.loader import Batch, Request
from raysweep.data.order import share, step_slice
from raysweep.data.samples import Indices
from raysweep.errors import ConfigError
from raysweep.experiment import Experiment
from raysweep.models import Shape, uses_batch_norm
from raysweep.settings import ModelConfig
from raysweep.train.runtime import Runtime
from raysweep.train.step import Part, autocast, forward_error, loss_scale, step_seed
from raysweep.train.tree import Block, Exchange, add_block, owned_shards

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


class ShardedStep:
    """Forward and backward of a worker's shards of a step; takes the place of GradientStep.

    Each global batch is cut into train.shards parts, whatever the number of workers. A worker takes its shards one by one
    and adds their gradients up in one binary tree, which Exchange finishes over the workers.

    Attributes:
        lanes: sums of squared errors that a step returns: one for each shard.
        owned: this worker's shards, the lanes that it adds to.
        autocast: the mixed-precision context.

    Args:
        model: the model in training mode, not wrapped; all workers take rank 0's weights.
        experiment: batch, shards, reduction, precision, seed.
        runtime: knows this worker's rank and device.
        values: values of one expected image, H * W * C.
    """

    def __init__(self, model: nn.Module, experiment: Experiment, runtime: Runtime, values: int) -> None:
        self._model, self._config, self._values = model, experiment.train, values
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.lanes = self._config.shards
        self.owned = owned_shards(self.lanes, runtime.rank, runtime.world_size)
        self.autocast = autocast(experiment, runtime.device)
        self._device = runtime.device
        self._exchanges: list[tuple[list[int], Exchange]] = []
        if runtime.world_size > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), src=0)
            for dtype in dict.fromkeys(p.dtype for p in self._parameters):
                places = [i for i, p in enumerate(self._parameters) if p.dtype == dtype]
                exchange = Exchange([self._parameters[i] for i in places], self.lanes, runtime.rank, runtime.world_size)
                self._exchanges.append((places, exchange))

    def part(self, order: Indices, keys: Indices, step: int) -> Part:
        """This worker's shards of one step of the epoch, without those that have no samples.

        Args:
            order: the epoch's samples in order, int64 [N].
            keys: their keys, int64 [N].
            step: the step inside the epoch, from 0.
        """
        samples, its_keys = (step_slice(indices, step, self._config.batch_size) for indices in (order, keys))
        requests = [Request(share(samples, shard, self.lanes), share(its_keys, shard, self.lanes)) for shard in self.owned]
        requests = [request for request in requests if len(request.samples)]
        return Part(requests, sum(len(request.samples) for request in requests))

    def backward(self, batches: Iterator[Batch], plan: Part, global_samples: int, epoch: int, step: int) -> Tensor:
        """Take the shards' batches, and leave the step's gradient in the parameters.

        Args:
            batches: gives the shards' batches next.
            plan: the part.
            global_samples: samples of the whole step, over all workers.
            epoch: the epoch, from 1.
            step: the step inside the epoch, from 0.

        Returns:
            The sums of squared errors of this worker's shards, 0 elsewhere, float64 [lanes].

        Raises:
            ValueError: the output has not the target's shape.
        """
        scale = loss_scale(self._config, self._values, global_samples)
        errors = torch.zeros(self.lanes, dtype=torch.float64, device=self._device)
        blocks: list[Block] = []
        for shard in self.owned:
            first = shard
            if shard % 2 and blocks:
                # Autograd adds to the other half of the pair while both are in the cache.
                first -= 1
                self._put_gradients(blocks.pop().total)
            if len(share(np.arange(global_samples), shard, self.lanes)):
                torch.manual_seed(step_seed(self._config.seed, epoch, step, shard))
                error = forward_error(self._model, self._model, next(batches), self.autocast)
                (error * scale).backward()  # type: ignore[no-untyped-call]
                errors[shard] = error.detach()
            add_block(blocks, Block(range(first, shard + 1), self._take_gradients()))
        total = blocks[0].total
        for places, exchange in self._exchanges:
            for place, gradient in zip(places, exchange([[b.total[i] for i in places] for b in blocks]), strict=True):
                total[place] = gradient
        # Where a shard has no gradient for a parameter, zeros may have been added or nothing: a zero then has either sign.
        torch._foreach_add_(total, 0.0)
        self._put_gradients(total)
        return errors

    def _put_gradients(self, gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient

    def _take_gradients(self) -> list[Tensor]:
        """The gradients, taken away from the parameters; zeros where there is none."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return gradients


def check_bitwise(config: ModelConfig, model: nn.Module, x_shape: Shape) -> None:
    """Refuse a user's model whose training depends on how a batch is cut, or on which shards a worker has seen.

    Args:
        config: names the factory.
        model: a copy to be thrown away, for it is run in training mode.
        x_shape: height, width, channels of X.

    Raises:
        ConfigError: it normalises over the batch, or its buffers change in training.
    """
    if uses_batch_norm(model):
        raise ConfigError(
            f"train.exactness bitwise: batch normalisation in model.factory {config.factory} would go over one shard of the "
            "batch; use GroupNorm, or set train.exactness to ddp"
        )
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    height, width, channels = x_shape
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        model.train()(torch.rand(2, height, width, channels).permute(0, 3, 1, 2))
    changed = [name for name, buffer in model.named_buffers() if name not in before or not torch.equal(buffer, before[name])]
    if changed:
        raise ConfigError(
            f"train.exactness bitwise: training changes the buffers {', '.join(changed)} of model.factory {config.factory}, on "
            "each worker by its own shards; leave them as they are in training, or set train.exactness to ddp"
        )


def fix_threads(experiment: Experiment, recorded: int) -> int:
    """Set torch's threads, which decide in what order a kernel adds up, and return their number.

    Args:
        experiment: scale.cpus_per_worker is the number for a new run; 1 where it is null.
        recorded: the number that the run was begun with, which goes before; 0 for a new run.
    """
    asked = experiment.scale.cpus_per_worker
    if recorded and asked and asked != recorded:
        warnings.warn(
            f"scale.cpus_per_worker is {asked}, but this bitwise run was begun with {recorded} torch threads a worker, which its "
            f"rounding follows from; going on with {recorded}",
            RuntimeWarning,
            stacklevel=2,
        )
    threads = recorded or asked or 1
    torch.set_num_threads(threads)
    return threads


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Only kernels that give the same bits again, as long as this lasts; then all settings are what they were.

    An operation that has no such kernel raises torch's own error, which names it.
    """
    cudnn: Any = torch.backends.cudnn
    memory: Any = torch.utils.deterministic
    algorithms = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    before = cudnn.benchmark, cudnn.deterministic, memory.fill_uninitialized_memory, torch.get_num_threads()
    workspace = os.environ.get(_CUBLAS)
    if device.type == "cuda":
        os.environ.setdefault(_CUBLAS, ":4096:8")
    try:
        torch.use_deterministic_algorithms(True)
        cudnn.benchmark, cudnn.deterministic = False, True
        memory.fill_uninitialized_memory = False  # costs a pass over every tensor, and helps only code that reads garbage
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
        cudnn.benchmark, cudnn.deterministic, memory.fill_uninitialized_memory, threads = before
        torch.set_num_threads(threads)
        if workspace is None:
            os.environ.pop(_CUBLAS, None)
