"""Sweep directories made of a journal alone: no training, no Ray."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysweep.config import Sweep
from raysweep.experiment import Experiment
from raysweep.store.journal import JournalWriter

DATA = {
    "fingerprint": "3f1c9a0b12de", "num_train": 800, "num_val": 200, "x_shape": [32, 32, 3], "y_shape": [32, 32, 3],
    "dtype": "float32", "source": "photos", "noise": 0.1, "baseline_mean_image": 0.108, "baseline_input": 0.0100,
}  # fmt: skip
NAN = math.nan
SPACE = {"optim.lr": {"grid": [1e-4, 1e-3, 1e-2, 1e-1]}, "model.depth": {"grid": [1, 2, 3, 4]}}
LOSSES = {
    1: (0.034, 0.0060, 0.0040, 0.108),
    2: (0.032, 0.0079, 0.0069, 0.127),
    3: (0.030, 0.0092, 0.0145, 0.78),
    4: (0.030, 0.0109, 0.108, None),
}
TRACEBACK = 'Traceback (most recent call last):\n  File "model.py", line 3, in forward\n    return x @ w\n'

Trial = Mapping[str, Any]
"""What `trial` returns: overrides, values (the loss by epoch), status, reason."""


def trial(overrides: Mapping[str, Any], *values: float, status: str | None = "completed", **reason: Any) -> Trial:
    return {"overrides": dict(overrides), "values": values, "status": status, "reason": reason}


def failed(overrides: Mapping[str, Any], error: str, status: str = "failed") -> Trial:
    return trial(overrides, status=status, text=error, traceback=TRACEBACK + error)


def diverged(overrides: Mapping[str, Any], *values: float) -> Trial:
    return trial(overrides, *values, status="diverged", what="train loss", step=33, lr=0.1)


def grid_trials() -> list[Trial]:
    """Sixteen trials, lr x depth: the last diverged, four not better than the mean image."""
    trials = []
    for column, lr in enumerate((1e-4, 1e-3, 1e-2, 1e-1)):
        for depth, losses in LOSSES.items():
            loss, overrides = losses[column], {"optim.lr": lr, "model.depth": depth}
            trials.append(diverged(overrides, 1e30, NAN) if loss is None else trial(overrides, loss * 3, loss * 1.001, loss))
    return trials


Make = Callable[..., Path]
"""`write_journal` without its first argument."""


def write_journal(
    parent: Path,
    trials: Sequence[Trial],
    space: Mapping[str, Any] | None = SPACE,
    data: Mapping[str, Any] = DATA,
    name: str = "sweep",
    finish: str | None = "completed",
    metric: str = "val_loss",
    experiment: Mapping[str, Any] | None = None,
) -> Path:
    """Write a sweep's directory below `parent`, of a journal alone, and return it."""
    directory = parent / name
    directory.mkdir(parents=True)
    ticks = iter(range(10**6))
    journal = JournalWriter(directory / "journal.jsonl", clock=lambda: 1.7e9 + next(ticks))
    sweep = None
    if space is not None:
        listed = all(set(domain) <= {"grid", "choice"} for domain in space.values())
        search = {} if listed else {"algorithm": "random", "num_samples": len(trials) or 1}
        tree = {"experiment": dict(experiment or {}), "space": space, "search": search, "objective": {"metric": metric}}
        sweep = Sweep.from_dict(tree).model_dump(mode="json", exclude_unset=True)
    journal.event("start", sweep=sweep, experiment=Experiment().model_dump(mode="json"), data=dict(data))
    for number, made in enumerate(trials):
        journal.event("trial", trial=number, key=f"{number:012x}", overrides=made["overrides"], parameters=1000 + number)
    for number, made in enumerate(trials):
        journal.event("run", trial=number)
        for epoch, value in enumerate(made["values"], start=1):
            row = {"epoch": epoch, "step": 10 * epoch, "train_loss": value, "val_loss": value, "psnr": 20.0 + epoch}
            journal.row(number, {**row, "world_size": 1, "samples_per_second": 800.0, "seconds": 1.0})
        if made["status"]:
            journal.event("end", trial=number, status=made["status"], reason=dict(made["reason"]))
    if finish:
        journal.event("finish", status=finish)
    journal.close()
    return directory


def write_samples(directory: Path, number: int, **arrays: Any) -> Path:
    """Put images into a trial's directory; default: four RGB ones of 8 x 8."""
    rng = np.random.default_rng(0)
    default = {name: rng.random((4, 8, 8, 3), dtype=np.float32) for name in ("x", "y", "output")}
    folder = directory / "trials" / f"{number:012x}"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "samples.npz", **{**default, **arrays})
    return folder / "samples.npz"
