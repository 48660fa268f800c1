"""Sources that are files of whole arrays: .npy (memory-mapped), .npz, and IDX, the format of MNIST and Fashion-MNIST.

What the arrays must look like is checked in samples.py.
"""

from __future__ import annotations

import gzip
import math
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raysweep.data.samples import Pixels, Samples, selected
from raysweep.errors import DataError
from raysweep.settings import DataConfig

_IDX_MAGIC = {b"\x00\x00\x08\x03": 3, b"\x00\x00\x08\x04": 4}
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 20
# What numpy and zipfile raise on files that are damaged, cut short, encrypted or not theirs.
_DAMAGE = (
    ValueError, TypeError, EOFError, SyntaxError, tokenize.TokenError, OverflowError, MemoryError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_arrays(config: DataConfig) -> Samples:
    """X from a .npy, or X and Y from a .npz with the arrays `x` and `y`; Y may also be the .npy of `data.target_path`.

    A .npy stays on disk, memory-mapped, unless it must be converted (float64, Fortran order) or `data.count` reduces it.
    A .npz with one array is X, whatever the array's name.

    Raises:
        DataError: not such a file, damaged, pickled objects, no `x`, Y in two places; and as `Samples` does.
        OSError: the file cannot be opened.
    """
    assert config.path is not None  # DataConfig's own check
    path, target = Path(config.path), Path(config.target_path) if config.target_path else None
    if path.suffix.lower() == ".npz":
        x, y = _npz(path)
    else:
        x, y = _npy(path, "data.path", ".npy or .npz"), None
    if target is not None:
        if y is not None:
            raise DataError(f"Y must come from one place, got the array y in {path} and {target}; remove data.target_path")
        y = _npy(target, "data.target_path", ".npy")
    return selected(config, x, y, origin=f"{path} and {target}" if target else str(path))


def read_idx(config: DataConfig) -> Samples:
    """X and, with `data.target_path`, Y from IDX files of uint8 [N, H, W] or [N, H, W, C], plain (memory-mapped) or .gz.

    Raises:
        DataError: another format, labels, other sizes than the header says; and as `Samples` does.
        OSError: the file cannot be opened.
    """
    assert config.path is not None  # DataConfig's own check
    x = _idx(Path(config.path), "data.path")
    y = _idx(Path(config.target_path), "data.target_path") if config.target_path else None
    return selected(config, x, y, origin=f"{config.path} and {config.target_path}" if config.target_path else config.path)


def _npy(path: Path, setting: str, expected: str) -> Pixels:
    if path.suffix.lower() != ".npy":
        raise DataError(f"{setting} must be {expected} for data.source arrays, got {path}; set {setting} or data.source")
    try:
        array: Pixels = np.lib.format.open_memmap(path, mode="r")
        return array
    except _DAMAGE as error:
        raise _damaged(path, ".npy", setting, error) from error


def _npz(path: Path) -> tuple[Pixels, Pixels | None]:
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("a single array, not an archive of arrays")
        with archive:
            names = archive.files
            if len(names) == 1:
                return archive[names[0]], None
            if "x" in names:
                return archive["x"], archive["y"] if "y" in names else None
    except _DAMAGE as error:
        raise _damaged(path, ".npz", "data.path", error) from error
    raise DataError(f"a .npz must hold the arrays x and, if wanted, y, or a single array, got {names} in {path}; set data.path")


def _damaged(path: Path, kind: str, setting: str, error: Exception) -> DataError:
    return DataError(
        f"{setting} must be a whole {kind} file of numbers, got {path}: {type(error).__name__}: {error}; "
        f"write it again with numpy or set {setting}"
    )


def _idx(path: Path, setting: str) -> NDArray[np.uint8]:
    data, note = _content(path)
    magic = data[:4].tobytes()
    if magic not in _IDX_MAGIC:
        raise DataError(
            f"an IDX file of images starts with 00000803 (uint8 [N, H, W]) or 00000804 (uint8 [N, H, W, C]), "
            f"got {magic.hex() or 'no bytes'} in {path}{note}; set {setting} to the file of images, not of labels"
        )
    start = 4 + 4 * _IDX_MAGIC[magic]
    shape = [int(size) for size in np.frombuffer(data[4 : min(start, len(data) // 4 * 4)].tobytes(), dtype=">u4")]
    expected = start + math.prod(shape) if len(data) >= start else start
    if len(data) != expected or note:
        raise DataError(
            f"an IDX file must be as long as its header says, for {shape} {expected} bytes, got {len(data)} in {path}{note}; "
            f"copy it again or set {setting}"
        )
    return data[start:].reshape(shape)


def _content(path: Path) -> tuple[NDArray[np.uint8], str]:
    """All bytes of the file, unpacked, and a note where the packed file is damaged."""
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
    if not packed:
        return (np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, dtype=np.uint8)), ""
    content, note = bytearray(), ""
    with gzip.open(path) as unpacked:
        try:
            while chunk := unpacked.read1(_CHUNK_BYTES):
                content += chunk
        except EOFError:
            note = " (the .gz ends too early)"
        except (gzip.BadGzipFile, zlib.error) as error:
            note = f" (the .gz is damaged: {error})"
    return np.frombuffer(content, dtype=np.uint8), note
