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
from raysweep.errors import TrialError
from raysweep.experiment import Experiment
from raysweep.plugins import find_modules_in
from raysweep.settings import DataConfig
from raysweep.store.journal import plain
from raysweep.train.loop import train
from raysweep.train.progress import Outcome
from raysweep.train.runtime import LocalRuntime, Row


@lru_cache(maxsize=1)
def _dataset(data: str) -> Dataset:
    # Trials of a sweep share their images nearly always, and an actor serves many trials.
    return open_dataset(DataConfig.model_validate_json(data))


def _report(row: Row) -> None:
    row = plain(row)
    # Ray Tune raises SystemExit in here when the trial is to stop.
    tune.report({"epoch": row["epoch"], "row": json.dumps(row), **{k: row[k] for k in ("val_loss", "train_loss", "psnr")}})


class TuneRuntime(LocalRuntime):
    """One worker inside a trial's actor; rows go to Ray Tune."""

    def __init__(self, directory: Path, device: torch.device) -> None:
        super().__init__(directory, device, on_row=_report)


def run_trial(
    config: Mapping[str, Any], *, experiment_json: str, directory: str, started_in: str, workers: int, cpus: int, gpus: int
) -> None:
    """Train one trial and report its end.

    Args:
        config: number, key and overrides of the trial.
        experiment_json: the sweep's experiment, with absolute data paths.
        directory: the sweep's directory.
        started_in: where the user's own modules lie.
        workers: workers of this trial.
        cpus: CPUs, and torch threads, of each.
        gpus: GPUs of each, 0 or 1.
    """
    find_modules_in(started_in)
    try:
        experiment = Experiment.model_validate_json(experiment_json).with_overrides(config["overrides"])
        trial = Path(directory) / "trials" / config["key"]
        trial.mkdir(parents=True, exist_ok=True)
        if workers == 1:
            torch.set_num_threads(cpus)
            device = torch.device("cuda", 0) if gpus else torch.device("cpu")
            outcome = train(experiment, _dataset(experiment.data.model_dump_json(exclude_unset=True)), TuneRuntime(trial, device))
        else:
            from raysweep.train.ray_runtime import fit

            outcome = fit(experiment, trial, Allocation(workers, cpus, gpus), _report)
    except TrialError as error:
        outcome = Outcome("failed", {"text": error.message, "traceback": error.traceback_text})
    except Exception as error:
        outcome = Outcome("failed", {"text": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
    tune.report({"end": json.dumps(plain({"status": outcome.status, "reason": outcome.reason}))})
