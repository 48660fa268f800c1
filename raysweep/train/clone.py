"""Weights that move from one trial to another one: the donor's checkpoint is offered by the driver, and taken by the trial.

`clone/` in a trial's directory holds what it has yet to take; it goes when the trial's own checkpoint is written, so a crash
in between is done again.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from pathlib import Path

import torch

from raysweep.errors import CheckpointError
from raysweep.experiment import Experiment
from raysweep.train import checkpoint, optim

OFFERED = "clone"


def offer(donor: Path, receiver: Path) -> None:
    """Put the donor's newest checkpoint where the receiver takes it from, while no worker writes to either directory.

    A hard link where the file system has them, so it costs nothing, and it stays when the donor's own name goes.

    Raises:
        CheckpointError: the donor has no checkpoint, or the receiver's directory cannot be written.
    """
    path = checkpoint.newest_path(donor)
    if path is None:
        raise CheckpointError(f"{donor} has no complete checkpoint to copy")
    made, final = receiver / f".{OFFERED}", receiver / OFFERED
    try:
        for leftover in (made, final):
            shutil.rmtree(leftover, ignore_errors=True)
        made.mkdir(parents=True)
        for file in (path, path.with_suffix(".json")):
            _link(file, made / file.name)
        made.rename(final)
    except OSError as error:
        raise CheckpointError(f"cannot copy {path} to {final}: {error.strerror or error}") from error


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another device, or a file system without hard links
        shutil.copyfile(source, target)


def take(directory: Path, experiment: Experiment) -> None:
    """Make the checkpoint that was offered to a trial its own, in place of all that it had; nothing where none was offered.

    The best epoch stays the trial's own, and so do the optimizer's settings; the donor's row is not the trial's.

    Args:
        directory: the trial's.
        experiment: its settings from now on.

    Raises:
        CheckpointError: what was offered is damaged, or the copy cannot be written.
    """
    offered = directory / OFFERED
    # Listed, not looked up: a file system over the network may remember a while that it was not there.
    if offered not in directory.iterdir():
        return
    found = checkpoint.newest_complete(offered)
    if found is None:
        raise CheckpointError(
            f"the checkpoint in {offered} is damaged; delete that folder, and --retry-failed goes on from the trial's own"
        )
    content = found.content
    best, best_epoch = _best(directory)
    content["progress"] |= {"row": None, "best": best, "best_epoch": best_epoch, "reference": math.inf, "stale": 0}
    own = optim.build(experiment.optim, [torch.nn.Parameter(torch.zeros(()))]).param_groups[0]
    for group in content["optimizer"]["param_groups"]:
        group.update({name: value for name, value in own.items() if name != "params"})
    for path in directory.glob("ckpt-*"):
        path.unlink()  # it could have a higher step, and be gone on from
    checkpoint.save_numbered(directory, content["progress"]["global_step"], content)
    done = directory / f".{OFFERED}"
    shutil.rmtree(done, ignore_errors=True)
    offered.rename(done)
    shutil.rmtree(done, ignore_errors=True)


def _best(directory: Path) -> tuple[float, int]:
    """The lowest val_loss of the trial's own epochs, and its epoch; (inf, 0) where there is none."""
    with contextlib.suppress(CheckpointError):
        content = checkpoint.load(directory / "best.pt")
        return float(content["val_loss"]), int(content["epoch"])
    return math.inf, 0
