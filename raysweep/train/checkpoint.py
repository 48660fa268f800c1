"""Checkpoints: one file each, whole or not there, loaded with weights_only=True in any process, without Ray.

`ckpt-STEP.pt` holds all that a run needs to go on (the newest two are kept), `best.pt` the best epoch's weights.
"""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raysweep.errors import CheckpointError
from raysweep.experiment import Experiment
from raysweep.plugins import build_model

FORMAT = 1
KEPT = 2
"""Two, so that a damaged newest one leaves another to go on from."""


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint to a temporary name, force it to the disk, and rename it.

    Raises:
        CheckpointError: the disk is full or the directory cannot be written; older checkpoints stay as they are.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__
        number = cause.errno if isinstance(cause, OSError) else None
        # torch reports a short write as a RuntimeError of its zip writer.
        full = number in (errno.ENOSPC, errno.EDQUOT) or "PytorchStreamWriter" in str(error)
        why = "the disk is full" if full else str(error)
        raise CheckpointError(
            f"cannot write {path}: {why}; the checkpoints before it are intact. Free some room, or set `storage` elsewhere"
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def save_numbered(directory: Path, step: int, content: dict[str, Any]) -> Path:
    """Save `ckpt-STEP.pt` and delete all but the newest two.

    Raises:
        CheckpointError: as save().
    """
    path = directory / f"ckpt-{step:09d}.pt"
    save(path, content)
    for old in numbered(directory)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def numbered(directory: Path) -> list[Path]:
    """The `ckpt-STEP.pt` files of a trial, newest first."""
    return sorted(directory.glob("ckpt-*.pt"), reverse=True)


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's content, on the CPU.

    Raises:
        CheckpointError: the file is missing, damaged, or of a newer format.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"checkpoint {path} has format {found}, this raysweep reads {FORMAT}; use the one that wrote it")
    return content


def newest_complete(directory: Path) -> Path | None:
    """The newest checkpoint that can be read; damaged ones are skipped with a warning."""
    for path in numbered(directory):
        try:
            load(path)
            return path
        except CheckpointError as error:
            warnings.warn(f"{error}; going on from the one before it", RuntimeWarning, stacklevel=2)
    return None


def load_model(path: str | Path) -> nn.Module:
    """The model of a checkpoint with its weights, on the CPU, in evaluation mode; X [B, C, H, W] in, output out.

    Raises:
        CheckpointError: the file is missing or damaged, or the weights are not this model's.
        ConfigError: the user's model factory cannot be imported here.
    """
    content = load(Path(path))
    experiment = Experiment.model_validate_json(content["experiment"])
    model = build_model(experiment.model, tuple(content["x_shape"]), tuple(content["y_shape"]), experiment.train.seed)
    restore_weights(model, content["model"], path)
    return model.eval()


def restore_weights(model: nn.Module, state: dict[str, Any], path: str | Path) -> None:
    """Load weights strictly.

    Raises:
        CheckpointError: names or shapes differ from the model's.
    """
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"checkpoint {path} belongs to another model: {error}") from None
