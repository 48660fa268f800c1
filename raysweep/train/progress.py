"""Where a run stands, what the workers agree on between steps, and the decisions that follow; no training here."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from raysweep.data.loader import Loader
from raysweep.settings import TrainConfig
from raysweep.train.runtime import Row, Runtime

_SYNC_S = 1.0  # how often the workers agree whether to stop, save, or give up


@dataclass
class Progress:
    """Where a run stands; a checkpoint's whole position. Sums are over all workers.

    Attributes:
        epoch: the epoch in progress, from 1.
        step: steps done in it.
        global_step: steps done in all.
        squared_error: sums over the epoch's samples so far, one for each lane of the gradient step; empty before the first.
        seconds, train_s, wait_s: the epoch so far: all of it, its training steps, waiting for data.
        best, best_epoch: the lowest finite val_loss and its epoch; 0 where there is none.
        reference, stale: the val_loss that the next has to undercut by min_delta, and epochs that failed to.
        row: the row of the epoch before, told again after a restart that may have lost it.
        threads: torch threads of each worker, which a bitwise run keeps for ever; 0 where they are free.
        copied: the generation after which a population's member copied the weights that this goes on from; 0: it never did.
    """

    epoch: int = 1
    step: int = 0
    global_step: int = 0
    squared_error: list[float] = field(default_factory=list)
    seconds: float = 0.0
    train_s: float = 0.0
    wait_s: float = 0.0
    best: float = math.inf
    best_epoch: int = 0
    reference: float = math.inf
    stale: int = 0
    row: Row | None = None
    threads: int = 0
    copied: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a run ended: completed, stopped, diverged or interrupted, and the facts of why.

    `resized`: it ended in order to go on with another number of workers.
    """

    status: str
    reason: dict[str, Any] = field(default_factory=dict)


def next_epoch(progress: Progress) -> None:
    """Set the position to the start of the next epoch."""
    progress.epoch += 1
    progress.step = 0
    progress.squared_error = []
    progress.seconds = progress.train_s = progress.wait_s = 0.0


def judge(config: TrainConfig, progress: Progress, val_loss: float) -> None:
    """Note whether this epoch was the best so far, and whether it was better by enough for `patience`."""
    if val_loss < progress.best:
        progress.best, progress.best_epoch = val_loss, progress.epoch
    if val_loss < progress.reference - config.min_delta:
        progress.reference, progress.stale = val_loss, 0
    else:
        progress.stale += 1


def patience_ended(config: TrainConfig, progress: Progress) -> Outcome | None:
    """The end that train.patience asks for, if it is reached."""
    patience = config.patience
    if patience is None or progress.stale < patience:
        return None
    return Outcome("stopped", {"rule": "patience", "metric": "val_loss", "patience": patience})


@dataclass(frozen=True)
class Agreed:
    """What all workers do next.

    Attributes:
        first_bad: the first step without a finite loss (inf: none).
        end: "" to go on, or the outcome to end with: interrupted, resized.
        save: save a checkpoint.
        urgent: and wait until it is on the disk.
        steps_until_sync: steps until the next agreement.
    """

    first_bad: float
    end: str
    save: bool
    urgent: bool
    steps_until_sync: int


_ENDS = ("", "interrupted", "resized")


def agree(runtime: Runtime, first_bad: torch.Tensor, save_is_due: bool, steps_until_sync: int) -> Agreed:
    """One reduction: each rank's first step without a finite loss, and what rank 0 and the driver behind it want."""
    wanted = [0.0] * 3
    if runtime.rank == 0:
        wishes = runtime.wishes()
        urgent = bool(wishes.save or wishes.end)
        wanted = [float(_ENDS.index(wishes.end)), 2.0 if urgent else float(save_is_due), float(steps_until_sync)]
    bad = float(first_bad)
    # inf would turn the sum of the other ranks' zeros into nan: steps count from 1, so 0 says "none".
    marks = [(bad if math.isfinite(bad) else 0.0) if rank == runtime.rank else 0.0 for rank in range(runtime.world_size)]
    end, due, ahead, *marks = runtime.reduce([*wanted, *marks])
    return Agreed(min((m for m in marks if m), default=math.inf), _ENDS[int(end)], due > 0, due > 1, max(1, int(ahead)))


class EpochClock:
    """Seconds of an epoch, which may have begun before a restart."""

    def __init__(self, progress: Progress, loader: Loader) -> None:
        self._loader = loader
        self._first_step = progress.step
        self._began = self._mark = time.perf_counter()
        self._wait = loader.wait_s
        self._trained = False

    def add_to(self, progress: Progress) -> None:
        """Add what has passed since the last call."""
        now = time.perf_counter()
        progress.seconds += now - self._mark
        if not self._trained:
            progress.train_s += now - self._mark
            progress.wait_s += self._loader.wait_s - self._wait
        self._mark, self._wait = now, self._loader.wait_s

    def end_of_training(self, progress: Progress) -> None:
        """What comes now is validation."""
        self.add_to(progress)
        self._trained = True

    def steps_until_sync(self, step: int) -> int:
        """Steps in about _SYNC_S seconds at this epoch's pace."""
        passed = time.perf_counter() - self._began
        return max(1, min(1000, int(_SYNC_S * (step - self._first_step) / max(passed, 1e-6))))
