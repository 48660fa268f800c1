"""The Python API: train one model, run a sweep, open what either left behind. Re-exported by the package itself."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from raysweep.config import Sweep
from raysweep.errors import DiskError, StoreError
from raysweep.experiment import Experiment
from raysweep.store import results as store_results

if TYPE_CHECKING:
    from torch import nn


class SweepResult:
    """A sweep's (or a run's) directory, opened; without Ray.

    Attributes:
        directory: where it lies.
        results: everything the journal says.
    """

    def __init__(self, results: store_results.Results) -> None:
        self.results = results
        self.directory = results.directory.path

    @property
    def trials(self) -> pd.DataFrame:
        """One row per planned trial, by number: settings, status, the metrics of its best epoch."""
        return self.results.trials

    @property
    def rows(self) -> pd.DataFrame:
        """One row per trial and epoch."""
        return self.results.rows

    @property
    def best(self) -> pd.Series[Any] | None:
        """The best trial's row of `trials`, None where no trial has a finite objective."""
        return self.results.best

    def load_model(self, trial: int | None = None) -> nn.Module:
        """The model of a trial with the weights of its best epoch, on the CPU, in evaluation mode.

        Args:
            trial: the trial's number; the best one when None.

        Raises:
            StoreError: there is no such trial, or it has no finite epoch.
            CheckpointError: the file is missing or damaged.
        """
        from raysweep.train.checkpoint import load_model

        if trial is None:
            row = self.best
            if row is None:
                raise StoreError(f"no trial in {self.directory} has a finite {self.results.metric}, so there is no best model")
        else:
            found = self.trials[self.trials["trial"] == trial]
            if found.empty:
                raise StoreError(f"{self.directory} has the trials 0 to {len(self.trials) - 1}, not {trial}")
            row = found.iloc[0]
            if not row["checkpoint"]:
                why = f": {row['reason']}" if row["reason"] else ""
                raise StoreError(f"trial {trial} has no model, because it has no finite epoch; it is {row['status']}{why}")
        return load_model(self.results.directory.trial(str(row["key"])) / "best.pt")

    def __repr__(self) -> str:
        return f"SweepResult({str(self.directory)!r}, {len(self.trials)} trials)"


def _experiment(experiment: Experiment | Mapping[str, Any] | str | Path | None) -> Experiment:
    if isinstance(experiment, Experiment):
        return experiment
    return Experiment.from_dict(experiment) if isinstance(experiment, Mapping) else Experiment.from_file(experiment)


def _sweep(sweep: Sweep | Mapping[str, Any] | str | Path | None) -> Sweep:
    if isinstance(sweep, Sweep):
        return sweep
    return Sweep.from_dict(sweep) if isinstance(sweep, Mapping) else Sweep.from_file(sweep)


def train(
    experiment: Experiment | Mapping[str, Any] | str | Path | None = None,
    *,
    storage: str | Path = "results",
    working_directory: str = "results",
    name: str = "train",
    local: bool = False,
    resume: bool = False,
    verbose: bool = False,
) -> SweepResult:
    """Train one model on Ray's workers, or in this process.

    Args:
        experiment: settings, as an object, nested mapping, or YAML file; None: all defaults.
        storage: the directory that runs are kept in, or a URI that they are copied to.
        working_directory: the directory that they work in, if `storage` is a URI.
        name: of this run's directory; a number is added where it exists.
        local: no Ray, one worker, in this process.
        resume: go on with the newest run of that name, from its newest checkpoint: it was killed, interrupted, has failed, or
            gets more epochs. Images and settings must be the same, workers need not.
        verbose: let Ray write to the terminal.

    Raises:
        RaysweepError: the settings, images or cluster cannot work (nothing was written), or training failed (TrialError).
    """
    from raysweep.train.run import run

    settings = _experiment(experiment)
    done = run(
        settings, storage=storage, working_directory=working_directory, name=name, local=local, resume=resume, verbose=verbose
    )
    return open(done.directory.path)


def sweep(
    sweep: Sweep | Mapping[str, Any] | str | Path | None = None,
    *,
    storage: str | Path | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    verbose: bool = False,
) -> SweepResult:
    """Run a sweep, or go on with the one in its directory, and write its report. What has ended is not trained again.

    Args:
        sweep: settings, as an object, nested mapping, or YAML file; None: the packaged learning rate x depth sweep.
        storage: instead of the sweep's own.
        fresh: start anew in a new directory; nothing is deleted.
        retry_failed: run failed trials again, from their checkpoints.
        verbose: let Ray write to the terminal.

    Raises:
        RaysweepError: the settings, images or cluster cannot work; nothing was started and nothing written.
    """
    from raysweep.report.build import build_report
    from raysweep.tune.engine import run_sweep

    finished = run_sweep(_sweep(sweep), storage=storage, fresh=fresh, retry_failed=retry_failed, verbose=verbose)
    try:
        build_report(finished.directory.path)
    except DiskError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    finished.place.send_report(finished.directory)
    return open(finished.directory.path)


def open(directory: str | Path) -> SweepResult:
    """Open the directory of a sweep or a run, finished or not.

    Raises:
        StoreError: it holds no journal.
    """
    return SweepResult(store_results.load(directory))
