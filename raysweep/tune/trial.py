"""What runs in a trial's actor: one worker trains right here, several are started from here.

The actor is used again for the next trial, so nothing of a trial may stay behind in it.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from ray import tune

from raysweep.cluster.resources import Allocation
from raysweep.data.dataset import Dataset, open_dataset
from raysweep.errors import DiskError, TrialError
from raysweep.experiment import Experiment
from raysweep.plugins import find_modules_in
from raysweep.settings import DataConfig
from raysweep.store.disk import disk_error
from raysweep.store.journal import plain
from raysweep.train.attempts import Event
from raysweep.train.clone import take
from raysweep.train.here import fit_here
from raysweep.train.progress import Outcome
from raysweep.train.runtime import Row
from raysweep.tune.population import paused_after


@lru_cache(maxsize=1)
def images(data: str) -> Dataset:
    """The images of a data section as JSON, kept: trials of a sweep nearly always share them, and an actor serves many."""
    return open_dataset(DataConfig.model_validate_json(data))


class _Reporter:
    """Hands rows, and what happened to the workers before them, to Ray Tune.

    Each report is a round trip to the driver, so the last epoch's row travels with the trial's end, which follows it.

    Attributes:
        last_epoch: of the trial.
    """

    def __init__(self) -> None:
        self.last_epoch: int | None = None
        self._events: list[Event] = []
        self._last_row: dict[str, Any] = {}

    def event(self, event: Event) -> None:
        self._events.append(event)

    def row(self, row: Row) -> None:
        row = plain(row)
        shown = {"epoch": row["epoch"], "row": json.dumps(row), **{k: row[k] for k in ("val_loss", "train_loss", "psnr")}}
        if row["epoch"] == self.last_epoch:
            self._last_row = shown
        else:
            self._report(shown)

    def end(self, outcome: Outcome) -> None:
        self._report({**self._last_row, "end": json.dumps(plain({"status": outcome.status, "reason": outcome.reason}))})

    def disk_failed(self, error: DiskError) -> None:
        """The trial cannot go on, and it is not its end: the driver ends the sweep."""
        self._report({"disk": str(error)})

    def _report(self, result: dict[str, Any]) -> None:
        events, self._events = self._events, []
        # Ray Tune raises SystemExit in here when the trial is to stop, as it is after its end.
        tune.report({**result, "events": json.dumps(plain(events))} if events else result)


def run_trial(
    config: Mapping[str, Any],
    *,
    experiment_json: str,
    directory: str,
    started_in: str,
    allocation: Allocation,
) -> None:
    """Train one trial and report its end, or that the disk failed it.

    Args:
        config: number, key and overrides of the trial; for a member of a population `until`, its segment's last epoch, and
            `copied`, the generation after which it copied last.
        experiment_json: the sweep's experiment, with absolute data paths.
        directory: the sweep's directory.
        started_in: where the user's own modules lie.
        allocation: workers of this trial, and what each holds.
    """
    find_modules_in(started_in)
    reporter, trial = _Reporter(), Path(directory) / "trials" / config["key"]
    try:
        experiment = Experiment.model_validate_json(experiment_json).with_overrides(config["overrides"])
        trial.mkdir(parents=True, exist_ok=True)
        if "until" in config:
            experiment = paused_after(experiment, config["until"])
            take(trial, experiment, config["copied"])
        reporter.last_epoch = experiment.train.epochs
        if allocation.max_workers == 1:
            dataset = images(experiment.data.model_dump_json(exclude_unset=True))
            device = torch.device("cuda", 0) if allocation.gpus_per_worker else torch.device("cpu")
            threads = allocation.cpus_per_worker
            outcome = fit_here(experiment, dataset, trial, device, threads, reporter.row, reporter.event)
        else:
            from raysweep.train.elastic import fit
            from raysweep.tune.shares import Share

            share = Share(Path(directory), config["key"], allocation.workers) if allocation.is_elastic else None
            outcome = fit(experiment, trial, allocation, reporter.row, reporter.event, share=share, started_in=started_in)
    except TrialError as error:
        outcome = Outcome("failed", {"text": error.message, "traceback": error.traceback_text})
    except Exception as error:
        if (failure := disk_error(error, trial)) is not None:
            reporter.disk_failed(failure)
            return
        outcome = Outcome("failed", {"text": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
    reporter.end(outcome)
