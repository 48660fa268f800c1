"""Checkpoints: one file each, whole or not there, loaded with weights_only=True in any process, without Ray.

`ckpt-STEP.pt` holds all that a run needs to go on (the newest two are kept), `ckpt-STEP.json` beside it says that it is
complete: its size and checksum. `best.pt` holds the best epoch's weights. When to save is saver.py's.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from torch import nn

from raysweep.errors import CheckpointError
from raysweep.experiment import Experiment
from raysweep.plugins import build_model
from raysweep.store.disk import disk_error

T = TypeVar("T")

FORMAT = 1
KEPT = 2
"""Two, so that a damaged newest one leaves another to go on from."""
_PIECE_BYTES = 1 << 20
_NUMBERED = re.compile(r"ckpt-(\d{9,})\.(?:pt|json)")


@dataclass(frozen=True)
class Seal:
    """What a whole file looks like: its size in bytes and its CRC-32.

    zlib's CRC-32 ran at 2.1 GB/s on one core, SHA-256 (SHA-NI) at 1.1 and BLAKE2b at 0.5; it is meant for damage, not fraud.
    """

    size: int
    crc32: int


@dataclass(frozen=True)
class Found:
    """A complete checkpoint and its content."""

    path: Path
    content: dict[str, Any]


class _Sealing:
    """Passes what is written on to a file, and makes its seal on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = self._crc32 = 0

    def write(self, data: bytes | memoryview) -> int:
        # In pieces that stay in the processor's cache between the two: a tenth less time.
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._crc32 = zlib.crc32(piece, self._crc32)
            self._file.write(piece)
        self._size += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    def seal(self) -> Seal:
        return Seal(self._size, self._crc32)


def save(path: Path, content: dict[str, Any]) -> Seal:
    """Write a checkpoint to a temporary name, force it to the disk, and rename it.

    Raises:
        CheckpointError: the directory cannot be written; older checkpoints stay as they are.
        DiskError: the disk is full; likewise.
    """

    def fill(file: IO[bytes]) -> Seal:
        sealing = _Sealing(file)
        with _without_zip_checksums():
            torch.save({"format": FORMAT, **content}, sealing)  # type: ignore[arg-type]
        return sealing.seal()

    return _write(path, fill)


def save_numbered(directory: Path, step: int, content: dict[str, Any]) -> Path:
    """Save `ckpt-STEP.pt`, then its marker, and delete the older ones but the newest complete.

    Raises:
        CheckpointError, DiskError: as save().
    """
    path = _path(directory, step)
    seal = save(path, content)
    _write(_marker(path), lambda file: file.write(json.dumps({"format": FORMAT, **asdict(seal)}).encode()))
    _delete_older(directory, step)
    return path


def _write(path: Path, fill: Callable[[IO[bytes]], T]) -> T:
    """A file, whole or not there, that survives a loss of power; returns what `fill` does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                result = fill(file)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        finally:
            _delete(Path(temporary))  # before an error says how much is free
        _sync_directory(path.parent)
    except (OSError, RuntimeError) as error:
        # torch makes of what writing raises a RuntimeError of its zip writer.
        told = f"cannot write {path}: {error}; the checkpoints before it are intact. Set `storage` elsewhere"
        raise (disk_error(error, path) or CheckpointError(told)) from error
    return result


def _sync_directory(directory: Path) -> None:
    """Force a rename to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _without_zip_checksums() -> Iterator[None]:
    """torch.load never looks at the checksums in its zip files, and they take longer than writing does."""
    options = torch.serialization
    if not hasattr(options, "set_crc32_options"):  # torch before 2.6
        yield
        return
    before = options.get_crc32_options()
    options.set_crc32_options(False)
    try:
        yield
    finally:
        options.set_crc32_options(before)


def _path(directory: Path, step: int) -> Path:
    return directory / f"ckpt-{step:09d}.pt"


def _marker(path: Path) -> Path:
    return path.with_suffix(".json")


def _delete(path: Path) -> None:
    # What cannot be deleted takes up room, no more: no reason to end a run.
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"cannot delete {path}: {error}", RuntimeWarning, stacklevel=3)


def _steps(directory: Path) -> list[int]:
    """The steps that a checkpoint or a marker is there of, newest first."""
    names = (_NUMBERED.fullmatch(path.name) for path in directory.glob("ckpt-*"))
    return sorted({int(match[1]) for match in names if match}, reverse=True)


def _delete_older(directory: Path, step: int) -> None:
    """Keep the checkpoint of `step`, which was just written, and the complete one before it.

    Files of later steps are damaged ones that the run could not go on from: they count for nothing.
    """
    before = [other for other in _steps(directory) if other < step]
    whole = [other for other in before if _has_its_size(_path(directory, other))]
    for other in before:
        if other not in whole[: KEPT - 1]:
            _delete(_path(directory, other))
            _delete(_marker(_path(directory, other)))


def _has_its_size(path: Path) -> bool:
    try:
        return path.stat().st_size == _read_seal(path).size
    except (OSError, CheckpointError):
        return False


def newest_path(directory: Path) -> Path | None:
    """The newest checkpoint that has the size in its marker; its content is not read."""
    return next((path for path in (_path(directory, step) for step in _steps(directory)) if _has_its_size(path)), None)


def start(directory: Path) -> Found | None:
    """Delete what killed writers have left unfinished, and find where to go on. For a run's start, when nobody writes yet."""
    for pattern in (".ckpt-*", ".best.pt.*"):
        for path in directory.glob(pattern):
            _delete(path)
    return newest_complete(directory)


def newest_complete(directory: Path) -> Found | None:
    """The newest checkpoint that is what its marker says, read once; others are skipped with a warning."""
    for step in _steps(directory):
        path = _path(directory, step)
        try:
            return Found(path, _load_sealed(path))
        except CheckpointError as error:
            warnings.warn(f"{error}; skipped", RuntimeWarning, stacklevel=2)
    return None


def _read_seal(path: Path) -> Seal:
    marker = _marker(path)
    try:
        content = json.loads(marker.read_bytes())
        return Seal(int(content["size"]), int(content["crc32"]))
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path} is incomplete: there is no {marker.name} to say that it is whole") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: its marker {marker.name} cannot be read: {error}") from error


def _load_sealed(path: Path) -> dict[str, Any]:
    seal = _read_seal(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path} is missing: there is only its marker") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
    if len(raw) != seal.size:
        raise CheckpointError(f"checkpoint {path} is damaged: it has {len(raw)} bytes, its marker says {seal.size}")
    if zlib.crc32(raw) != seal.crc32:
        raise CheckpointError(f"checkpoint {path} is damaged: its CRC-32 is not the one in its marker")
    return _load(path, io.BytesIO(raw))


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's content, on the CPU.

    Raises:
        CheckpointError: the file is missing, damaged, or of a newer format.
    """
    return _load(path, path)


def _load(path: Path, source: Path | IO[bytes]) -> dict[str, Any]:
    try:
        content = torch.load(source, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"checkpoint {path} has format {found}, this raysweep reads {FORMAT}; use the one that wrote it")
    return content


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
