"""Weights that move from trial to trial: the donor's checkpoint is offered by the driver, and taken by the trial.

`clone-G/` in a trial's directory holds what it copies after generation G. It stays until the trial copies again, for it is what
the trial begins with: one whose own checkpoints are lost, or were not sent to a store yet, begins there anew.
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
from raysweep.store.directory import COPIED, copied
from raysweep.store.disk import disk_error
from raysweep.train import checkpoint, optim


def stands_at(directory: Path, epoch: int, generation: int) -> bool:
    """Whether a trial's newest checkpoint is the one of an epoch's end.

    Args:
        directory: the trial's.
        epoch: the last one of a generation.
        generation: after which it copied last; 0: never.
    """
    found = checkpoint.newest_complete(directory)
    progress = found.content["progress"] if found else {}
    return (progress.get("epoch"), progress.get("step"), progress.get("copied", 0)) == (epoch + 1, 0, generation)


def has_best(directory: Path, val_loss: float) -> bool:
    """Whether a trial's best.pt is as good as the best of its epochs."""
    return _best(directory)[0] <= val_loss


def offer(donor: Path, receiver: Path, generation: int) -> None:
    """Put the donor's newest checkpoint where the receiver takes it from, while no worker writes to either directory.

    A hard link where the file system has them, so it costs nothing, and it stays when the donor's own name goes.

    Raises:
        CheckpointError: the donor has no checkpoint, or the receiver's directory cannot be written (DiskError: a full disk).
    """
    path = checkpoint.newest_path(donor)
    if path is None:
        raise CheckpointError(f"{donor} has no complete checkpoint to copy")
    final = copied(receiver, generation)
    made = final.with_name(f".{final.name}")
    try:
        for leftover in (made, final):
            shutil.rmtree(leftover, ignore_errors=True)
        made.mkdir(parents=True)
        for file in (path, path.with_suffix(".json")):
            _link(file, made / file.name)
        made.rename(final)
    except OSError as error:
        told = f"cannot copy {path} to {final}: {error.strerror or error}"
        raise (disk_error(error, final) or CheckpointError(told)) from error


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another device, or a file system without hard links
        shutil.copyfile(source, target)


def drop_older(receiver: Path, generation: int) -> None:
    """Delete what a trial copied after earlier generations; for when the journal has the copy of this one."""
    for path in receiver.glob(f"*{COPIED}-*"):
        if path != copied(receiver, generation):
            shutil.rmtree(path, ignore_errors=True)


def take(directory: Path, experiment: Experiment, generation: int) -> None:
    """Make the checkpoint that was offered to a trial its own, in place of all that it had; nothing where that is done.

    The best epoch stays the trial's own, and so do the optimizer's settings; the donor's row is not the trial's.

    Args:
        directory: the trial's.
        experiment: its settings from now on.
        generation: after which it copied last; 0: never.

    Raises:
        CheckpointError: what was offered is damaged or gone, or the copy cannot be written.
    """
    if not generation or _has_taken(directory, generation):
        return
    offered = copied(directory, generation)
    # Listed, not looked up: a file system over the network may remember a while that it was not there.
    found = checkpoint.newest_complete(offered) if offered in directory.iterdir() else None
    if found is None:
        raise CheckpointError(
            f"the checkpoint in {offered} is damaged or gone, and this trial copies it; --retry-failed goes on where it is there "
            "again, --fresh starts the sweep anew"
        )
    content = found.content
    best, best_epoch = _best(directory)
    content["progress"] |= {"row": None, "best": best, "best_epoch": best_epoch, "reference": math.inf, "stale": 0}
    content["progress"]["copied"] = generation
    own = optim.build(experiment.optim, [torch.nn.Parameter(torch.zeros(()))]).param_groups[0]
    for group in content["optimizer"]["param_groups"]:
        group.update({name: value for name, value in own.items() if name != "params"})
    checkpoint.save_numbered(directory, content["progress"]["global_step"], content)


def _has_taken(directory: Path, generation: int) -> bool:
    """Whether a trial's own checkpoints go on from what it copied last; those of a time before are deleted.

    They could have higher steps, and be gone on from.
    """
    while found := checkpoint.newest_complete(directory):
        if found.content["progress"].get("copied", 0) == generation:
            return True
        for path in (found.path.with_suffix(".json"), found.path):
            path.unlink()
    for path in directory.glob("ckpt-*"):
        path.unlink()  # damaged ones
    return False


def _best(directory: Path) -> tuple[float, int]:
    """The lowest val_loss of the trial's own epochs, and its epoch; (inf, 0) where there is none."""
    with contextlib.suppress(CheckpointError):
        content = checkpoint.load(directory / "best.pt")
        return float(content["val_loss"]), int(content["epoch"])
    return math.inf, 0
