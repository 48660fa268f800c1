"""A run with one worker in this process, tried again where that helps; the counterpart of elastic.py without Ray."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from raysweep.data.dataset import Dataset
from raysweep.errors import CheckpointError, DiskError, RaysweepError
from raysweep.experiment import Experiment
from raysweep.store.disk import disk_error
from raysweep.train.attempts import Ended, Event, Start, supervise
from raysweep.train.failures import Failure, classify
from raysweep.train.left import LeftRows
from raysweep.train.loop import train
from raysweep.train.progress import Outcome
from raysweep.train.runtime import LocalRuntime, Row


class _HereRuntime(LocalRuntime):
    """Remembers how far the attempt has come."""

    first_step = step = 0
    step_at: float | None = None
    stepped: Callable[[int, int, float], None]

    def began(self, step: int, total_steps: int) -> None:
        self.first_step = self.step = step

    def step_done(self, step: int) -> None:
        self.step, is_first, self.step_at = step, self.step_at is None, time.time()
        if is_first:
            self.stepped(1, self.first_step, self.step_at)


def fit_here(
    experiment: Experiment,
    dataset: Dataset,
    directory: Path,
    device: torch.device,
    threads: int,
    on_row: Callable[[Row], None],
    on_event: Callable[[Event], None] = lambda _event: None,
    say: Callable[[str], None] = lambda _text: None,
) -> Outcome:
    """Train in this process, with so many torch threads; blocks until the run has ended for good.

    Args:
        experiment: what to train.
        dataset: its images.
        directory: the trial's directory.
        device: the CPU or a GPU.
        threads: torch threads; put back as they were.
        on_row, on_event, say: as elastic.fit.

    Raises:
        TrialError: training failed, with its traceback.
        DiskError: the disk did.
        RaysweepError: a mistake in the settings or the data.
    """
    refused: list[BaseException] = []  # what on_row raised: it ends the run and is no failure of the training

    def attempt(start: Start) -> Ended:
        def pass_on(row: Row) -> None:
            try:
                start.on_row(row)
            except BaseException as error:
                refused.append(error)
                raise

        runtime = _HereRuntime(directory, device, pass_on, attempt=start.attempt)
        runtime.stepped = start.stepped
        try:
            outcome = train(start.experiment, dataset, runtime)
            return Ended(1, runtime.step, runtime.step_at, outcome=outcome)
        except Exception as error:
            is_mistake = isinstance(error, RaysweepError) and not isinstance(error, CheckpointError | DiskError)
            if refused or is_mistake:
                raise
            met = disk_error(error, directory) or error
            kind = classify(type(met).__name__, str(met), draining=False)
            text, micro_batch = f"{type(met).__name__}: {met}", start.experiment.train.micro_batch
            failure = Failure(kind, text, traceback.format_exc(), runtime.step, runtime.first_step, micro_batch)
        # The error is gone here, and with it the tensors that its traceback held.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return Ended(1, runtime.step, runtime.step_at, failure=failure)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return supervise(attempt, experiment, LeftRows(directory, on_row), on_event, say)
    finally:
        torch.set_num_threads(before)
