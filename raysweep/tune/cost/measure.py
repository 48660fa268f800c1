"""A few real steps of the real loop, timed: what an image costs to train on and to validate, and how much memory it takes.

Nothing here knows of Ray. Where and how many at once is calibrate.py's.
"""

from __future__ import annotations

import contextlib
import math
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from raysweep.data.dataset import Dataset
from raysweep.experiment import Experiment
from raysweep.train.evaluate import chunks
from raysweep.train.loop import train
from raysweep.train.runtime import LocalRuntime, Row

_PROBE_STEPS = 4
_CHUNKS = 16
_EPOCHS = 10**9  # no run ends by itself
_BACKWARD = 3.0
"""Forward and backward together take about three times as long as forward alone."""


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        train_s, val_s: seconds for each image of an epoch's training and of its validation.
        rest_s: seconds between two epochs: best weights copied, the row reported.
        windows: how long parts of the measuring took, each over their mean.
        memory_bytes: the peak of the whole process; of a GPU the peak of what torch has allocated.
    """

    train_s: float
    val_s: float
    rest_s: float
    windows: list[float]
    memory_bytes: float

    def epoch_s(self, num_train: int, num_val: int) -> float:
        """Seconds of one epoch."""
        return self.train_s * num_train + self.val_s * num_val + self.rest_s


class _Enough(Exception):
    """Ends the loop: enough has been seen."""


class _Watched(LocalRuntime):
    """Writes down when steps and epochs end, and ends the loop.

    Attributes:
        step_s: seconds of each step.
        epochs: of each epoch the row, and the seconds from the end of the one before to its own.

    Args:
        directory, device: as of any runtime.
        is_enough: asked after each step, with the number of steps done.
        until: no epoch after this time (time.perf_counter) is waited for.
        synchronize: wait for the GPU after each step.
    """

    def __init__(
        self,
        directory: Path,
        device: torch.device,
        is_enough: Callable[[int], bool],
        until: float = math.inf,
        synchronize: bool = False,
    ) -> None:
        super().__init__(directory, device)
        self.step_s: list[float] = []
        self.epochs: list[tuple[Row, float]] = []
        self._is_enough, self._until = is_enough, until
        self._synchronize = synchronize and device.type == "cuda"
        self._mark = self._epoch_mark = 0.0

    def began(self, step: int, total_steps: int) -> None:
        self._mark = self._epoch_mark = time.perf_counter()

    def step_done(self, step: int) -> None:
        if self._synchronize:
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.step_s.append(now - self._mark)
        self._mark = now
        if self._is_enough(len(self.step_s)):
            raise _Enough

    def report(self, row: Row) -> None:
        now = time.perf_counter()
        self.epochs.append((row, now - self._epoch_mark))
        self._mark = self._epoch_mark = now
        if now >= self._until:
            raise _Enough


def of_one_worker(experiment: Experiment, workers: int) -> Experiment:
    """The experiment whose step is one worker's share of a step on several."""
    config = experiment.train
    shards = -(-config.shards // workers)
    batch = -(-config.batch_size * shards // config.shards) if config.exactness == "bitwise" else -(-config.batch_size // workers)
    return experiment.with_overrides(
        {
            "train.batch_size": batch,
            "train.shards": 1 << (shards - 1).bit_length(),
            "train.epochs": _EPOCHS,
            # Neither files nor threads that write them; and no trial's end but ours.
            "train.checkpoint_every_epochs": _EPOCHS,
            "train.checkpoint_every_s": None,
            "train.patience": None,
            # No rate at which it could diverge: the time is the same.
            "optim.lr": 1e-9,
            "optim.schedule": "constant",
            "optim.schedule_epochs": None,
            "train.tensorboard": False,
            "train.ledger": False,
            "scale.workers": 1,
        }
    )


def measure(
    experiment: Experiment, dataset: Dataset, device: torch.device, seconds: float, directory: Path, workers: int = 1
) -> Measured:
    """Train for about so long: first a few steps to see how long one takes, then epochs, short ones where a whole one takes long.

    Where even a few steps take longer, those count, and validation is taken as a third of training.

    Args:
        experiment: the trial's.
        dataset: its images.
        device: the CPU or a GPU.
        seconds: for all of it; two steps are taken whatever they take.
        directory: an empty one; what is written there has no use.
        workers: of the trial; one worker's share of the batch is measured.
    """
    experiment = of_one_worker(experiment, workers)
    began = time.perf_counter()
    _reset_peak(device)

    def late(share: float) -> bool:
        return time.perf_counter() - began > share * seconds

    probe = _Watched(directory, device, lambda steps: steps >= _PROBE_STEPS or (steps > 1 and late(0.5)), synchronize=True)
    _run(experiment, dataset, probe)
    # The first step has the first convolutions, the optimizer's memory and the like in it.
    step_s = statistics.fmean(probe.step_s[1:] or probe.step_s)
    batch_size = min(experiment.train.batch_size, len(dataset.train))
    few = Measured(step_s / batch_size, step_s / batch_size / _BACKWARD, 0.0, [], _peak_bytes(device))
    if late(0.5):
        return few
    steps = max(_PROBE_STEPS, int(seconds / 4 / step_s))
    # As many chunks as keep their size: see evaluate.chunks.
    num_val = sum(len(chunk.samples) for chunk in chunks(dataset, experiment)[:_CHUNKS])
    short = replace(dataset, train=dataset.train[: steps * batch_size], val=dataset.val[:num_val])
    timed = _Watched(directory, device, lambda _steps: late(2.0), until=began + seconds)
    _run(experiment, short, timed)
    if not timed.epochs:
        return few
    # The first epoch of several again has first times in it.
    epochs = timed.epochs[1:] or timed.epochs
    train_s = statistics.fmean(len(short.train) / row["samples_per_second"] for row, _ in epochs)
    row_s, all_s = statistics.fmean(row["seconds"] for row, _ in epochs), statistics.fmean(passed for _, passed in epochs)
    return Measured(
        train_s / len(short.train),
        (row_s - train_s) / num_val,
        all_s - row_s,
        [passed / all_s for _, passed in epochs],
        _peak_bytes(device),
    )


def _run(experiment: Experiment, dataset: Dataset, runtime: _Watched) -> None:
    with contextlib.suppress(_Enough):
        train(experiment, dataset, runtime)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # Linux only: the peak that follows is of what follows
            Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    try:
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    if found:
        return float(found[1]) * 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
