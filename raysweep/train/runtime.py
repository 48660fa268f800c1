"""What the loop needs from the place it runs in: ranks, two collectives, and somewhere to send its rows.

Only runtimes read ranks. RayTrainRuntime is in ray_runtime.py, TuneRuntime in tune/trial.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True)
class Wishes:
    """What the driver of a run wants of it at the next step boundary.

    Attributes:
        end: "" to go on; `interrupted` or `resized`: save and end with that outcome.
        save: save a checkpoint and go on.
    """

    end: str = ""
    save: bool = False


class Runtime(Protocol):
    """The loop's surroundings. What is not said to be for rank 0 only is called by all ranks alike.

    Attributes:
        rank: this worker's number, 0 to world_size - 1.
        world_size: number of workers.
        device: where this worker's model and batches live.
        directory: the trial's directory, shared by all workers.
        attempt: counts the starts of this run, from 1.
    """

    rank: int
    world_size: int
    device: torch.device
    directory: Path
    attempt: int

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with its gradients averaged over the workers."""
        ...

    def broadcast(self, value: T) -> T:
        """Rank 0's value (plain data), on every rank."""
        ...

    def reduce(self, values: Sequence[float]) -> list[float]:
        """The sum over the ranks of each value, in float64, on every rank."""
        ...

    def report(self, row: Row) -> None:
        """Hand over one epoch's row; called on every rank with the same row."""
        ...

    def wishes(self) -> Wishes:
        """What the driver wants at the next step boundary; asked on rank 0 only, about once a second."""
        ...

    def began(self, step: int, total_steps: int) -> None:
        """Training goes on from global step `step`, of `total_steps` in all; called on rank 0 only."""
        ...

    def step_done(self, step: int) -> None:
        """Global step `step` is done; called on rank 0 only, after each step, so it must cost next to nothing."""
        ...


class LocalRuntime:
    """One worker in this process.

    Args:
        directory: the trial's directory.
        device: default: the CPU.
        on_row: called with each row.
        wishes: asked for wishes.
        attempt: counts the starts of this run, from 1.
    """

    rank = 0
    world_size = 1

    def __init__(
        self,
        directory: Path,
        device: torch.device | None = None,
        on_row: Callable[[Row], None] = lambda _row: None,
        wishes: Callable[[], Wishes] = Wishes,
        attempt: int = 1,
    ) -> None:
        self.directory = directory
        self.device = device or torch.device("cpu")
        self.attempt = attempt
        self._on_row = on_row
        self._wishes = wishes

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def broadcast(self, value: T) -> T:
        return value

    def reduce(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def report(self, row: Row) -> None:
        self._on_row(row)

    def wishes(self) -> Wishes:
        return self._wishes()

    def began(self, step: int, total_steps: int) -> None:
        pass

    def step_done(self, step: int) -> None:
        pass


class ProcessGroupRuntime(LocalRuntime):
    """One of several workers of an initialised torch.distributed process group (gloo or nccl)."""

    def __init__(
        self,
        directory: Path,
        device: torch.device | None = None,
        on_row: Callable[[Row], None] = lambda _row: None,
        wishes: Callable[[], Wishes] = Wishes,
        attempt: int = 1,
    ) -> None:
        super().__init__(directory, device, on_row, wishes, attempt)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
            return model
        ids = [self.device.index or 0] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)

    def broadcast(self, value: T) -> T:
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def reduce(self, values: Sequence[float]) -> list[float]:
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def report(self, row: Row) -> None:
        if self.rank == 0:
            self._on_row(row)
