"""From `data.*` settings to a data set: read by its source, split into training and validation, known by a fingerprint.

Order, noise and batches are in order.py, noise.py and loader.py.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raysweep.data.arrays import read_arrays, read_idx
from raysweep.data.images import read_folder
from raysweep.data.photos import read_digits, read_photos
from raysweep.data.samples import Indices, Samples, shuffled
from raysweep.errors import DataError
from raysweep.settings import DataConfig

SOURCES: dict[str, Callable[[DataConfig], Samples]] = {
    "photos": read_photos,
    "digits": read_digits,
    "arrays": read_arrays,
    "idx": read_idx,
    "folder": read_folder,
}
"""`data.source` to its reader, which gets absolute paths and gives checked samples, already reduced to `data.count`."""

_SPLIT_STREAM = int.from_bytes(b"split", "big")
_MB = 1 << 20
_BLOCKS = 64


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and their split; indices are positions in `samples`, sorted."""

    samples: Samples
    train: Indices
    """int64 [n_train]."""
    val: Indices
    """int64 [n_val]."""
    fingerprint: str
    """12 hex digits of the samples' content, see `fingerprint`."""


def resolved(config: DataConfig) -> DataConfig:
    """A copy with absolute paths (`~` and relative ones resolved here and now), which means the same in every worker.

    Raises:
        DataError: a URL, or the home folder of an unknown user.
    """
    given = {"path": config.path, "target_path": config.target_path}
    return config.model_copy(update={key: _absolute(f"data.{key}", path) for key, path in given.items() if path is not None})


def load_samples(config: DataConfig) -> Samples:
    """The samples of `config.source`, reduced to `config.count`; relative paths start at the current directory.

    Raises:
        DataError: nothing there, not readable, damaged, or images that do not fit each other; says which setting to change.
    """
    config = resolved(config)
    try:
        for setting, path in (("data.path", config.path), ("data.target_path", config.target_path)):
            if path is not None and not Path(path).exists():
                raise DataError(f"{setting} must exist, there is no {path}; set {setting}")
        return SOURCES[config.source](config)
    except OSError as error:
        place = error.filename or config.path
        raise DataError(
            f"data.source {config.source} must be able to read {place}, got: {error.strerror or error}; "
            f"change its permissions or set data.path, data.target_path or data.source"
        ) from error


def open_dataset(config: DataConfig) -> Dataset:
    """Reads, reduces and splits the data; the same for the same content and settings, wherever and whenever.

    Raises:
        DataError: as `load_samples` and `split` do.
    """
    samples = load_samples(config)
    train, val = split(len(samples), samples.groups, config.val_fraction, config.seed)
    return Dataset(samples, train, val, fingerprint(samples))


def split(num: int, groups: Indices | None, val_fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Training and validation indices, sorted int64; a pure function of the arguments, in every numpy version.

    Whole groups (single samples without groups) are taken in shuffled order as long as each brings the validation side
    nearer to val_fraction * num samples; each side gets at least one, so that the smallest group moves where it must.

    Raises:
        DataError: there is only one group.
    """
    assert num >= 2  # Samples' own check
    if groups is None:
        num_val = min(max(math.ceil(val_fraction * num - 0.5), 1), num - 1)
        in_val = np.zeros(num, dtype=np.bool_)
        in_val[shuffled(num, seed, _SPLIT_STREAM)[:num_val]] = True
    else:
        _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        in_val = _groups_in_val(sizes, val_fraction * num, seed)[group_of]
    if in_val.all() or not in_val.any():
        raise DataError(
            f"training and validation must both get whole groups of samples, "
            f"got 1 group of {num} samples for a data.val_fraction of {val_fraction}; raise data.count"
        )
    return np.flatnonzero(~in_val).astype(np.int64), np.flatnonzero(in_val).astype(np.int64)


def fingerprint(samples: Samples) -> str:
    """12 hex digits (blake2b) of x, y and groups: shapes, dtypes and values, no paths, so that a copy keeps it.

    An array above 64 MB is known by its first MB, its last and 62 evenly spaced between them.
    """
    x = _digest(samples.x)
    y = x if samples.y is samples.x else _digest(samples.y)
    groups = b"" if samples.groups is None else _digest(samples.groups)
    return hashlib.blake2b(x + y + groups, digest_size=6).hexdigest()


def _absolute(setting: str, path: str) -> str:
    if "://" in path:
        raise DataError(f"{setting} must be a path in the file system of every machine, got {path}; mount or copy the data")
    try:
        return os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - links stay: they may differ between machines
    except RuntimeError as error:
        raise DataError(f"{setting} must be a path, got {path}: {error}; set {setting}") from None


def _groups_in_val(sizes: NDArray[np.int64], target: float, seed: int) -> NDArray[np.bool_]:
    """Which groups are for validation, bool [G]; all or none only where there is one group."""
    in_val = np.zeros(len(sizes), dtype=np.bool_)
    total = 0
    for group in shuffled(len(sizes), seed, _SPLIT_STREAM):
        if abs(total + int(sizes[group]) - target) < abs(total - target):
            in_val[group] = True
            total += int(sizes[group])
    if len(sizes) > 1 and (in_val.all() or not in_val.any()):
        smallest = int(np.argmin(sizes))
        in_val[smallest] = not in_val[smallest]
    return in_val


def _digest(array: NDArray[np.generic]) -> bytes:
    state = hashlib.blake2b(f"{array.shape} {array.dtype.str};".encode(), digest_size=32)
    data = array.reshape(-1).view(np.uint8)  # C-contiguous, so a view
    if data.nbytes <= _BLOCKS * _MB:
        state.update(data.data)
    else:
        for i in range(_BLOCKS):
            start = i * (data.nbytes - _MB) // (_BLOCKS - 1)
            state.update(data[start : start + _MB].data)
    return state.digest()
